"""The command line: parse, call, print."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from fedrec.commands.catalogue import methods_command, protocols_command
from fedrec.commands.data import data_app
from fedrec.errors import FedrecError, FedrecWarning, explained
from fedrec.version import __version__
from fedrec.visible import visible, visible_line

if TYPE_CHECKING:
    from fedrec.recommend import Recommendation

UsageProblem: Any = typer.BadParameter.__mro__[2]  # ClickException of whichever click this typer carries

LONGEST_MESSAGE = 1_500
USUAL_WARNING = warnings.showwarning

app = typer.Typer(
    help="Federated recommendation: train, evaluate honestly, compare.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    add_completion=False,
)
app.add_typer(data_app, name="data")
audit_app = typer.Typer(help="Audits: leak.", no_args_is_help=True)
app.add_typer(audit_app, name="audit")


def _version(value: bool) -> None:
    if value:
        print(f"fedrec {__version__}")
        raise typer.Exit


@app.callback()
def _root(version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True)] = False) -> None:
    pass


@app.command("run")
def run_command(
    method: Annotated[str | None, typer.Argument(help="See `fedrec methods`.")] = None,
    data: Annotated[str | None, typer.Option(help="Dataset name or file; see `fedrec data list`.")] = None,
    protocol: Annotated[str | None, typer.Option(help="See `fedrec protocols`; name,field=value to override.")] = None,
    backbone: Annotated[str | None, typer.Option(help="Model inside the method, e.g. mf or ncf.")] = None,
    preset: Annotated[str | None, typer.Option(help="Named parameter set of the method.")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="Method parameter, key=value; repeatable.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Communication rounds.")] = None,
    seed: Annotated[int | None, typer.Option(help="One seed.")] = None,
    seeds: Annotated[str | None, typer.Option(help="Several seeds, e.g. 0,1,2: one run each.")] = None,
    silos: Annotated[str | None, typer.Option(help="K[:contiguous|random|taste]; default one user per client.")] = None,
    participation: Annotated[float | None, typer.Option(help="Share of clients per round.")] = None,
    dropout: Annotated[float | None, typer.Option(help="Share of uploads lost on their way, simulated.")] = None,
    eval_every: Annotated[int | None, typer.Option(help="Evaluate every N rounds.")] = None,
    patience: Annotated[int | None, typer.Option(help="Stop after N evaluations without improvement.")] = None,
    privacy: Annotated[str | None, typer.Option(help='Stages on uploads, e.g. "clip=1,gaussian=0.1".')] = None,
    epsilon: Annotated[float | None, typer.Option(help="Choose noise for this budget (needs clip, --delta).")] = None,
    delta: Annotated[float | None, typer.Option(help="Delta of the budget.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda.")] = None,
    memory: Annotated[str | None, typer.Option(help="Memory budget, e.g. 8G.")] = None,
    config: Annotated[Path | None, typer.Option(help="TOML file with the same keys; flags win.")] = None,
    out: Annotated[Path | None, typer.Option(help="Run folder, or that around all --seeds; default runs/...")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run, or the seeds, in --out.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress, only the result.")] = False,
    json_: Annotated[bool, typer.Option("--json", help="Progress and result as JSON lines.")] = False,
    train: Annotated[str | None, typer.Option(help="Your own split: training file.")] = None,
    valid: Annotated[str | None, typer.Option(help="Your own split: validation file.")] = None,
    test: Annotated[str | None, typer.Option(help="Your own split: test file.")] = None,
    attributes: Annotated[str | None, typer.Option(help="CSV of items: item, and tags, title, year, numbers.")] = None,
) -> None:
    """Train a method, choose the round on validation, test it, write a run folder."""
    from fedrec.commands.run import config_to_resume, require_place, run_seeds
    from fedrec.experiment.config import make_config, read_config
    from fedrec.experiment.params import parse_settings

    if resume and out is None:
        raise FedrecError("--resume needs the run folder: add --out DIR")
    chosen = _seed_list(seeds, seed)
    of_run = resume and config is None  # what is not said again stays as it was
    if out is not None:
        require_place(out, chosen, resume)
        config = config_to_resume(out, chosen) if of_run else config
    if resume and method is None and config is None:
        raise FedrecError(f"{out} holds no run to resume; start one with fedrec run METHOD --out {out}")
    values: dict[str, Any] = read_config(config, of_run) if config else {}
    flags = {
        "method": method, "data": data, "protocol": protocol, "backbone": backbone, "preset": preset, "rounds": rounds,
        "seed": seed, "silos": silos, "participation": participation, "dropout": dropout, "eval_every": eval_every,
        "patience": patience,
        "privacy": privacy, "epsilon": epsilon, "delta": delta, "device": device, "memory": memory, "train": train,
        "valid": valid, "test": test, "attributes": attributes,
    }  # fmt: skip
    if None not in (data, train, test):
        raise FedrecError("give --data or your own split (--train, --test), not both")
    values |= {name: value for name, value in flags.items() if value is not None}
    values["params"] = {**values.get("params", {}), **parse_settings(set_ or [])}
    run_seeds(make_config(values), chosen, out, resume, quiet, json_)


def _seed_list(seeds: str | None, seed: int | None) -> list[int] | None:
    if seeds is None:
        return None
    if seed is not None:
        raise FedrecError("give --seed or --seeds, not both")
    try:
        chosen = [int(part) for part in seeds.split(",")]
    except ValueError:
        raise FedrecError(f"--seeds {seeds}: write whole numbers with commas, e.g. 0,1,2") from None
    if len(set(chosen)) < len(chosen):
        raise FedrecError(f"--seeds {seeds}: seed {max(chosen, key=chosen.count)} is given twice; keep one")
    return chosen


@app.command("recommend")
def recommend_command(
    run: Annotated[Path, typer.Argument(help="A finished run folder.")],
    user: Annotated[str | None, typer.Option(help="One user, by original id.")] = None,
    everybody: Annotated[bool, typer.Option("--all", help="All users.")] = False,
    history: Annotated[Path | None, typer.Option(help="A new user: CSV of items, or of user,item.")] = None,
    cold: Annotated[bool, typer.Option("--cold", help="Rank the items that training never met.")] = False,
    k: Annotated[int, typer.Option("-k", help="Length of the lists.")] = 10,
    out: Annotated[
        Path | None, typer.Option(help="Write them to a .csv, .tsv, .json, .jsonl or .parquet file.")
    ] = None,
) -> None:
    """Recommendations from a finished run."""
    from fedrec.experiment.folder import require_harmless
    from fedrec.recommend import Recommender, read_history
    from fedrec.written import require_format

    require_harmless(out, history)
    if out is not None:
        require_format(out)
    if (user is not None) + everybody + (history is not None) != 1:
        raise FedrecError("say for whom: --user ID, --all or --history FILE (one of them)")
    if everybody and out is None:
        raise FedrecError("--all needs a file to write to: add --out recs.csv")
    if cold and history is not None:
        raise FedrecError("--cold is for users of the run: give --user ID or --all with it")
    known = read_history(history) if history is not None else {}
    recommender = Recommender(run, cold)
    if user is not None:
        found = iter(recommender.for_user(user, k))
    elif everybody:
        found = recommender.for_all(k)
    else:
        found = (rec for name, items in known.items() for rec in recommender.for_history(items, k, name))
    _show(found, out)


@app.command("cold-add")
def cold_add_command(
    run: Annotated[Path, typer.Argument(help="A finished run folder of a method that knows attributes.")],
    items: Annotated[Path, typer.Argument(help="CSV of new items, as for run --attributes.")],
    user: Annotated[str | None, typer.Option(help="One user, by original id; default: all, which needs --out.")] = None,
    k: Annotated[int, typer.Option("-k", help="Length of the lists.")] = 10,
    out: Annotated[
        Path | None, typer.Option(help="Write them to a .csv, .tsv, .json, .jsonl or .parquet file.")
    ] = None,
) -> None:
    """Rank items that arrived after training, from their attributes alone."""
    from fedrec import console
    from fedrec.experiment.folder import require_harmless
    from fedrec.recommend import Recommender, read_arrivals
    from fedrec.written import require_format

    require_harmless(out, items)
    if out is not None:
        require_format(out)
    if user is None and out is None:
        raise FedrecError("say for whom: --user ID, or everybody with --out recs.csv")
    arrivals = read_arrivals(items)
    recommender = Recommender(run)
    if unknown := recommender.add(arrivals):
        console.out.print(f"note: {unknown} of {len(arrivals)} items share no attribute with the items of the run")
    k = min(k, len(arrivals))
    _show(recommender.for_all(k) if user is None else iter(recommender.for_user(user, k)), out)


def _show(found: Iterator[Recommendation], out: Path | None) -> None:
    from fedrec import console
    from fedrec.written import write_recommendations

    if out is not None:
        console.out.print(f"{out}: {write_recommendations(out, found):,} recommendations")
        return
    rows = [[str(rec.user), rec.rank, str(rec.item), rec.title or "-", rec.score] for rec in found]
    console.table(["user", "rank", "item", "title", "score"], rows)


@app.command("compare")
def compare_command(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, or folders of run folders.")],
    metrics: Annotated[str | None, typer.Option(help="Comma-separated, e.g. recall@10,ndcg@10.")] = None,
    format_: Annotated[str | None, typer.Option("--format", help="markdown, csv, latex or json.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write the table (format by ending: .md .csv .tex .json).")] = None,
    references: Annotated[bool, typer.Option(help="Add popularity and local where they are missing.")] = True,
    significance: Annotated[bool | None, typer.Option(help="Show every test, or leave them out.")] = None,
    groups: Annotated[str | None, typer.Option(help="One metric by activity, taste or popularity.")] = None,
) -> None:
    """Runs side by side: mean and deviation over seeds, beside popularity, local and chance."""
    from fedrec import console
    from fedrec.data.atomic import atomic_file
    from fedrec.experiment.folder import require_harmless
    from fedrec.report import significance as testing
    from fedrec.report.comparison import choose_metrics, compare, find_runs
    from fedrec.report.groups import grouped
    from fedrec.report.references import with_references
    from fedrec.report.tables import format_of, render, titled_tables

    require_harmless(out)
    kind = format_of(out, format_)
    found = find_runs(runs)
    compare(found)  # refuses to mix before any work is done
    comparison = compare(with_references(found, console.progress) if references else found)
    chosen = choose_metrics(comparison, metrics)
    tests = None if significance is False else testing.significance(comparison, required=bool(significance))
    by_default = testing.metric_to_test(comparison) or chosen[0]
    parts = grouped(comparison, groups, chosen[0] if metrics else by_default) if groups else None
    if out is None and format_ is None:
        for title, (header, *lines) in titled_tables(comparison, chosen, tests, parts, bool(significance)):
            console.table(header, lines, title=title)
        return
    text = render(comparison, chosen, kind, tests, parts, bool(significance))
    if out is None:
        print(visible(text), end="")
        return
    with atomic_file(out) as temporary:
        temporary.write_text(text, encoding="utf-8")
    console.out.print(f"{out} written")


@app.command("report")
def report_command(
    runs: Annotated[list[Path] | None, typer.Argument(help="Run folders, or folders of run folders.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Default: report.html in the folder, comparison.html in the first of several.")
    ] = None,
    references: Annotated[bool, typer.Option(help="Train popularity and local where they are missing.")] = False,
    users: Annotated[bool, typer.Option(help="Show a few users with their items.")] = True,
    figure: Annotated[str | None, typer.Option(help="One figure instead, .html or .svg; `list` shows them.")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="Setting of the figure, key=value.")] = None,
) -> None:
    """One self-contained HTML page about a run, its seeds, or several runs side by side; or a single figure."""
    from fedrec import console
    from fedrec.endings import PAGE, ending_of
    from fedrec.experiment.folder import require_harmless
    from fedrec.experiment.params import parse_settings
    from fedrec.report.comparison import find_runs
    from fedrec.report.figures import FIGURES, figure_class
    from fedrec.report.figures.write import ENDINGS, write_figure
    from fedrec.report.pages.report import write_report

    if figure == "list":
        print("\n".join(f"{name:<12} {kind.summary} (--set {kind.settings()})" for name, kind in FIGURES.items()))
        return
    require_harmless(out)
    kind = figure_class(figure) if figure else None
    if out is not None:
        ending_of(out, ENDINGS if kind else PAGE)
    if not runs:
        raise FedrecError("give the folder of a run, e.g. fedrec report runs/fedmf-ml-100k")
    if kind is not None:
        path = write_figure(kind, parse_settings(set_ or []), find_runs(runs), out or runs[0] / f"{kind.name}.html")
        console.out.print(f"{path} written")
        return
    if set_:
        raise FedrecError("--set belongs to a figure: add --figure NAME, see --figure list")
    found = find_runs(runs)
    name = "report.html" if len(runs) == 1 else "comparison.html"  # keeps what the first has of its own
    path = write_report(found, out or runs[0] / name, references, users, console.progress)
    console.out.print(f"{path} written")


@app.command("reproduce")
def reproduce_command(
    target: Annotated[str | None, typer.Argument(help="PAPER or PAPER/TABLE; left out: the list.")] = None,
    datasets: Annotated[str | None, typer.Option(help="Only these, with commas.")] = None,
    protocols: Annotated[str | None, typer.Option(help="Only these, with semicolons, e.g. honest.")] = None,
    rows: Annotated[str | None, typer.Option(help="Only these rows, with semicolons.")] = None,
    seeds: Annotated[str | None, typer.Option(help="Instead of the table's, e.g. 0,1,2.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="One seed and a tenth of the rounds.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the runs, do nothing.")] = False,
    jobs: Annotated[int, typer.Option(min=1, help="Runs side by side.")] = 1,
    drop_models: Annotated[bool, typer.Option("--drop-models", help="Keep results, not gigabytes of models.")] = False,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    memory: Annotated[str, typer.Option(help="Memory budget of a run.")] = "8G",
    out: Annotated[Path | None, typer.Option(help="Folder; default runs/reproduce/PAPER.")] = None,
) -> None:
    """Run a paper's tables again, beside what it prints and under the honest protocol; goes on where it stopped."""
    from fedrec.commands.reproduce import Wanted, reproduce, show_papers

    if target is None:
        show_papers()
        return
    wanted = Wanted(
        _words(datasets, ","), _words(protocols, ";"), _words(rows, ";"), _seed_list(seeds, None) or [], quick, jobs,
        drop_models, device, memory,
    )  # fmt: skip
    if not reproduce(target, wanted, out, dry_run):
        raise typer.Exit(1)


