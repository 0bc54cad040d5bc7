"""A tracker that writes down the rounds that took more than twice as long as the median of those before."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any


class SlowRounds:
    """Made with the run folder; hears the settings, every round, and the end."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "slow_rounds.txt"
        self.seconds: list[float] = []

    def begin(self, settings: Mapping[str, Any]) -> None:
        self.path.write_text(f"{settings['method']} on {settings['data']}\n", encoding="utf-8")

    def log(self, values: Mapping[str, float], round: int) -> None:
        if self.seconds and values["seconds"] > 2 * median(self.seconds):
            with self.path.open("a", encoding="utf-8") as file:
                file.write(f"round {round}: {values['seconds']:.3f} s\n")
        self.seconds.append(values["seconds"])

    def end(self, results: Mapping[str, float]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(f"{len(self.seconds)} rounds, {'finished' if results else 'interrupted'}\n")
