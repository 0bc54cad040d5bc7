"""The command line: parse, call, print."""

from __future__ import annotations

import os
import re
import sys
import warnings
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer

from fedrec import __version__
from fedrec.commands.advise import advise_command
from fedrec.commands.app import App, MethodCommand
from fedrec.commands.board import board_command
from fedrec.commands.catalogue import methods_command, metrics_command, protocols_command
from fedrec.commands.columns import Item, Rating, Timestamp, User
from fedrec.commands.data import data_app
from fedrec.commands.deploy import deploy_app
from fedrec.commands.entry_points import PluggedGroup
from fedrec.commands.export import export_command
from fedrec.commands.fit import fit_command
from fedrec.commands.lists import cold_add_command, recommend_command, similar_command
from fedrec.commands.pages import compare_command, report_command
from fedrec.commands.run_flags import run_command
from fedrec.commands.serve import serve_command
from fedrec.commands.sweep_flags import sweep_command
from fedrec.commands.tune_flags import tune_command
from fedrec.errors import FedrecError, FedrecWarning, explain, visible, visible_line
from fedrec.experiment.command_line import take_files

# Typer carries its own copy of click, so the class is found by inheritance and not by an import of click.
UsageProblem: Any = typer.BadParameter.__mro__[2]

# A terminal shows so much at once; longer messages come from values such as a whole file that was given as a flag.
LONGEST_MESSAGE = 1_500
NO_NUMBER = re.compile(
    r"Input should be a valid (integer|number), unable to parse string as an? \1"
    r"|'[^']*' is not a valid (integer|float)( range)?\.?"
)
USUAL_WARNING = warnings.showwarning

