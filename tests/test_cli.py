"""The command line as a person meets it: what it prints, how it fails, and that a failure leaves nothing behind."""

from __future__ import annotations

import json
import os
import random
import re
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import Cli, Outcome

DATA = ("--data", "synthetic@users=40+items=80+interactions=700+seed=1")
RUN = ("run", "fedmf", *DATA, "--rounds", "2", "--set", "dim=4")


def fails(outcome: Outcome, says: str) -> None:
    """Exit code 2, one line on stderr that says what to do, nothing on stdout."""
    assert outcome.code == 2, outcome
    assert outcome.out == ""
    assert outcome.err.count("\n") == 1, outcome.err
    assert outcome.err.startswith("error: ")
    assert re.search(says, outcome.err), outcome.err


# -- commands that work --


def test_version_is_the_package_version(cli: Cli) -> None:
    import fedrec

    assert cli("--version") == (0, f"fedrec {fedrec.__version__}\n", "")


@pytest.mark.parametrize("words", [(), ("data",), ("--help",), ("run", "--help"), ("data", "split", "--help")])
def test_help_is_help_and_not_an_error(cli: Cli, words: tuple[str, ...]) -> None:
    outcome = cli(*words)
    assert (outcome.code, outcome.err) == (0, "")
    assert "Usage: fedrec" in outcome.out
    assert len(outcome.out.splitlines()) > 5


def test_methods_lists_all_with_their_other_names(cli: Cli) -> None:
    from fedrec.methods import methods

    outcome = cli("methods")
    assert outcome.code == 0
    federated, _, references = outcome.out.partition("centralised baselines")
    for method in methods().values():
        listed = references if method.info.centralised else federated
        assert any(line.startswith(method.info.name + " ") for line in listed.splitlines())
        assert all(alias in outcome.out for alias in method.info.aliases)


@pytest.mark.parametrize("name", ["fedmf", "fedadam", "waa", "IM", "fedncf", "ease", "popularity", "mf", "local"])
def test_methods_shows_one_with_its_parameters(cli: Cli, name: str) -> None:
    from fedrec.experiment.params import parameters
    from fedrec.methods import method_class

    outcome = cli("methods", name)
    assert outcome.code == 0
    cls, _ = method_class(name)
    assert outcome.out.startswith(cls.info.name)
    assert all(re.search(rf"^{parameter} ", outcome.out, re.MULTILINE) for parameter in parameters(cls))


def test_data_list_show_get(cli: Cli) -> None:
    listed = cli("data", "list")
    assert listed.code == 0
    assert all(name in listed.out for name in ("ml-100k", "ml-1m", "filmtrust", "synthetic", "missing", "built in"))
    shown = cli("data", "show", DATA[1])
    assert re.search(r"users +40\n", shown.out)
    assert re.search(r"interactions +700\n", shown.out)
    assert re.search(r"licence", shown.out)
    got = cli("data", "get", "synthetic@users=30+items=50")
    assert (got.code, got.err) == (0, "")
    assert "30 users, 50 items" in got.out


def test_data_import_then_run_by_name(cli: Cli, tmp_path: Path) -> None:
    cli("data", "split", DATA[1], "--out", tmp_path / "parts")
    table = (tmp_path / "parts" / "train.csv").read_text().replace("user,item,timestamp", "who,what,when", 1)
    (tmp_path / "mine[1].csv").write_text(table)
    fails(cli("data", "import", "mine[1].csv", "--name", "mine"), "no column for user and item")
    done = cli(
        "data", "import", "mine[1].csv", "--name", "mine", "--user", "who", "--item", "what", "--timestamp", "when"
    )
    assert done.code == 0
    assert "mine[1].csv read as comma-separated" in done.out
    assert "--data mine" in done.out
    ran = cli("run", "popularity", "--data", "mine", "--quiet")
    assert (ran.code, ran.err) == (0, "")
    fails(
        cli("data", "import", "mine[1].csv", "--name", "mine"), "taken; choose another, or import it again with --force"
    )
    fails(cli("data", "import", "mine[1].csv", "--name", "ml-100k"), "belongs to a built-in dataset")
    assert "imported" in next(line for line in cli("data", "list").out.splitlines() if line.startswith("mine "))
    fails(cli("data", "import", "mine[1].csv", "--name", "../up"), "is not a valid name")
    fails(cli("data", "import", "none.csv", "--name", "other"), "no file")
    fails(
        cli("data", "import", "mine[1].csv", "--name", "other", "--user", "nobody", "--item", "what"), "no column 'nob"
    )


