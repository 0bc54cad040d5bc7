"""Secure sums: the server learns the sum over clients and nothing else of what they send.

Pairwise masks that cancel in the sum, with recovery of those who drop out (Bonawitz et al. 2017), each client with a
few neighbours where there are many (Bell et al. 2020). `Member` is a client's end, `Collector` the server's; what
passes between them is bytes, which any transport can relay.
"""

from __future__ import annotations

from fedrec.secure.collector import Collector
from fedrec.secure.fixed_point import Layout, Part, layout_of
from fedrec.secure.identity import Peers, read_public
from fedrec.secure.member import Member
from fedrec.secure.primitives import SigningKey
from fedrec.secure.terms import Aborted, Terms, new_session

__all__ = [
    "Aborted",
    "Collector",
    "Layout",
    "Member",
    "Part",
    "Peers",
    "SigningKey",
    "Terms",
    "layout_of",
    "new_session",
    "read_public",
]
