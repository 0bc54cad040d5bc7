"""Messages as bytes: named tensors and a header of plain values. Nothing in them is ever executed.

What arrives is checked before anything looks at it: that it is such a message, and not larger than it may be.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from fedrec.errors import FedrecError
from fedrec.federation.messages import Tensors


class BadMessage(FedrecError):
    """A message that must not be used. It says what is wrong and is counted, never averaged in."""


def pack(header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> bytes:
    from safetensors.torch import save

    plain = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
    return save(plain, metadata={"fedrec": json.dumps(dict(header), allow_nan=False)})


def unpack(message: bytes, limit: int | None = None) -> tuple[dict[str, Any], Tensors]:
    """Header and tensors. `limit`: bytes that it may have."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    if limit is not None and len(message) > limit:
        raise BadMessage(f"the message has {len(message):,} bytes; {limit:,} are allowed")
    try:
        size = int.from_bytes(message[:8], "little")
        header = json.loads(json.loads(message[8 : 8 + size])["__metadata__"]["fedrec"])
        tensors = load(message)
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise BadMessage(f"this is not a fedrec message ({error})") from None
    if not isinstance(header, dict):
        raise BadMessage("this is not a fedrec message (its header is not a table)")
    return header, tensors
