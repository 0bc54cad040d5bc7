"""Text from data or other people, made safe to show: no character in it controls the terminal."""

from __future__ import annotations

import re

_COMMANDS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters but tab and line feed; among them ESC and its 8-bit kin
    "\u2028-\u202e\u2066-\u2069"  # line ends, and marks that overrule the direction of writing
    "\ud800-\udfff]"  # halves of characters, which no terminal can show
)


def visible(text: str) -> str:
    r"""With control characters written out, as \x1b; tabs and line feeds stay."""
    return _COMMANDS.sub(lambda found: _written(found[0]), text)


def visible_line(text: str) -> str:
    r"""The same on one line: tabs and line feeds are written out as well, as \t and \n."""
    return visible(text).replace("\t", r"\t").replace("\n", r"\n")


def _written(sign: str) -> str:
    return f"\\x{ord(sign):02x}" if ord(sign) < 0x100 else f"\\u{ord(sign):04x}"