def test_data_split_writes_the_parts_and_they_are_a_split(cli: Cli, tmp_path: Path) -> None:
    done = cli("data", "split", DATA[1], "--out", "parts")
    assert done.code == 0
    rows = {name: (tmp_path / "parts" / f"{name}.csv").read_text().splitlines() for name in ("train", "valid", "test")}
    assert {lines[0] for lines in rows.values()} == {"user,item,timestamp"}
    for name, lines in rows.items():
        assert f"{name}.csv {len(lines) - 1:,} rows" in done.out
    ran = cli(
        "run",
        "fedmf",
        "--rounds",
        2,
        "--train",
        "parts/train.csv",
        "--valid",
        "parts/valid.csv",
        "--test",
        "parts/test.csv",
        "--out",
        "r",
        "--json",
    )
    assert ran.code == 0
    whole = cli(*RUN[:4], "--rounds", 2, "--json", "--out", "w")
    assert json.loads(ran.out.splitlines()[-1])["test"] == json.loads(whole.out.splitlines()[-1])["test"]
    small = cli("data", "split", "synthetic@users=50+items=60", "--out", "small")  # k is no matter of a split
    assert small.code == 0


def test_doctor_finds_this_installation_healthy(cli: Cli) -> None:
    outcome = cli("doctor")
    assert outcome.code == 0, outcome.out
    assert "FAIL" not in outcome.out
    assert "pip install 'fedrec[" in outcome.out or "not installed" not in outcome.out


# -- what a run prints --


def test_quiet_prints_only_the_result(cli: Cli) -> None:
    outcome = cli(*RUN, "--quiet")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.startswith("fedmf  synthetic@")
    assert re.search(r"^ndcg@10 +0\.\d{4} +0\.\d{4} +0\.\d{4}", outcome.out, re.MULTILINE)
    assert outcome.out.splitlines()[-1].startswith("run folder: runs/fedmf-synthetic")


def test_without_out_a_free_folder_is_taken(cli: Cli, tmp_path: Path) -> None:
    folders = [cli(*RUN, "--quiet").out.splitlines()[-1].removeprefix("run folder: ") for _ in range(2)]
    assert folders[1] == folders[0] + ".2"
    assert all((tmp_path / folder / "summary.json").is_file() for folder in folders)


def test_json_is_one_object_per_line(cli: Cli, tmp_path: Path) -> None:
    outcome = cli(*RUN, "--json", "--out", "run")
    assert (outcome.code, outcome.err) == (0, "")
    *rounds, last = (json.loads(line) for line in outcome.out.splitlines())
    assert [line["round"] for line in rounds] == [0, 1]
    assert all({"loss", "seconds", "valid"} <= line.keys() for line in rounds)
    assert last.pop("folder") == "run"
    assert last == json.loads((tmp_path / "run" / "summary.json").read_text())


def test_a_leaked_result_says_so_wherever_it_is_read(cli: Cli, tmp_path: Path) -> None:
    outcome = cli(*RUN, "--protocol", "honest,neg_pool=leaked", "--quiet", "--out", "run")
    assert "protocol honest,neg_pool=leaked" in outcome.out
    assert "not honest: training negatives avoid the held-out items" in outcome.out
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["protocol"] == "honest,neg_pool=leaked"
    assert len(summary["leaks"]) == 1
    assert "not honest" not in cli(*RUN, "--quiet").out


