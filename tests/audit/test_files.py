"""Other people's files: a clean set passes, and every planted fault is found by the check that is meant to find it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from audit import planted
from conftest import Cli
from fedrec.errors import FedrecError
from fedrec.experiment.audit import Report, audit, from_files
from fedrec.experiment.audit.leak import CHECKS

FAULTS = [
    (planted.train_pair_in_test, "split overlap", "fail"),
    (planted.repeated_negative, "repeated evaluation negatives", "fail"),
    (planted.positive_among_negatives, "positives among evaluation negatives", "fail"),
    (planted.test_item_in_its_negatives, "test item among its negatives", "fail"),
    (planted.nan_score, "finite scores", "fail"),
    (planted.infinite_score, "finite scores", "fail"),
    (planted.constant_scores, "tied scores", "fail"),
    (planted.saturated_scores, "tied scores", "fail"),
    (planted.validation_is_test, "split overlap", "fail"),
    (planted.own_future, "own future in training", "fail"),
    (planted.new_items_in_test, "items never trained", "warn"),
    (planted.new_users_in_test, "users never trained", "warn"),
]


def audited(files: planted.Files, folder: Path, *names: str) -> Report:
    paths = files.write(folder)
    return audit(from_files(**{name: paths[name] for name in names or paths}))


def statuses(report: Report, *wanted: str) -> dict[str, str]:
    return {finding.name: finding.status for finding in report.findings if finding.status in wanted}


def test_a_clean_set_passes(tmp_path: Path) -> None:
    report = audited(planted.clean(), tmp_path)
    assert not report.has_failed
    assert statuses(report, "fail", "warn") == {"sampled candidates": "warn"}
    rate = report["held-out items as training negatives"].figure["ratio"]
    assert 0.8 < rate < 1.2
    assert report["tied scores"].figure["best"] == report["tied scores"].figure["worst"]


@pytest.mark.parametrize(("spoil", "check", "status"), FAULTS, ids=lambda value: getattr(value, "__name__", None))
def test_a_planted_fault_is_found_and_blamed_on_nothing_else(
    tmp_path: Path, spoil: planted.Spoil, check: str, status: str
) -> None:
    files = planted.clean()
    spoil(files)
    report = audited(files, tmp_path)
    assert report[check].status == status
    assert report.has_failed == (status == "fail")
    assert set(statuses(report, "fail")) <= {check}
    assert any(value > 0 for value in report[check].figure.values())


def test_the_span_of_the_tie_rules_is_exact(tmp_path: Path) -> None:
    """Constant scores: the held-out item is anywhere among its 187 scored candidates."""
    files = planted.clean()
    planted.constant_scores(files)
    figure = audited(files, tmp_path)["tied scores"].figure
    assert figure == {"worst": 0.0, "expected": pytest.approx(10 / 187), "best": 1.0}


def test_training_negatives_that_avoid_held_out_items_are_found(tmp_path: Path) -> None:
    report = audited(planted.clean(leaky=True), tmp_path)
    assert set(statuses(report, "fail")) == {"held-out items as training negatives", "taste-blind counter"}
    assert report["held-out items as training negatives"].figure["drawn"] == 0
    assert report["taste-blind counter"].figure["hr@10"] > 0.5


def test_a_few_leaky_users_are_not_found_but_half_of_them_are(tmp_path: Path) -> None:
    """The rate has a band of 0.2: the limit of what it can see is written down here."""
    whole, leaky = planted.clean(), planted.clean(leaky=True)
    for users, status in ((3, "pass"), (planted.USERS // 2, "fail")):
        names = {f"u{user}" for user in range(users)}
        mixed = [row for row in leaky.train_negatives if row[0] in names]
        mixed += [row for row in whole.train_negatives if row[0] not in names]
        files = planted.clean()
        files.train_negatives = mixed
        assert audited(files, tmp_path)["held-out items as training negatives"].status == status


def test_too_few_draws_are_no_verdict(tmp_path: Path) -> None:
    files = planted.clean(leaky=True)
    files.train_negatives = files.train_negatives[:100]
    assert audited(files, tmp_path)["held-out items as training negatives"].status == "n/a"


def test_what_is_not_given_is_said_and_not_failed(tmp_path: Path) -> None:
    report = audited(planted.clean(), tmp_path, "train", "test")
    assert not report.has_failed
    assert len(report.findings) == len(CHECKS)
    assert report["tied scores"].sentence == "No --scores were given."
    assert report["taste-blind counter"].sentence == "No --train-negatives were given."
    assert report["repeated evaluation negatives"].sentence == "No --negatives were given."
    assert "no protocol" in report["selection on test"].sentence


def test_without_times_there_is_no_verdict_on_time(tmp_path: Path) -> None:
    files = planted.clean()
    paths = files.write(tmp_path)
    for name in ("train", "valid", "test"):
        rows = [",".join(map(str, row[:2])) for row in getattr(files, name)]
        Path(paths[name]).write_text("\n".join(["user,item", *rows]) + "\n")
    report = audit(from_files(paths["train"], paths["test"], paths["valid"]))
    assert report["own future in training"].status == "n/a"
    assert "no times" in report["others' future in training"].sentence


def test_others_future_is_a_warning_with_its_share(tmp_path: Path) -> None:
    files = planted.clean()
    files.test = [(user, item, 300 if n % 2 else 150) for n, (user, item, _) in enumerate(files.test)]
    files.train = [(user, item, min(int(str(time)), 140)) for user, item, time in files.train]
    files.train += [("late", 0, 200)]
    finding = audited(files, tmp_path)["others' future in training"]
    assert finding.status == "warn"
    assert finding.figure["share"] == pytest.approx(0.5)


def test_numbers_and_text_are_the_same_ids(tmp_path: Path) -> None:
    """Items are numbers in one file; a word in another file must not part them."""
    files = planted.clean()
    files.train.append(("u0", "word", 120))
    assert not audited(files, tmp_path).has_failed


def test_the_command_prints_every_check_and_exits_by_the_verdict(cli: Cli, tmp_path: Path) -> None:
    for leaky in (False, True):
        paths = planted.clean(leaky).write(tmp_path)
        flags = [word for name, path in paths.items() for word in (f"--{name.replace('_', '-')}", path)]
        outcome = cli("audit", "leak", *flags)
        assert outcome.code == int(leaky)
        assert all(check.name in outcome.out for check in CHECKS)
        found = json.loads(cli("audit", "leak", *flags, "--json").out)
        assert found["failed"] == leaky
        assert [finding["name"] for finding in found["findings"]] == [check.name for check in CHECKS]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "say what to audit"),
        (("--train", "train.csv"), "needs both parts"),
        (("--data", "synthetic", "--train", "train.csv", "--test", "test.csv"), "say what to audit"),
        (("--train", "train.csv", "--test", "none.csv"), "no file none.csv"),
        (("--train", "train.csv", "--test", "test.csv", "--scores", "none.csv"), "no file none.csv"),
        (("--train", "train.csv", "--test", "test.csv", "--scores", "test.csv"), "no column for score"),
        (("--data", "synthetic", "--protocol", "honets"), "did you mean 'honest'"),
        (("--data", "synthetic", "--rounds", "0"), "rounds"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(cli: Cli, tmp_path: Path, words: tuple[str, ...], says: str) -> None:
    planted.clean().write(tmp_path)
    outcome = cli("audit", "leak", *words)
    assert outcome.code == 2
    assert outcome.err.count("\n") == 1
    assert says in outcome.err


def test_scores_need_numbers_that_can_be_read(tmp_path: Path) -> None:
    files = planted.clean()
    paths = files.write(tmp_path)
    Path(paths["scores"]).write_text("user,item\nu0,1\n")
    with pytest.raises(FedrecError, match="no column for score"):
        from_files(paths["train"], paths["test"], scores=paths["scores"])
    Path(paths["scores"]).write_text("user,item,score\nu0,1,\nu0,2,0.5\nu0,3,abc\n")
    with pytest.raises(FedrecError, match=r"line 4, column score: 'abc' is not a number"):
        from_files(paths["train"], paths["test"], scores=paths["scores"])
