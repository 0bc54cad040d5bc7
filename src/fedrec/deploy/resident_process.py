"""A node's process that stays: Flower starts a process for every message, and that one hands the message over here.

Here the libraries are loaded, the kernels compiled and the data prepared, which would otherwise be done anew for every
message. Where nobody answers, the process that Flower started does the work itself.
"""

from __future__ import annotations

import os
import struct
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Client, Listener
from pathlib import Path

ADDRESS = "FEDREC_NODE_SOCKET"  # where a node's process listens, in the environment of those that Flower starts
DONE, FAILED = b"done", b"failed"


class Unexpected(Exception):
    """An error of the process that stays, in its words."""


def ask(message: bytes) -> bytes | None:
    """Ask the process that stays for the reply; None where there is no such process."""
    address = os.environ.get(ADDRESS)
    if address is None:
        return None
    try:
        connection = Client(address, "AF_UNIX")
    except OSError:
        return None
    with connection:
        connection.send_bytes(struct.pack("<d", time.process_time()))
        connection.send_bytes(message)
        how, reply = connection.recv_bytes(), connection.recv_bytes()
    if how == FAILED:
        raise Unexpected(reply.decode())
    return reply


@contextmanager
def staying(state: Path) -> Iterator[dict[str, str]]:
    """Answer messages for a state folder while the block lasts; yield what its processes need in their environment."""
    with tempfile.TemporaryDirectory(
        prefix="fedrec-node-", ignore_cleanup_errors=True
    ) as place:  # readable by its owner alone
        address = str(Path(place) / "socket")
        listener = Listener(address, "AF_UNIX")
        threading.Thread(target=_answer_all, args=(listener, state), daemon=True).start()
        try:
            yield {ADDRESS: address}
        finally:
            listener.close()


def _answer_all(listener: Listener, state: Path) -> None:
    """One message after the other: two that train the same clients would disturb each other."""
    from fedrec.deploy.node import NodeHost

    host: NodeHost | None = None
    while True:
        try:
            connection = listener.accept()
        except OSError:
            return
        with connection, suppress(OSError, EOFError):  # whoever asked may be gone meanwhile
            (spent,) = struct.unpack("<d", connection.recv_bytes())
            message = connection.recv_bytes()
            try:
                host = host or NodeHost(state)
                how, reply = DONE, host.handle(message, spent)
            except Exception as error:
                how, reply = FAILED, f"{type(error).__name__}: {error}".encode()
            connection.send_bytes(how)
            connection.send_bytes(reply)
