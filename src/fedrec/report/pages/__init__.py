"""HTML pages: of runs, of a dataset; a template each."""

PAGES = __name__
"""The package whose templates they are."""