app = App(
    cls=PluggedGroup,
    help="Federated recommendation: train, evaluate honestly, compare.",
    no_args_is_help=True,
    # Tracebacks are for developers: `main` says every mistake in one line instead.
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(data_app, name="data")
app.add_typer(deploy_app, name="deploy")
audit_app = App(help="Audits: leak, uploads.", no_args_is_help=True)
app.add_typer(audit_app, name="audit")


def _version(value: bool) -> None:
    if value:
        print(f"fedrec {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True)] = False,
    use: Annotated[
        list[Path] | None, typer.Option(help="A Python file with methods or metrics of your own; repeatable.")
    ] = None,
) -> None:
    take_files(use or [])
    for path in use or []:
        # Loaded before the command runs, because the file may add the method that the command names.
        from fedrec.commands import own_files

        own_files.use(path)


app.command("advise")(advise_command)
app.command("run", cls=MethodCommand)(run_command)
app.command("sweep")(sweep_command)
app.command("tune")(tune_command)
app.command("fit")(fit_command)
app.command("recommend")(recommend_command)
app.command("cold-add")(cold_add_command)
app.command("similar")(similar_command)
app.command("export")(export_command)
app.command("serve")(serve_command)
app.command("board")(board_command)
app.command("compare")(compare_command)
app.command("report")(report_command)


app.command("methods")(methods_command)
app.command("protocols")(protocols_command)
app.command("metrics")(metrics_command)


@app.command("doctor")
def doctor_command() -> None:
    """Check the installation: versions, compiled kernels, data, disk, devices."""
    from fedrec.commands.doctor import report

    if not report():
        raise typer.Exit(1)


@audit_app.command("leak")
def audit_leak(
    data: Annotated[str | None, typer.Option(help="Dataset name or file; see `fedrec data list`.")] = None,
    protocol: Annotated[str, typer.Option(help="The protocol to audit; name,field=value to override.")] = "honest",
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of training negatives to draw.")] = 100,
    quick: Annotated[bool, typer.Option("--quick", help="At most 20 rounds, of local training too.")] = False,
    train: Annotated[
        str | None, typer.Option(help="Someone's split, the training part: user,item[,timestamp].")
    ] = None,
    test: Annotated[str | None, typer.Option(help="Someone's split, the test part.")] = None,
    valid: Annotated[str | None, typer.Option(help="Someone's split, the validation part.")] = None,
    negatives: Annotated[str | None, typer.Option(help="Evaluation negatives: user,item.")] = None,
    train_negatives: Annotated[str | None, typer.Option(help="Drawn training negatives: user,item[,round].")] = None,
    scores: Annotated[str | None, typer.Option(help="Scores of a model: user,item,score.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write an HTML page.")] = None,
    json_: Annotated[bool, typer.Option("--json", help="Findings as JSON.")] = False,
    user: User = None,
    item: Item = None,
    rating: Rating = None,
    timestamp: Timestamp = None,
) -> None:
    """Does a protocol, or someone's split and scores, give away its test items? Exit code 1 if a check fails."""
    from fedrec.commands.audit import leak
    from fedrec.data.roles import as_columns

    columns = as_columns({"user": user, "item": item, "rating": rating, "timestamp": timestamp})
    files = {
        "train": train,
        "test": test,
        "valid": valid,
        "negatives": negatives,
        "train_negatives": train_negatives,
        "scores": scores,
    }
    if leak(data, protocol, rounds, quick, {name: file for name, file in files.items() if file}, columns, out, json_):
        raise typer.Exit(1)


@audit_app.command("uploads")
def audit_uploads(
    method: Annotated[str, typer.Argument(help="A method whose clients upload an item table.")] = "fedmf",
    data: Annotated[str, typer.Option(help="Dataset name or file; see `fedrec data list`.")] = "ml-100k",
    clients: Annotated[int, typer.Option(min=3, help="How many clients upload.")] = 100,
    preset: Annotated[str | None, typer.Option(help="Named parameter set of the method.")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="Method parameter, key=value; repeatable.")] = None,
    seed: Annotated[int, typer.Option(help="The seed of the round.")] = 0,
    json_: Annotated[bool, typer.Option("--json", help="The figures as JSON.")] = False,
    user: User = None,
    item: Item = None,
    rating: Rating = None,
    timestamp: Timestamp = None,
) -> None:
    """What a server can infer from one round of uploads (sign attack), with and without secure sums."""
    from fedrec.commands.audit import uploads
    from fedrec.experiment.params import parse_settings

    values = {"method": method, "data": data, "seed": seed, "params": parse_settings(set_ or [])}
    flags = {"preset": preset, "user": user, "item": item, "rating": rating, "timestamp": timestamp}
    uploads(values | {name: value for name, value in flags.items() if value is not None}, clients, json_)


def main() -> None:
    """Entry point: every mistake of the user is one line on stderr and exit code 2."""
    warnings.showwarning = _show_warning
    try:
        _require_text(sys.argv[1:])
        code = app(prog_name="fedrec", standalone_mode=False)
        # Flushed inside the try: a closed pipe shows itself only now, and at exit Python would print a traceback of it.
        sys.stdout.flush()
        sys.exit(code if isinstance(code, int) else 0)
    except (typer.Abort, KeyboardInterrupt):
        # The code that shells give to programs ended by an interrupt.
        sys.exit(130)
    except UsageProblem as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            print(error.format_message())
            sys.exit(0)
        _fail(_in_words(error.format_message()))
    except BrokenPipeError:  # whoever reads our output has seen enough, as in `fedrec methods | head -1`
        # What is still buffered goes nowhere, or the interpreter would fail a second time when it flushes on exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except Exception as error:
        if (message := explain(error)) is None:
            raise
        _fail(message)


def _in_words(message: str) -> str:
    """What the parser of flags says of a number that is none, in whichever version, for people."""
    return NO_NUMBER.sub(lambda found: f"write {'a whole number' if 'integer' in found[0] else 'a number'}", message)


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Ours in one line; those of other packages as usual."""
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
    if len(message) > LONGEST_MESSAGE:  # for instance a whole file given as a flag
        message = f"{message[: LONGEST_MESSAGE // 2]} ... {message[-LONGEST_MESSAGE // 2 :]}"
    # Of several processes the first one speaks, or the same message would come once for each.
    if os.environ.get("RANK", "0") == "0":
        print(f"error: {message}", file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    main()
