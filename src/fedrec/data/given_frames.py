"""Frames in the place of files: kept once in the cache under a checksum, so that the same frame is the same file."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from fedrec.data.atomic import atomic_file
from fedrec.data.fetch import cache_folder
from fedrec.data.frames import is_frame, is_pandas


def as_file(data: Any) -> Any:
    """The file of a frame; anything else as it is."""
    if not is_frame(data):
        return data
    text = data.to_csv(index=False) if is_pandas(data) else data.write_csv()
    path: Path = cache_folder() / "frames" / f"frame-{hashlib.sha256(text.encode()).hexdigest()[:16]}.csv"
    if not path.exists():
        with atomic_file(path, private=True) as temporary:
            temporary.write_text(text, encoding="utf-8")
    return str(path)