def test_notes_reach_a_log_file_too(cli: Cli) -> None:
    """Data without times is split at random; who reads the log of a batch job should learn it."""
    cli("data", "split", DATA[1], "--out", "parts")
    text = Path("parts/train.csv").read_text().splitlines()
    Path("plain.csv").write_text("".join(",".join(line.split(",")[:2]) + "\n" for line in text))
    outcome = cli("run", "popularity", "--data", "plain.csv", "--out", "run")
    assert outcome.code == 0
    assert "note: no times in 'plain.csv': random leave-one-out" in outcome.err
    assert "plain.csv read as comma-separated" in outcome.err


def test_brackets_in_names_are_not_markup(cli: Cli) -> None:
    outcome = cli(*RUN, "--quiet", "--out", "a[/b]")
    assert outcome.code == 0
    assert outcome.out.splitlines()[-1] == "run folder: a[/b]"


def test_several_seeds(cli: Cli, tmp_path: Path) -> None:
    outcome = cli(*RUN, "--seeds", "0,1,2", "--quiet", "--out", "many")
    assert outcome.code == 0
    summaries = [json.loads((tmp_path / "many" / f"seed{s}" / "summary.json").read_text()) for s in range(3)]
    assert [summary["seed"] for summary in summaries] == [0, 1, 2]
    assert len({json.dumps(summary["test"]) for summary in summaries}) == 3
    table = outcome.out[outcome.out.index("3 seeds, test") :]
    for name in ("recall@10", "ndcg@10", "mrr@20", "coverage@5", "novelty@20"):
        values = [summary["test"][name] for summary in summaries]
        mean, std = re.search(rf"^{name} +([\d.]+) +([\d.]+)", table, re.MULTILINE).groups()  # type: ignore[union-attr]
        assert float(mean) == pytest.approx(statistics.mean(values), abs=5.1e-5)
        assert float(std) == pytest.approx(statistics.stdev(values), abs=5.1e-5)
    alone = cli(*RUN, "--seed", 1, "--json", "--out", "alone")
    assert json.loads(alone.out.splitlines()[-1])["test"] == summaries[1]["test"]


@pytest.mark.parametrize("method", ["fedmf", "fedavg", "local"])
@pytest.mark.parametrize("silos", ["4", "4:contiguous", "4:random", "4:taste"])
def test_silos(cli: Cli, tmp_path: Path, method: str, silos: str) -> None:
    outcome = cli("run", method, *DATA, "--rounds", 1, "--set", "dim=4", "--silos", silos, "--json", "--out", "run")
    summary = json.loads(outcome.out.splitlines()[-1])
    assert summary["clients"] == 4
    users = (tmp_path / "run" / "users.csv").read_text().splitlines()[1:]
    assert len(users) == summary["dataset"]["users"]
    assert {line.split(",")[1] for line in users} == {"0", "1", "2", "3"}


