"""The flags of `fedrec run`, which a config file can hold as well."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedrec.commands import completion
from fedrec.commands.columns import (
    Item,
    Rating,
    SiloColumn,
    Silos,
    SkipBad,
    Timestamp,
    User,
    name_data,
    ways_to_silos,
)
from fedrec.errors import FedrecError, FedrecWarning
from fedrec.experiment.command_line import command_line

if TYPE_CHECKING:
    from fedrec.experiment.disk import Keep


def run_command(
    method: Annotated[
        str | None, typer.Argument(help="See `fedrec methods`.", autocompletion=completion.methods)
    ] = None,
    data: Annotated[
        list[str] | None,
        typer.Option(
            help="Dataset name or file (fedrec data list), or a file per company; default ml-100k.",
            autocompletion=completion.datasets,
        ),
    ] = None,
    protocol: Annotated[
        str | None,
        typer.Option(
            help="See `fedrec protocols`; name,field=value; default honest.", autocompletion=completion.protocols
        ),
    ] = None,
    min_rating: Annotated[
        float | None, typer.Option(help="Ratings from this value on are positive; default: all above 0.")
    ] = None,
    backbone: Annotated[str | None, typer.Option(help="Model inside the method, e.g. mf; default the first.")] = None,
    preset: Annotated[str | None, typer.Option(help="Named parameter set of the method.")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="Method parameter, key=value; repeatable.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Communication rounds; default the method's.")] = None,
    seed: Annotated[int | None, typer.Option(help="One seed; default 0.")] = None,
    seeds: Annotated[str | None, typer.Option(help="Several seeds, e.g. 0,1,2: one run each.")] = None,
    silos: Silos = None,
    participation: Annotated[float | None, typer.Option(help="Share of clients per round; default 1.")] = None,
    lost_uploads: Annotated[
        float | None, typer.Option(help="Share of uploads that are lost on their way (simulated); default 0.")
    ] = None,
    secure_sums: Annotated[
        bool | None, typer.Option("--secure-sums", help="The server sees only sums over clients.")
    ] = None,
    assume_secure_sums: Annotated[
        bool | None,
        typer.Option("--assume-secure-sums", help="The same without computing masks: faster, for studies of noise."),
    ] = None,
    secure_bits: Annotated[int | None, typer.Option(help="Fractional bits of secure sums; default 32.")] = None,
    eval_every: Annotated[int | None, typer.Option(help="Evaluate every N rounds; default 1.")] = None,
    patience: Annotated[
        int | None, typer.Option(help="Stop after N evaluations without gain; default as protocol.")
    ] = None,
    privacy: Annotated[str | None, typer.Option(help='Stages on uploads, e.g. "clip=1,gaussian=0.1".')] = None,
    epsilon: Annotated[
        float | None, typer.Option(help="Choose the noise for this budget (needs clip and --delta).")
    ] = None,
    delta: Annotated[float | None, typer.Option(help="Delta of the budget.")] = None,
    adjacency: Annotated[
        str | None,
        typer.Option(help="What an epsilon compares: replace (default), zero-out (a client without data, on sums)."),
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu (default) or cuda.")] = None,
    memory: Annotated[str | None, typer.Option(help="Memory budget; default 8G.")] = None,
    config: Annotated[Path | None, typer.Option(help="TOML file with the same keys; flags take precedence.")] = None,
    out: Annotated[Path | None, typer.Option(help="Run folder, or folder for all --seeds; default runs/...")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run, or the seeds, in --out.")] = False,
    no_model: Annotated[
        bool, typer.Option("--no-model", help="Keep the results alone, e.g. of a study: no recommend, fit, serve.")
    ] = False,
    keep_last: Annotated[
        bool, typer.Option("--keep-last", help="Keep the state of the last round too, for more rounds later.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress, only the result.")] = False,
    json_: Annotated[bool, typer.Option("--json", help="Progress and result as JSON lines.")] = False,
    log: Annotated[
        list[str] | None, typer.Option(help="Also record it with mlflow, wandb or tensorboard; repeatable.")
    ] = None,
    train: Annotated[str | None, typer.Option(help="Your own split: training file.")] = None,
    valid: Annotated[str | None, typer.Option(help="Your own split: validation file.")] = None,
    test: Annotated[str | None, typer.Option(help="Your own split: test file.")] = None,
    attributes: Annotated[
        str | None, typer.Option(help="CSV that describes items: item, and tags, title, year, categories, numbers.")
    ] = None,
    dropout: Annotated[float | None, typer.Option(hidden=True, help="The old name of --lost-uploads.")] = None,
    user: User = None,
    item: Item = None,
    rating: Rating = None,
    timestamp: Timestamp = None,
    skip_bad: SkipBad = False,
    silo_column: SiloColumn = None,
) -> None:
    """Train a method, choose the round on validation, test it, write a run folder."""
    from fedrec import evaluation
    from fedrec.commands.run import config_to_resume, require_place, run_seeds
    from fedrec.experiment.checks import require_tested
    from fedrec.experiment.config import make_config, read_config
    from fedrec.experiment.params import parse_settings

    if resume and out is None:
        raise FedrecError("--resume needs the run folder: add --out DIR")
    chosen = parse_seeds(seeds, seed)
    # Settings that are not given again stay as they were.
    of_run = resume and config is None
    if out is not None:
        require_place(out, chosen, resume)
        config = config_to_resume(out, chosen) if of_run else config
    if resume and method is None and config is None:
        # Resuming nothing would start from the beginning under a flag that says otherwise.
        raise FedrecError(f"{out} has no run to resume; start one with {command_line('run', 'METHOD', '--out', out)}")
    # The file first, then the flags, so that a flag always has the last word.
    values: dict[str, Any] = read_config(config, of_run) if config else {}
    flags = {
        "method": method,
        "data": name_data(data),
        "protocol": protocol,
        "backbone": backbone,
        "preset": preset,
        "rounds": rounds,
        "seed": seed,
        **ways_to_silos(silos, silo_column),
        "participation": participation,
        "lost_uploads": lost_share(lost_uploads, dropout),
        "eval_every": eval_every,
        "patience": patience,
        "secure_sums": secure_sums,
        "assume_secure_sums": assume_secure_sums,
        "secure_bits": secure_bits,
        "privacy": privacy,
        "epsilon": epsilon,
        "delta": delta,
        "adjacency": adjacency,
        "device": device,
        "memory": memory,
        "train": train,
        "valid": valid,
        "test": test,
        "attributes": attributes,
        "user": user,
        "item": item,
        "rating": rating,
        "timestamp": timestamp,
        "skip_bad": skip_bad or None,
    }
    if min_rating is not None:
        values["protocol"] = with_min_rating(protocol or values.get("protocol", "honest"), min_rating)
        # The threshold has become part of the protocol and must not be set a second time.
        flags["protocol"] = None
    if None not in (name_data(data), train, test):
        raise FedrecError("give --data or your own split (--train, --test), not both")
    values |= {name: value for name, value in flags.items() if value is not None}
    set_now = parse_settings(set_ or [])
    # Two ways to say the same could say different things; neither is obviously meant.
    for name, given in (("rounds", rounds), ("backbone", backbone)):
        if given is not None and name in set_now:
            raise FedrecError(f"--{name} and --set {name} say the same; keep one of them")
    # Parameters are merged one by one: a single --set must not drop those of the file.
    values["params"] = {**values.get("params", {}), **set_now}
    # Before data is read: a protocol without a test has no result to show.
    require_tested(evaluation.protocol(values.get("protocol", "honest")))
    keep = choose_kept_states(no_model, keep_last)
    run_seeds(make_config(values), chosen, out, resume, quiet, json_, keep, log or [])


def lost_share(lost_uploads: float | None, dropout: float | None) -> float | None:
    """The share of lost uploads by its own name or, with a warning, by the one that it had."""
    if dropout is None:
        return lost_uploads
    if lost_uploads is not None:
        raise FedrecError("--dropout is the old name of --lost-uploads; give --lost-uploads alone")
    # A warning and no error, so that scripts written for the last version still run.
    warnings.warn(
        "--dropout is now called --lost-uploads; what a network drops is --set dropout=...", FedrecWarning, stacklevel=2
    )
    return dropout


def choose_kept_states(no_model: bool, keep_last: bool) -> Keep:
    """What the two flags leave in a run folder."""
    if no_model and keep_last:
        raise FedrecError("--no-model keeps no state and --keep-last keeps two; give one of them")
    return "nothing" if no_model else "last" if keep_last else "model"


def with_min_rating(protocol: str, min_rating: float) -> str:
    """A protocol with the threshold of the flag, which a protocol must not set otherwise."""
    from fedrec import evaluation

    if evaluation.protocol(protocol).min_rating not in (None, min_rating):
        raise FedrecError("--min-rating and the min_rating of --protocol differ; give only one")
    return evaluation.protocol(f"{protocol},min_rating={min_rating}").label


def parse_seeds(seeds: str | None, seed: int | None) -> list[int] | None:
    """The seeds of `--seeds 0,1,2`; None where one seed, or none, was given."""
    if seeds is None:
        return None
    if seed is not None:
        raise FedrecError("give --seed or --seeds, not both")
    try:
        chosen = [int(part) for part in seeds.split(",")]
    except ValueError:
        raise FedrecError(f"--seeds {seeds}: write integers separated by commas, e.g. 0,1,2") from None
    # The same seed twice would be the same run twice, and make the deviation too small.
    if len(set(chosen)) < len(chosen):
        raise FedrecError(f"--seeds {seeds}: seed {max(chosen, key=chosen.count)} is given twice; keep one")
    return chosen


def split_words(text: str | None, separator: str = ",") -> list[str]:
    """The words of an option that takes several."""
    return [word.strip() for word in text.split(separator) if word.strip()] if text else []
