"""Checks of the evaluation: candidates, ties, selection, scores that are not finite."""

from __future__ import annotations

import numpy as np
import torch

from fedrec.errors import FedrecError
from fedrec.evaluation.targets import Ints, pair_keys
from fedrec.experiment.audit.case import Case
from fedrec.experiment.audit.finding import Finding, share_text
from fedrec.experiment.audit.scored import spread
from fedrec.federation.clients import ClientData, Histories
from fedrec.federation.contract import World

MOST_SPREAD = 0.01
"""How much of a metric may depend on the tie rule; published differences between methods are often about a point."""


def selection(case: Case) -> Finding:
    assert case.protocol is not None
    on = case.protocol.select_on
    words = f"The reported round is chosen by {case.protocol.select_metric} on {on}"
    end = ", so the reported figure is a maximum over rounds, not an estimate." if on == "test" else "."
    return Finding("selection on test", "fail" if on == "test" else "pass", words + end)


def constant_scorer(case: Case) -> Finding:
    value, chance = case.recall(case.constant), case.chance
    fine = abs(value - chance) < 1e-6
    words = f"A scorer that gives every item the same score gets {case.metric} {value:.3f} with ties={case.ties}"
    end = "which is chance." if fine else f"where chance is {chance:.3f}: metrics under ties are not comparable."
    figure = {case.metric: value, "chance": chance}
    return Finding("constant scorer", "pass" if fine else "fail", f"{words}, {end}", figure)


def nan_scores(case: Case) -> Finding:
    broken = torch.full((1, 1), torch.nan)
    try:
        case.recall(lambda users: broken.expand(len(users), case.n_items))
    except FedrecError:
        return Finding("NaN scores", "pass", "Scores that are not finite stop the evaluation.")
    return Finding("NaN scores", "fail", "Scores that are not finite were ranked: a diverged model looks merely bad.")


def finite_scores(case: Case) -> Finding:
    assert case.scores is not None
    bad = int((~np.isfinite(case.scores.score)).sum())
    words = f"{bad:,} of {len(case.scores.score):,} scores are NaN or infinite"
    end = ": where they rank depends on the sort, and a diverged model looks merely bad." if bad else "."
    return Finding("finite scores", "fail" if bad else "pass", words + end, {"not finite": bad})


def check_ties(case: Case) -> Finding:
    """The given scores ranked three ways: ties against the held-out item, at random, and in its favour."""
    assert case.scores is not None
    name = "tied scores"
    if not case.scores.finite:
        return Finding(name, "n/a", "Some scores are not finite; fix them first.")
    found = spread(case, case.scores)
    if found is None:
        return Finding(name, "n/a", "No test item has a score.")
    loose = found.best - found.worst > MOST_SPREAD
    words = f"The {case.metric} of these scores lies between {found.worst:.3f} and {found.best:.3f}, by the tie rule"
    end = f": state expected ranks ({found.expected:.3f}) and rank logits." if loose else "."
    words += f"; {share_text(1 - found.covered).lower()} of the test items have no score" if found.covered < 1 else ""
    figure = {"worst": found.worst, "expected": found.expected, "best": found.best}
    return Finding(name, "fail" if loose else "pass", words + end, figure)


def check_repetitions(case: Case) -> Finding:
    assert case.negatives is not None
    total = len(case.negatives[0])
    count = total - len(pair_keys([case.negatives], case.n_items))
    words = f"{count:,} of {total:,} evaluation negatives repeat an item of the same user"
    end = ": the list is shorter than it looks." if count else "."
    return Finding("repeated evaluation negatives", "fail" if count else "pass", words + end, {"repeated": count})


def check_candidates(case: Case) -> Finding:
    assert case.negatives is not None
    drawn = pair_keys([case.negatives], case.n_items)
    known = np.intersect1d(drawn, case.keys("train", "valid"), assume_unique=True)
    count = int(np.setdiff1d(known, case.keys("test"), assume_unique=True).size)
    words = f"{count:,} evaluation negatives are training or validation items of their own user"
    end = ": a good model is penalised for ranking them high." if count else "."
    return Finding("positives among evaluation negatives", "fail" if count else "pass", words + end, {"known": count})


