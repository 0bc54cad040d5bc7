"""Advice on which method to take for some data: what is tried, how, and what is said about it."""

from fedrec.experiment.advise.advice import Advice, advise
from fedrec.experiment.advise.attempts import Attempt
from fedrec.experiment.advise.shortlist import Candidate, Wishes, candidates

__all__ = ["Advice", "Attempt", "Candidate", "Wishes", "advise", "candidates"]
