"""Triton's kernels are interpreted, so that they can be tested without an accelerator."""

from __future__ import annotations

import os

os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is first imported