def own_item_candidates(case: Case) -> Finding:
    assert case.negatives is not None
    drawn = pair_keys([case.negatives], case.n_items)
    count = int(np.intersect1d(drawn, case.keys("test"), assume_unique=True).size)
    words = f"{count:,} test items are also among their own user's evaluation negatives"
    end = ": they compete with themselves." if count else "."
    return Finding("test item among its negatives", "fail" if count else "pass", words + end, {"test items": count})


def masks(case: Case) -> Finding:
    """Under full ranking, items that a user is known to have must not be candidates."""
    targets = case.targets
    if targets.candidates is not None:
        return Finding("masks", "n/a", "Candidates are sampled, so there is nothing to mask.")
    rows = np.repeat(targets.users, np.diff(targets.mask_indptr))
    masked = pair_keys([(rows, targets.mask_items)], case.n_items)
    known = case.keys("train", "valid")
    known = known[np.isin(known // case.n_items, targets.users)]
    if targets.catalogue is not None:
        known = known[np.isin(known % case.n_items, targets.catalogue)]
    count = int(np.setdiff1d(known, masked, assume_unique=True).size)
    words = f"{count:,} training or validation items of evaluated users are ranked against the test items"
    return Finding("masks", "fail" if count else "pass", words + ".", {"not masked": count})


def validation_masks(case: Case) -> Finding:
    """A test item that is not a candidate at validation tells the selection of the round which items are tested."""
    name, targets = "test items at validation", case.validation
    assert targets is not None
    test = case.keys("test")
    test = np.setdiff1d(test[np.isin(test // case.n_items, targets.users)], case.keys("train", "valid"))
    if case.new_items or not test.size:
        return Finding(name, "n/a", "Test items could not be validation candidates anyway.")
    rows = np.repeat(targets.users, np.diff(targets.mask_indptr))
    hidden = np.isin(test, pair_keys([(rows, targets.mask_items)], case.n_items))
    count = int(hidden.sum())
    words = f"{count:,} of {test.size:,} test items are excluded from the candidates of their own user's validation"
    end = ": knowledge of the test items enters the choice of the round." if count else "."
    return Finding(name, "fail" if count else "pass", words + end, {"kept out": count})


def histories(case: Case) -> Finding:
    """Validation scores use training items alone; test scores use no test item."""
    assert case.prepared is not None
    name, prepared = "histories used for scoring", case.prepared
    data = prepared.clients(World(items=prepared.n_trained, clients=prepared.partition.n_clients))
    known = prepared.known_at_test(data)
    trained, at_test = (
        _keys(data, history, case.n_items) for history in (data.training_histories, known or data.training_histories)
    )
    early = int(np.setdiff1d(np.intersect1d(trained, case.keys("valid", "test")), case.keys("train")).size)
    tested = int(np.intersect1d(at_test, case.keys("test")).size)
    more = int(np.setdiff1d(at_test, trained).size)
    words = (
        f"At validation users are scored from their training items and {early:,} held-out ones, at test from {more:,} "
        f"more, {tested:,} of which are tested"
    )
    fine = early == tested == 0
    end = "." if fine else ": the answer is part of the input."
    figure = {"held-out at validation": early, "more at test": more, "tested at test": tested}
    return Finding(name, "pass" if fine else "fail", words + end, figure)


def _keys(data: ClientData, history: Histories, n_items: int) -> Ints:
    user = np.repeat(data.users, np.diff(history.ptr))
    return pair_keys([(user, history.items)], n_items)


def check_sampling(case: Case) -> Finding:
    """The same ranking, by popularity, among the candidates and among all items."""
    whole = case.recall(case.popularity, case.full, "expected")
    if case.negatives is None:
        words = f"Test items are ranked among all items (popularity: {case.metric} {whole:.3f})."
        return Finding("sampled candidates", "pass", words, {"full": whole})
    value, count = case.recall(case.popularity), float(np.mean(case.candidates))
    words = (
        f"Popularity gets {case.metric} {value:.3f} among {count:.0f} candidates and {whole:.3f} among all items: "
        "sampled figures are not comparable with full ones and need not keep the order of methods."
    )
    return Finding("sampled candidates", "warn", words, {"sampled": value, "full": whole})
