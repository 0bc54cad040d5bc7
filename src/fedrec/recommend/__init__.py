"""Recommendations out of a finished run or a fitted model: for one user, for everybody, for somebody new."""

from fedrec.data.attributes import Arrival
from fedrec.recommend.reading import read_arrivals, read_history, read_ids
from fedrec.recommend.recommender import Folded, NotKnown, Recommendation, Recommender, Similar

__all__ = [
    "Arrival",
    "Folded",
    "NotKnown",
    "Recommendation",
    "Recommender",
    "Similar",
    "read_arrivals",
    "read_history",
    "read_ids",
]
