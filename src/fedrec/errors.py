"""The exceptions that users are meant to read."""

from __future__ import annotations

import difflib
import errno
import re
from collections.abc import Iterable

__all__ = [
    "DivergedError",
    "FedrecError",
    "FedrecWarning",
    "explain",
    "list_few",
    "reason",
    "unknown",
    "visible",
    "visible_line",
]

# Not every system has all of these numbers.
FULL = {getattr(errno, name) for name in ("ENOSPC", "EDQUOT", "EFBIG") if hasattr(errno, name)}


class FedrecError(Exception):
    """Something the user can correct: one line that says what to do. The command line prints it and exits with 2."""


class FedrecWarning(UserWarning):
    """Something is wrong but work continues without it. The command line prints one line."""


class DivergedError(FedrecError):
    """Numbers that are no longer finite. The caller, who knows the method, says which of its rates to lower."""

    def __init__(self, what: str, remedy: str = "lower the learning rate") -> None:
        super().__init__(f"{what}: training diverged; {remedy}")
        self.what = what


def unknown(kind: str, name: str, known: Iterable[str], more: str = "") -> FedrecError:
    """The error for a name that is not in a list, with the nearest one offered; `more` is said where none is near."""
    # Below this likeness suggestions are more often silly than helpful.
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    # Names such as `honest,ks=5` contain commas, so the list is separated by something else.
    between = "; " if any("," in name for name in names) else ", "
    hint = f"did you mean '{close[0]}'?" if close else f"known: {between.join(names)}" + (f"; {more}" if more else "")
    return FedrecError(f"unknown {kind} '{name}'; {hint}")


def list_few(names: Iterable[str]) -> str:
    """The first few, short enough for one line."""
    # Both number and length are limited, since names come from data and may be whole sentences.
    return ", ".join(f"{name:.40}" for name in list(names)[:3])


def explain(error: Exception) -> str | None:
    """What went wrong and what to do, for whoever started a program; None where only a developer can mend it."""
    if isinstance(error, FedrecError):
        return str(error)
    if isinstance(error, OSError):
        full = error.errno in FULL
        what_to_do = "free some space or choose another folder" if full else "choose another file or folder"
        return f"{error.filename or 'writing'}: {error.strerror or error}; {what_to_do}"
    # Python raises a plain ValueError here, and only its text tells it from a programming mistake.
    if isinstance(error, ValueError) and "embedded null" in str(error):
        return "a file name contains a null byte; remove it"
    if isinstance(error, MemoryError):
        return f"not enough memory: {error or 'an array is too large'}; use smaller data or parameters"
    if isinstance(error, RuntimeError) and ("allocate memory" in str(error) or "out of memory" in str(error)):
        # Torch has no class of its own for this on the CPU, so its words have to do.
        return f"not enough memory: {str(error).splitlines()[0]}; use smaller data or parameters"
    return None


def reason(error: Exception) -> str:
    """Why a file could not be read or written, without error numbers."""
    return str(getattr(error, "strerror", None) or error)


# Text from data or other people, made safe to show: no character in it controls the terminal.
_COMMANDS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters but tab and line feed; among them ESC and its 8-bit kin
    "\u2028-\u202e\u2066-\u2069"  # line ends, and marks that overrule the direction of writing
    "\ud800-\udfff]"  # halves of characters, which no terminal can show
)


def visible(text: str) -> str:
    r"""With control characters written out, as \x1b; tabs and line feeds stay."""
    return _COMMANDS.sub(lambda found: _write_sign(found[0]), text)


def visible_line(text: str) -> str:
    r"""The same on one line: tabs and line feeds are written out as well, as \t and \n."""
    return visible(text).replace("\t", r"\t").replace("\n", r"\n")


def _write_sign(sign: str) -> str:
    return f"\\x{ord(sign):02x}" if ord(sign) < 0x100 else f"\\u{ord(sign):04x}"
