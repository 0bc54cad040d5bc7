"""What the ratings of a user's own file are taken for."""

from __future__ import annotations

from fedrec.data.interactions import Interactions


def ratings_note(data: Interactions, min_rating: float | None = None) -> list[str]:
    """One sentence where a file of the user's own has ratings, else none."""
    if data.rating is None or not data.guessed or not len(data):
        return []
    least, most = float(data.rating.min()), float(data.rating.max())
    if min_rating is not None:
        return [
            f"ratings go from {least:g} to {most:g}: from {min_rating:g} on they count as positive interactions; "
            "the others are neither trained on nor recommended again"
        ]
    every = "every one" if least > 0 else "every one above 0"
    return [
        f"ratings go from {least:g} to {most:g} and {every} counts as a positive interaction, whatever its value; "
        f"to count only high ones, add e.g. --min-rating {least + 0.75 * (most - least):g}"
    ]
