"""Checks of training: what the negatives give away, and what a client that learns alone makes of it."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from fedrec.data import one_user_per_client
from fedrec.evaluation import Evaluator
from fedrec.experiment.audit.case import QUICK_ROUNDS, Case, noise
from fedrec.experiment.audit.finding import Finding
from fedrec.experiment.params import build_method
from fedrec.federation.contract import World
from fedrec.federation.simulator import Simulator

BAND = 0.2
"""How far the rate may be from the expected one."""
FEWEST = 10.0
"""Expected draws of held-out items below which their absence could be an accident (e^-10 with ten)."""
ERRORS = 4.0
"""Standard errors above chance that still count as chance."""
LOCAL = "local against popularity"


def held_out_negatives(case: Case) -> Finding:
    name, found = "held-out items as training negatives", case.exposure
    figure = {"drawn": found.observed, "expected": found.expected}
    if case.new_items:
        return Finding(name, "n/a", "The held-out items are new and never sampled in training.", figure)
    if found.expected < FEWEST:
        return Finding(name, "n/a", "Too few training negatives to decide; give more rounds.", figure)
    ratio = found.observed / found.expected
    # With few draws chance alone strays further than the band, so three deviations are allowed for.
    slack = max(BAND, 3 / math.sqrt(found.expected))
    times = f"{found.observed:,} times where uniform draws outside the training items would give {found.expected:,.0f}"
    figure = {"ratio": ratio, **figure}
    if ratio < 1 - slack:
        words = f"Users sampled their own held-out items {times}: items never pushed down are found by elimination."
        return Finding(name, "fail", words, figure)
    if ratio > 1 + slack:
        words = f"Users sampled their own held-out items {times}: the draws are not uniform, or aim at them."
        return Finding(name, "warn", words, figure)
    return Finding(name, "pass", f"Users sampled their own held-out items {times}, as often as any other item.", figure)


def counter(case: Case) -> Finding:
    """Ranks items by how seldom the user drew them, without any taste: what exceeds chance comes from the protocol."""
    name, chance, users = "taste-blind counter", case.chance, len(case.targets)
    if chance > 0.5:
        return Finding(name, "n/a", f"With so few candidates chance alone gives {case.metric} {chance:.2f}.")
    curve = case.exposure.curve
    rounds, value = curve[-1]
    # What the tie rule gives away is a finding of its own, and must not be counted here again.
    blind = max(chance, case.recall(case.constant))
    limit = blind + ERRORS * noise(blind, users)
    after = f" after {rounds:,} rounds" if rounds else ""
    words = f"Scoring items by minus the times they were drawn as a training negative gives {case.metric} {value:.3f}"
    near = "near chance" if blind - chance < 1e-6 else f"no more than the tie rule alone gives ({blind:.3f})"
    verdict = near if value <= limit else "without any learning: the negatives reveal the held-out items"
    figure = {case.metric: value, "chance": chance}
    figure |= {f"round {mark}": past for mark, past in curve[:-1] if mark in (1, 10)}
    return Finding(name, "pass" if value <= limit else "fail", f"{words}{after}, {verdict}.", figure)


def local(case: Case) -> Finding:
    """Clients of one user each that exchange nothing: far above popularity, they have been told something."""
    assert case.prepared is not None
    if case.new_items:
        return Finding(LOCAL, "n/a", "The test items are new, so local training learns nothing about them.")
    method = build_method("local", rounds=QUICK_ROUNDS if case.quick else None)
    # One user for each client, for companies could learn from each other's users what this check rules out.
    prepared = dataclasses.replace(case.prepared, partition=one_user_per_client(case.prepared.source.n_users))
    world = World(items=case.n_items, clients=prepared.partition.n_clients)
    simulator = Simulator(method, prepared.clients(world))
    for round in range(method.rounds):
        simulator.round(round)
    judge = Evaluator(case.full, ks=(case.k,), metrics=("recall",))
    for users, scores in simulator.scores(method.rounds - 1):
        judge.update(users, scores)
    alone = judge.result().mean()[f"recall@{case.k}"]
    popular = case.recall(case.popularity, case.full, "expected")
    floor = float(np.minimum(1.0, case.k / case.full.n_candidates).mean())
    # Twice popularity and three errors more: one user's own data may explain a lead, but not that one.
    suspect = alone - 2 * max(popular, floor) > 3 * noise(alone, len(case.full))
    words = (
        f"Local training without exchange reaches {case.metric} {alone:.3f} over all items after {method.rounds} "
        f"rounds, popularity {popular:.3f}"
    )
    end = ": more than twice as much, which one user's data cannot explain." if suspect else "."
    figure = {"local": alone, "popularity": popular, "chance": floor}
    return Finding(LOCAL, "fail" if suspect else "pass", words + end, figure)