def test_participation_trains_that_share(cli: Cli, tmp_path: Path) -> None:
    outcome = cli(*RUN, "--participation", 0.25, "--json", "--out", "run")
    clients = json.loads(outcome.out.splitlines()[-1])["clients"]
    logged = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["clients"] for line in logged] == [clients // 4] * 2


def test_a_budget_is_kept_and_reported(cli: Cli) -> None:
    outcome = cli(*RUN, "--privacy", "clip=1", "--epsilon", 4, "--delta", 1e-5, "--json", "--out", "run")
    privacy = json.loads(outcome.out.splitlines()[-1])["privacy"]
    assert 3.99 < privacy["epsilon"] <= 4
    assert privacy["uploads"] == 2
    assert privacy["delta"] == 1e-5
    told = cli(*RUN, "--privacy", "clip=1", "--epsilon", 4, "--delta", 1e-5, "--quiet")
    assert "privacy: epsilon 4, delta 1e-05 (local: all uploads of one client" in told.out
    assert "not covered: metrics, losses and clients' own state" in told.out
    none = cli(*RUN, "--privacy", "gaussian=0.1", "--quiet")
    assert "privacy: no finite epsilon (uploads are not clipped" in none.out
    little = cli(*RUN, "--privacy", "clip=1,gaussian=0.0001", "--quiet")
    assert re.search(r"privacy: epsilon \d", little.out)


def test_resume_needs_only_the_folder(cli: Cli) -> None:
    first = cli(*RUN, "--seed", 3, "--json", "--out", "run")
    again = cli("run", "--resume", "--out", "run", "--json")
    assert json.loads(again.out.splitlines()[-1])["test"] == json.loads(first.out.splitlines()[-1])["test"]
    longer = cli("run", "--resume", "--out", "run", "--json", "--rounds", 4)
    straight = cli(*RUN[:4], "--set", "dim=4", "--seed", 3, "--rounds", 4, "--json", "--out", "straight")
    assert json.loads(longer.out.splitlines()[-1])["test"] == json.loads(straight.out.splitlines()[-1])["test"]


# -- mistakes --

MISTAKES: dict[str, tuple[tuple[object, ...], str]] = {
    "method": (("run", "fedmff", *DATA), "unknown method 'fedmff'; did you mean 'fedmf'"),
    "no method": (("run", *DATA), "no method given"),
    "dataset": (("run", "fedmf", "--data", "ml-100"), "unknown dataset 'ml-100'; did you mean 'ml-100k'"),
    "version": (("run", "fedmf", "--data", "ml-1m@offical"), "did you mean 'official'"),
    "synthetic option": (("run", "fedmf", "--data", "synthetic@user=9"), "did you mean 'users'"),
    "protocol": ((*RUN, "--protocol", "honst"), "unknown protocol 'honst'; did you mean 'honest'"),
    "protocol field": ((*RUN, "--protocol", "honest,kss=5"), "did you mean 'ks'"),
    "protocol value": ((*RUN, "--protocol", "honest,neg_pool=some"), "legal: honest, leaked"),
    "preset": ((*RUN, "--preset", "papr"), "preset"),
    "backbone": (("run", "fedavg", *DATA, "--backbone", "nfc"), "did you mean 'ncf'"),
    "backbone of one that has none": (("run", "ease", *DATA, "--backbone", "mf"), "backbone of ease"),
    "parameter": ((*RUN, "--set", "dimm=4"), "did you mean 'dim'"),
    "flag": ((*RUN, "--round", "3"), "--rounds"),
    "command": (("trian",), "trian"),
    "setting without value": ((*RUN, "--set", "lr"), "key=value"),
    "setting of the wrong type": ((*RUN, "--set", "lr=fast"), "lr=fast does not fit fedmf: it should be float"),
    "whole number": ((*RUN, "--set", "epochs=2.5"), "it should be int"),
    "choice": ((*RUN, "--set", "optimiser=adma"), "sgd | adam"),
    "not a number": ((*RUN, "--set", "lr=nan"), "it should be finite"),
    "no dimensions": ((*RUN[:6], "--set", "dim=0"), "at least 1"),
    "empty batches": ((*RUN, "--set", "batch=0"), "at least 1"),
    "no epochs": ((*RUN, "--set", "epochs=-1"), "at least 1"),
    "rounds by --set": ((*RUN[:4], "--set", "rounds=0"), "at least 1"),
    "rounds": ((*RUN[:4], "--rounds", "0"), "rounds 0 must be at least 1"),
    "rounds in words": ((*RUN[:4], "--rounds", "many"), "--rounds"),
    "seed": ((*RUN, "--seed", "-1"), "seed -1"),
    "seeds": ((*RUN, "--seeds", "0,x"), "write integers"),
    "a bad seed among good ones": ((*RUN, "--seeds", "0,-1"), "seed -1"),
    "a seed twice": ((*RUN, "--seeds", "0,1,0"), "--seeds 0,1,0: seed 0 is given twice; keep one"),
    "rounds twice": (
        (*RUN[:4], "--rounds", "4", "--set", "rounds=3"),
        "--rounds and --set rounds say the same; keep one of them",
    ),
    "a setting twice": ((*RUN, "--set", "lr=1", "--set", " dim=8"), "--set dim is given twice; keep one"),
    "seed and seeds": ((*RUN, "--seed", "0", "--seeds", "0,1"), "not both"),
    "participation 0": ((*RUN, "--participation", "0"), r"participation 0.0 is not in \(0, 1\]"),
    "participation 2": ((*RUN, "--participation", "2"), r"participation 2.0 is not in \(0, 1\]"),
    "participation nan": ((*RUN, "--participation", "nan"), "participation nan"),
    "eval-every": ((*RUN, "--eval-every", "0"), "eval-every 0"),
    "patience": ((*RUN, "--patience", "0"), "patience 0"),
    "silos": ((*RUN, "--silos", "many"), "K:taste"),
    "no silos": ((*RUN, "--silos", "0"), "0 silos"),
    "too many silos": ((*RUN, "--silos", "4000"), "4000 silos"),
    "way of silos": ((*RUN, "--silos", "4:tast"), "did you mean 'taste'"),
    "memory": ((*RUN, "--memory", "lots"), "e.g. 8G"),
    "device": ((*RUN, "--device", "tpu"), "cpu or cuda"),
    "stage": ((*RUN, "--privacy", "clpi=1"), "did you mean 'clip'"),
    "stage without number": ((*RUN, "--privacy", "clip"), "clip=1"),
    "negative noise": ((*RUN, "--privacy", "gaussian=-1"), "must be positive"),
    "epsilon without clip": ((*RUN, "--epsilon", "1", "--delta", "1e-5"), "clip=1"),
    "epsilon without delta": ((*RUN, "--epsilon", "1", "--privacy", "clip=1"), "--delta"),
    "epsilon nan": ((*RUN, "--epsilon", "nan", "--delta", "1e-5", "--privacy", "clip=1"), "positive"),
    "delta": ((*RUN, "--delta", "5", "--privacy", "clip=1,gaussian=1"), "delta 5.0"),
    "delta of nothing": ((*RUN, "--delta", "1e-5"), "--delta alone protects nothing; add --privacy"),
    "k": ((*RUN, "--protocol", "honest,ks=10+5000"), "k = 5000 is too large"),
    "k that selection lacks": ((*RUN, "--protocol", "honest,ks=5"), "select_metric=ndcg@5"),
    "min_interactions": ((*RUN, "--protocol", "honest,min_interactions=9999"), "9999 different items"),
    "half a split": ((*RUN, "--train", "none.csv"), "--train and --test together"),
    "missing parts": (("run", "fedmf", "--train", "a.csv", "--test", "b.csv"), "no file a.csv"),
    "missing file": (("run", "fedmf", "--data", "none.csv"), "no file none.csv"),
    "folder as file": (("run", "fedmf", "--data", "./"), r"\. is a folder"),
    "missing config": ((*RUN, "--config", "none.toml"), "none.toml"),
    "resume without folder": ((*RUN, "--resume"), "--out"),
    "name too long": ((*RUN, "--out", "x" * 5000), "too long"),
    "show": (("data", "show", "none.csv"), "no file"),
    "get": (("data", "get", "ml-10m"), "did you mean 'ml-1"),
    "split protocol": (("data", "split", DATA[1], "--out", "parts", "--protocol", "hones"), "did you mean 'honest'"),
    "methods": (("methods", "fedmff"), "did you mean 'fedmf'"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_line_and_leaves_nothing(cli: Cli, tmp_path: Path, name: str) -> None:
    words, says = MISTAKES[name]
    out = () if "--out" in words or words[0] != "run" or "--resume" in words else ("--out", "run")
    fails(cli(*words, *out), says)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is empty"),
        (b"\n\n", "is empty"),
        (bytes(range(256)) * 20, "not a text file|not UTF-8"),
        (b"\xff\xfe\xfa user,item", "save the file as UTF-8"),
        (b"user,price\n1,2\n2,3\n", "no column for item"),
        (b"user,item\n", "no interactions"),
        (b"user,item,rating\n1,2,good\n1,3,4\n", "line 2"),
        (b"user,item\n1,2\n1,3,4,5\n", "line 3"),
        (b"user,item\n1,2\n1,3\n", "10 different items"),
    ],
)
@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_file_that_is_no_table(cli: Cli, tmp_path: Path, content: bytes, says: str, suffix: str) -> None:
    (tmp_path / f"bad.{suffix}").write_bytes(content)
    fails(cli("run", "fedmf", "--data", f"bad.{suffix}", "--out", "run"), says if suffix == "csv" else "Parquet")
    assert [path.name for path in tmp_path.iterdir()] == [f"bad.{suffix}"]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("roundz = 3", "did you mean 'rounds'"),
        ('rounds = "3"', "rounds = '3' has the wrong type; it should be int"),
        ("rounds = 2.5", "wrong type"),
        ("rounds = true", "wrong type"),
        ("method = 3", "it should be str"),
        ('params = "dim"', "wrong type"),
        ("params = 3", "wrong type"),
        ("[params]\ndimm = 3", "did you mean 'dim'"),
        ("[params]\ndim = [3]", "it should be int"),
        ("rounds = ", "not valid TOML"),
        ("\x00", "not valid TOML"),
    ],
)
def test_a_bad_config_file(cli: Cli, tmp_path: Path, content: str, says: str) -> None:
    (tmp_path / "c.toml").write_text(content)
    fails(cli("run", "fedmf", *DATA, "--config", "c.toml", "--out", "run"), says)
    assert [path.name for path in tmp_path.iterdir()] == ["c.toml"]


