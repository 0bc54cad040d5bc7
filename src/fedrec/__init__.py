"""fedrec: federated recommendation, honestly evaluated."""

from fedrec.errors import FedrecError
from fedrec.version import __version__

__all__ = ["FedrecError", "__version__"]
