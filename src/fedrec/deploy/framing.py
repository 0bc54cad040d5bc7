"""A message of a deployment: a header of plain values, and parts that are messages of their own."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from fedrec.federation.codec import BadMessage

LENGTH = 8  # bytes that hold the length of the header
LONGEST_HEADER = 256 << 20  # a vocabulary of some million items


def frame(header: Mapping[str, Any], parts: Sequence[bytes] = ()) -> bytes:
    text = json.dumps({**header, "sizes": [len(part) for part in parts]}, allow_nan=False).encode()
    return b"".join((len(text).to_bytes(LENGTH, "little"), text, *parts))


def unframe(message: bytes) -> tuple[dict[str, Any], list[bytes]]:
    """What does not add up is refused before anything looks at it."""
    start = LENGTH + int.from_bytes(message[:LENGTH], "little")
    if len(message) < LENGTH or start > min(len(message), LENGTH + LONGEST_HEADER):
        raise BadMessage("this is not a deployment message (it is cut short)")
    try:
        header = json.loads(message[LENGTH:start])
        sizes = [int(size) for size in header.pop("sizes")]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadMessage(f"this is not a deployment message ({error})") from None
    if min(sizes, default=0) < 0 or start + sum(sizes) != len(message):
        raise BadMessage("this is not a deployment message (its parts do not have the announced sizes)")
    parts = []
    for size in sizes:
        parts.append(message[start : start + size])
        start += size
    return header, parts
