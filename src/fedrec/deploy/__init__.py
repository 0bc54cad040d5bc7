"""The same methods between real machines, over Flower.

What other packages may use of it is named here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedrec.deploy.extra import require
from fedrec.plugins import lazily

require("cryptography")  # which signs and masks; its other users would name another extra

if TYPE_CHECKING:
    from fedrec.deploy.demo import follow_events, make_key_for_node
    from fedrec.deploy.figures_file import Row, read_figures, record
    from fedrec.deploy.flower import LOG, Certificates, Joining, SuperLink, free_port, reason_in, require_flower
    from fedrec.deploy.framing import frame, unframe
    from fedrec.deploy.job import EVENTS, RECEIVED, write_job
    from fedrec.deploy.keys import make_node_key, make_server_keys
    from fedrec.deploy.link import Limits
    from fedrec.deploy.local_link import Handle, LocalLink
    from fedrec.deploy.masks import Masks
    from fedrec.deploy.node import NodeHost, Settings
    from fedrec.deploy.node_process import start_node
    from fedrec.deploy.processes import Processes, descendants
    from fedrec.deploy.rehearsal import Rehearsal, rehearse
    from fedrec.deploy.server import Server
    from fedrec.deploy.state import TURN, StateFolder
    from fedrec.deploy.terms import Terms
else:
    __getattr__, __dir__ = lazily(
        __name__,
        {
            "fedrec.deploy.demo": ["follow_events", "make_key_for_node"],
            "fedrec.deploy.figures_file": ["Row", "read_figures", "record"],
            "fedrec.deploy.flower": [
                "Certificates",
                "Joining",
                "LOG",
                "SuperLink",
                "free_port",
                "reason_in",
                "require_flower",
            ],
            "fedrec.deploy.framing": ["frame", "unframe"],
            "fedrec.deploy.node_process": ["start_node"],
            "fedrec.deploy.job": ["EVENTS", "RECEIVED", "write_job"],
            "fedrec.deploy.keys": ["make_node_key", "make_server_keys"],
            "fedrec.deploy.link": ["Limits"],
            "fedrec.deploy.local_link": ["Handle", "LocalLink"],
            "fedrec.deploy.masks": ["Masks"],
            "fedrec.deploy.node": ["NodeHost", "Settings"],
            "fedrec.deploy.processes": ["Processes", "descendants"],
            "fedrec.deploy.rehearsal": ["Rehearsal", "rehearse"],
            "fedrec.deploy.server": ["Server"],
            "fedrec.deploy.state": ["StateFolder", "TURN"],
            "fedrec.deploy.terms": ["Terms"],
        },
    )

__all__ = [
    "EVENTS",
    "LOG",
    "RECEIVED",
    "TURN",
    "Certificates",
    "Handle",
    "Joining",
    "Limits",
    "LocalLink",
    "Masks",
    "NodeHost",
    "Processes",
    "Rehearsal",
    "Row",
    "Server",
    "Settings",
    "StateFolder",
    "SuperLink",
    "Terms",
    "descendants",
    "follow_events",
    "frame",
    "free_port",
    "make_key_for_node",
    "make_node_key",
    "make_server_keys",
    "read_figures",
    "reason_in",
    "record",
    "rehearse",
    "require_flower",
    "start_node",
    "unframe",
    "write_job",
]
