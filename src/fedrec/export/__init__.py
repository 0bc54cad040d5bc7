"""A model as a file that other programs read."""

from fedrec.export.write import FORMATS, export

__all__ = ["FORMATS", "export"]