def _words(text: str | None, separator: str) -> list[str]:
    return [word.strip() for word in text.split(separator) if word.strip()] if text else []


app.command("methods")(methods_command)
app.command("protocols")(protocols_command)


@app.command("doctor")
def doctor_command() -> None:
    """Check the installation: versions, compiled kernels, data, disk, devices."""
    from fedrec.doctor import report

    if not report():
        raise typer.Exit(1)


@audit_app.command("leak")
def audit_leak(
    data: Annotated[str | None, typer.Option(help="Dataset name or file; see `fedrec data list`.")] = None,
    protocol: Annotated[str, typer.Option(help="The protocol to audit; name,field=value to override.")] = "honest",
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of training negatives to draw.")] = 100,
    quick: Annotated[bool, typer.Option("--quick", help="At most 20 rounds, of local training too.")] = False,
    train: Annotated[str | None, typer.Option(help="Somebody's split: user,item[,timestamp].")] = None,
    test: Annotated[str | None, typer.Option(help="Somebody's split: the test part.")] = None,
    valid: Annotated[str | None, typer.Option(help="Somebody's split: the validation part.")] = None,
    negatives: Annotated[str | None, typer.Option(help="Evaluation negatives: user,item.")] = None,
    train_negatives: Annotated[str | None, typer.Option(help="Drawn training negatives: user,item[,round].")] = None,
    scores: Annotated[str | None, typer.Option(help="Scores of a model: user,item,score.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write an HTML page.")] = None,
    json_: Annotated[bool, typer.Option("--json", help="Findings as JSON.")] = False,
) -> None:
    """Does a protocol, or somebody's split and scores, give away what it tests? Exit code 1 where a check fails."""
    from fedrec.commands.audit import leak

    files = {"train": train, "test": test, "valid": valid, "negatives": negatives, "train_negatives": train_negatives,
             "scores": scores}  # fmt: skip
    if leak(data, protocol, rounds, quick, {name: file for name, file in files.items() if file}, out, json_):
        raise typer.Exit(1)