def test_an_existing_run_is_never_overwritten(cli: Cli, tmp_path: Path) -> None:
    assert cli(*RUN, "--quiet", "--out", "run").code == 0
    assert cli(*RUN, "--quiet", "--out", "many/seed1").code == 0
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    fails(cli(*RUN, "--quiet", "--out", "run"), "already holds a run; continue it with --resume")
    fails(cli(*RUN, "--quiet", "--out", "many", "--seeds", "0,1"), "already holds a run")
    fails(cli(*RUN, "--quiet", "--out", "run", "--resume", "--seed", 5), r"other settings \(seed\)")
    fails(cli("run", "local", "--quiet", "--out", "run", "--resume"), r"other settings \(method\)")
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("how", ["truncated", "overwritten", "foreign"])
def test_a_broken_checkpoint(cli: Cli, tmp_path: Path, how: str) -> None:
    cli(*RUN, "--quiet", "--out", "run")
    last = tmp_path / "run" / "last.safetensors"
    content = last.read_bytes()
    last.write_bytes({"truncated": content[:-50], "overwritten": content[:-50] + bytes(50), "foreign": b"PK" * 99}[how])
    fails(cli("run", "--quiet", "--out", "run", "--resume"), "last.safetensors is damaged or not a fedrec checkpoint")


