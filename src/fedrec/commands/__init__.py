"""What the command line does. What commands of other packages may use of it is named here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedrec.plugins import lazily

if TYPE_CHECKING:
    from fedrec.commands import console
    from fedrec.commands.deploy import ended_by_signals
    from fedrec.commands.own_report import run_and_report
    from fedrec.commands.run_flags import parse_seeds, split_words
else:
    __getattr__, __dir__ = lazily(
        __name__,
        {
            "fedrec.commands.console": ["console"],
            "fedrec.commands.deploy": ["ended_by_signals"],
            "fedrec.commands.own_report": ["run_and_report"],
            "fedrec.commands.run_flags": ["parse_seeds", "split_words"],
        },
    )

__all__ = ["console", "ended_by_signals", "parse_seeds", "run_and_report", "split_words"]
