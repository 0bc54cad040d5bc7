"""What has arrived of a secure sum, on the server's disk: nodes answer once, so a server that stops must not forget."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fedrec.data.atomic import make_private_file, make_private_folder

LENGTH = 8  # bytes that hold a length


class SumJournal:
    """Entries in order, each a header of plain values and a message. One that was cut short at the end is left out."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, header: Mapping[str, Any], message: bytes = b"", durable: bool = False) -> None:
        """`durable`: on the disk, whatever happens to the machine, before this returns."""
        if not self.path.exists():
            make_private_folder(self.path.parent)
            make_private_file(self.path)
        text = json.dumps(dict(header)).encode()
        sizes = len(text).to_bytes(LENGTH, "little") + len(message).to_bytes(LENGTH, "little")
        with self.path.open("ab") as file:
            file.write(sizes + text + message)
            if durable:
                file.flush()
                os.fsync(file.fileno())

    def read(self) -> Iterator[tuple[dict[str, Any], bytes]]:
        with self.path.open("rb") as file:
            while len(sizes := file.read(2 * LENGTH)) == 2 * LENGTH:
                lengths = [int.from_bytes(sizes[k : k + LENGTH], "little") for k in (0, LENGTH)]
                text, message = (file.read(length) for length in lengths)
                if [len(text), len(message)] != lengths:
                    return
                yield json.loads(text), message

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)