def main() -> None:
    """Entry point: every mistake of the user is one line on stderr and exit code 2."""
    warnings.showwarning = _show_warning
    try:
        _require_text(sys.argv[1:])
        code = app(prog_name="fedrec", standalone_mode=False)
        sys.stdout.flush()
        sys.exit(code if isinstance(code, int) else 0)
    except (typer.Abort, KeyboardInterrupt):
        sys.exit(130)
    except UsageProblem as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            print(error.format_message())
            sys.exit(0)
        _fail(error.format_message())
    except BrokenPipeError:  # whoever reads our output has seen enough, as in `fedrec methods | head -1`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except Exception as error:
        if (message := explained(error)) is None:
            raise
        _fail(message)


def _show_warning(message: Warning | str, category: type[Warning], filename: str, lineno: int,
                  file: TextIO | None = None, line: str | None = None) -> None:  # fmt: skip
    """Our own in one line; those of others as usual."""
    if issubclass(category, FedrecWarning):
        print(f"warning: {visible_line(str(message))}", file=sys.stderr)
    else:
        USUAL_WARNING(message, category, filename, lineno, file, line)


def _require_text(words: list[str]) -> None:
    """Names that are not UTF-8 can be opened but neither printed nor written down in a run's files."""
    for word in words:
        if not word.isascii() and any("\ud800" <= letter <= "\udfff" for letter in word):
            raise FedrecError(f"{word!a} is not UTF-8 text; rename the file or folder")


def _fail(message: str) -> None:
    message = visible(" ".join(message.split()))
    if len(message) > LONGEST_MESSAGE:  # somebody's whole file as a flag
        message = f"{message[: LONGEST_MESSAGE // 2]} ... {message[-LONGEST_MESSAGE // 2 :]}"
    print(f"error: {message}", file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    main()