def test_a_file_where_the_folder_should_be(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for out in ("file", "file/below"):
        fails(cli(*RUN, "--quiet", "--out", out), "cannot write to file")
        fails(cli("data", "split", DATA[1], "--out", out), "cannot write file|file: Not a directory")
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "locked").mkdir(mode=0o500)
    fails(cli(*RUN, "--quiet", "--out", "locked/run"), "cannot write to locked/run")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_results_can_be_read_without_what_tells_of_single_users(cli: Cli, tmp_path: Path) -> None:
    """As whoever is not the owner of a run finds it."""
    assert cli(*RUN, "--quiet", "--out", "run").code == 0
    for name in ("checkpoint.safetensors", "last.safetensors", "prepared.npz", "per_user.csv", "users.csv"):
        (tmp_path / "run" / name).chmod(0)
    assert cli("compare", "run", "--no-references", "--no-significance").code == 0
    assert cli("report", "run", "--out", "page.html").code == 0
    fails(cli("recommend", "run", "--user", "3"), "checkpoint.safetensors: Permission denied; only the owner of a run")


def test_a_disk_that_fills_up(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    from fedrec.experiment.folder import RunFolder

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device", "run/metrics.jsonl")

    monkeypatch.setattr(RunFolder, "log", full)
    fails(cli(*RUN, "--quiet", "--out", "run"), "metrics.jsonl: No space left on device; free some space")


def test_training_that_diverges(cli: Cli) -> None:
    fails(cli(*RUN, "--quiet", "--set", "lr=1e30", "--out", "run"), r"diverged; lower the learning rate \(lr=1e\+30\)")


def test_cuda_without_cuda(cli: Cli, tmp_path: Path) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    fails(cli(*RUN, "--device", "cuda", "--out", "run"), "use --device cpu")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["filmtrust", "amazon-video"])
def test_a_dataset_that_is_not_here_without_network(cli: Cli, tmp_path: Path, name: str) -> None:
    fails(cli("run", "fedmf", "--data", name, "--out", "run"), f"the files of {name} are missing: put")
    fails(cli("data", "get", name), f"the files of {name} are missing: put")
    assert [path for path in tmp_path.rglob("*") if path != tmp_path / "cache"] == []


