"""A model behind a small HTTP service."""

from fedrec.serving.lists import OPENERS, Lists, open_lists
from fedrec.serving.server import Server
from fedrec.serving.service import Service

__all__ = ["OPENERS", "Lists", "Server", "Service", "open_lists"]
