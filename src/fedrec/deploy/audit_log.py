"""What was asked, answered and refused, a line of JSON for each message: for whoever has to account for it."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from fedrec.data.atomic import make_private_file, make_private_folder

AUDIT = "audit.jsonl"


class AuditLog:
    """Appended to, never rewritten. It holds hashes and sizes, no content."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / AUDIT
        self._bytes: int | None = None

    def write(self, **particulars: Any) -> None:
        if not self.path.exists():
            make_private_folder(self.path.parent)
            make_private_file(self.path)
        self._bytes = self.count_bytes() + particulars.get("received", 0) + particulars.get("sent", 0)
        line = json.dumps({"time": round(time.time(), 3), **particulars}, default=str)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    def count_bytes(self) -> int:
        """Add up what has come in and gone out so far."""
        if self._bytes is None:
            self._bytes = sum(line.get("received", 0) + line.get("sent", 0) for line in self.read())
        return self._bytes

    def read(self) -> list[dict[str, Any]]:
        """Return the whole lines so far."""
        if not self.path.exists():
            return []
        return [json.loads(line) for line in self.path.read_text(encoding="utf-8").splitlines() if line.endswith("}")]