# -- a real process --


def test_the_installed_command_and_a_closed_pipe(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "from fedrec.cli import main; main()"]
    process = subprocess.Popen([*command, "methods"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path)
    assert process.stdout is not None
    process.stdout.close()  # as in `fedrec methods | head -0`
    assert process.stderr is not None
    assert process.stderr.read() == b""
    assert process.wait() in (0, 1)


def test_ids_are_printed_as_they_are(cli: Cli, tmp_path: Path) -> None:
    """An id is a name, not a quantity: no comma for thousands."""
    rng = random.Random(0)
    rows = {(user, item) for user in range(5001, 5031) for item in rng.sample(range(1000, 1080), 15)}
    (tmp_path / "d.csv").write_text("user,item\n" + "".join(f"{user},{item}\n" for user, item in sorted(rows)))
    assert cli("run", "popularity", "--data", "d.csv", "--quiet", "--out", "run").code == 0
    outcome = cli("recommend", "run", "--user", "5001", "-k", 3)
    assert outcome.code == 0, outcome
    assert all(re.match(r"5001 +\d +10\d\d ", line) for line in outcome.out.splitlines()[1:4]), outcome.out


SMALL = "synthetic@users=50+items=150"


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["ease", "--privacy", "clip=1"], "is centralised and uploads nothing"),
        (["mf", "--epsilon", "8"], "is centralised and uploads nothing"),
        (["perfedrec", "--set", "clusters=0"], "at least 1"),
        (["fedca", "--set", "components=500"], "components"),
        (["fedfast", "--backbone", "sasrec", "--set", "user_propagation=true"], "user vectors"),
        (["fedavg", "--backbone", "sasrec", "--set", "loss=ce"], "loss=ce does not fit fedavg: it should be bce | bpr"),
        (["fedca", "--rounds", "1", "--set", "lr=1e30"], "lower the learning rate"),
    ],
)
def test_settings_that_cannot_work_are_one_line(cli: Cli, tmp_path: Path, words: list[str], answer: str) -> None:
    outcome = cli("run", *words, "--data", SMALL, "--quiet", "--out", tmp_path / "run")
    assert outcome.code == 2
    assert answer in outcome.err
    assert outcome.err.count("\n") == 1


def test_resuming_nothing_and_for_fewer_rounds_is_refused(cli: Cli, tmp_path: Path) -> None:
    assert "no run to resume" in cli("run", "--resume", "--out", tmp_path / "none").err
    folder = tmp_path / "run"
    assert cli("run", "fedmf", "--data", SMALL, "--rounds", "2", "--quiet", "--out", folder).code == 0
    before = (folder / "config.toml").read_text()
    outcome = cli("run", "--resume", "--out", folder, "--rounds", "1")
    assert outcome.code == 2
    assert "has 2 rounds already" in outcome.err
    assert (folder / "config.toml").read_text() == before


def test_noise_without_a_guarantee_can_be_compared(cli: Cli, tmp_path: Path) -> None:
    """Where no epsilon follows there is no delta either."""
    words = ("run", "fedmf", "--data", SMALL, "--rounds", "1", "--privacy", "laplace=0.1", "--quiet")
    outcome = cli(*words, "--out", tmp_path / "run")
    assert outcome.code == 0
    assert "damaged" not in outcome.err
    assert (tmp_path / "run" / "report.html").is_file()
    assert cli("compare", tmp_path / "run", "--no-references").code == 0
