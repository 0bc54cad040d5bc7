"""`fedrec deploy`: the same methods between real machines, over Flower."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedrec.commands.app import App
from fedrec.commands.columns import (
    Item,
    Rating,
    SeveralData,
    SiloColumn,
    Silos,
    SkipBad,
    Timestamp,
    User,
    name_data,
    ways_to_silos,
)
from fedrec.commands.entry_points import DeployGroup
from fedrec.errors import FedrecError

if TYPE_CHECKING:
    from fedrec.commands.progress import Pace
    from fedrec.experiment.config import RunConfig

deploy_app = App(
    cls=DeployGroup, help="Deploy a method over Flower: demo, init, start, server, node, keys.", no_args_is_help=True
)

Method = Annotated[str, typer.Option(help="See `fedrec methods`.")]
Data = Annotated[str, typer.Option(help="Dataset name or file; see `fedrec data list`.")]
Protocol = Annotated[str, typer.Option(help="See `fedrec protocols`; name,field=value to override.")]
Set = Annotated[list[str] | None, typer.Option("--set", help="Method parameter, key=value; repeatable.")]
Rounds = Annotated[int | None, typer.Option(help="Communication rounds.")]
SecureSums = Annotated[bool, typer.Option("--secure-sums", help="The server sees only sums of uploads.")]
Epsilon = Annotated[float | None, typer.Option(help="Choose the noise for this budget (needs clip and --delta).")]
Delta = Annotated[float | None, typer.Option(help="Delta of the budget.")]
Adjacency = Annotated[str | None, typer.Option(help="What an epsilon compares: replace (default) or zero-out (sums).")]
Deadline = Annotated[float, typer.Option(help="Time limit of the nodes for one round, in seconds.")]


@deploy_app.command("demo")
def demo_command(
    method: Method = "fedmf",
    data: SeveralData = None,
    nodes: Annotated[int, typer.Option(min=1, help="Number of nodes, among which the clients are divided.")] = 4,
    rounds: Rounds = None,
    seed: Annotated[int, typer.Option(help="Seed of all random draws, clients' included: for rehearsals only.")] = 0,
    protocol: Protocol = "honest",
    backbone: Annotated[str | None, typer.Option(help="Model inside the method, e.g. mf or ncf.")] = None,
    preset: Annotated[str | None, typer.Option(help="Named parameter set of the method.")] = None,
    set_: Set = None,
    silos: Silos = None,
    participation: Annotated[float, typer.Option(help="Share of clients per round.")] = 1.0,
    privacy: Annotated[str, typer.Option(help='Stages on uploads, e.g. "clip=1,gaussian=0.1".')] = "",
    epsilon: Epsilon = None,
    delta: Delta = None,
    adjacency: Adjacency = None,
    secure_sums: SecureSums = False,
    deadline: Deadline = 300.0,
    compare: Annotated[bool, typer.Option("--compare", help="Also run the simulation and show both.")] = False,
    record: Annotated[Path | None, typer.Option(help="Also write the comparison to a .json file.")] = None,
    out: Annotated[Path | None, typer.Option(help="Run folder; the nodes' folders are next to it.")] = None,
    user: User = None,
    item: Item = None,
    rating: Rating = None,
    timestamp: Timestamp = None,
    skip_bad: SkipBad = False,
    silo_column: SiloColumn = None,
) -> None:
    """A deployment on this machine (TLS, keys, a process per node); same metrics as `fedrec run` with the same seed."""
    from fedrec.deploy.demo import demo
    from fedrec.deploy.flower import require_flower
    from fedrec.deploy.link import Limits
    from fedrec.deploy.rehearsal import rehearse
    from fedrec.experiment.config import make_config
    from fedrec.experiment.params import parse_settings

    # Asked for before anything is read, so that a missing package is said within a second.
    require_flower()
    values: dict[str, Any] = {
        "method": method,
        "data": name_data(data) or "ml-100k",
        "protocol": protocol,
        "rounds": rounds,
        "seed": seed,
        "backbone": backbone,
        "preset": preset,
        "params": parse_settings(set_ or []),
        **ways_to_silos(silos, silo_column),
        "skip_bad": skip_bad or None,
        "participation": participation,
        "privacy": privacy,
        "epsilon": epsilon,
        "delta": delta,
        "adjacency": adjacency,
        "user": user,
        "item": item,
        "rating": rating,
        "timestamp": timestamp,
    }
    # Flags that were not given are left out, so that the defaults live in one place, the config.
    config = make_config({name: value for name, value in values.items() if value is not None})
    place = out or _free_folder(f"deploy-{method}-{Path(values['data']).name}-seed{seed}")
    # Half of the nodes are enough to go on, but all must be there at the start: a rehearsal has no late joiners.
    limits = Limits(deadline=deadline, minimum=max(1, nodes // 2), first=nodes)
    with ended_by_signals():
        demo(rehearse(config, secure=secure_sums), place, nodes, limits, EventPrinter())
        # After the demo, so that the simulation cannot take processor time from the nodes.
        if compare or record is not None:
            _compare(config, place, secure_sums, record)
        _report(place)


@deploy_app.command("server")
def server_command(
    items: Annotated[Path, typer.Option(help="The vocabulary: CSV with a column item; may hold item attributes.")],
    clients: Annotated[int, typer.Option(min=1, help="Client numbers to reserve, including those for late joiners.")],
    keys: Annotated[Path, typer.Option(help="Folder with ca.crt, server.crt, server.key.")],
    nodes: Annotated[Path, typer.Option(help="Folder with the public keys (*.pub) of the admitted nodes.")],
    out: Annotated[Path, typer.Option(help="Run folder.")],
    method: Method = "fedmf",
    rounds: Rounds = None,
    protocol: Protocol = "honest",
    backbone: Annotated[str | None, typer.Option(help="Model inside the method, e.g. mf or ncf.")] = None,
    preset: Annotated[str | None, typer.Option(help="Named parameter set of the method.")] = None,
    set_: Set = None,
    participation: Annotated[float, typer.Option(help="Share of clients per round.")] = 1.0,
    eval_every: Annotated[int, typer.Option(min=1, help="Evaluate every N rounds.")] = 1,
    patience: Annotated[int | None, typer.Option(help="Stop after N evaluations without improvement.")] = None,
    privacy: Annotated[str, typer.Option(help='Stages on uploads, e.g. "clip=1,gaussian=0.1".')] = "",
    epsilon: Epsilon = None,
    delta: Delta = None,
    adjacency: Adjacency = None,
    secure_sums: Annotated[
        bool | None,
        typer.Option("--secure-sums/--open-sums", help="Only sums are seen; default: where the method allows it."),
    ] = None,
    name: Annotated[str, typer.Option(help="Name of the federation's data in reports.")] = "federation",
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.")] = 8000,
    deadline: Deadline = 600.0,
    min_nodes: Annotated[
        int | None,
        typer.Option(min=1, help="Smallest number of nodes for a round; default 5 under secure sums, else 1."),
    ] = None,
    first_nodes: Annotated[int, typer.Option(min=1, help="Nodes to wait for before the first round.")] = 1,
    wait: Annotated[float, typer.Option(help="How long to wait for nodes, in seconds.")] = 86_400.0,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in --out, if there is one.")] = False,
) -> None:
    """The server of a federation: it sees what the method uploads, never the data, ids or state of clients."""
    from fedrec.deploy.flower import Certificates, require_flower
    from fedrec.deploy.link import Limits
    from fedrec.deploy.services import Address, make_terms, serve
    from fedrec.experiment.config import make_config
    from fedrec.experiment.params import parse_settings

    require_flower()
    values: dict[str, Any] = {
        "method": method,
        "data": name,
        "protocol": protocol,
        "rounds": rounds,
        "backbone": backbone,
        "preset": preset,
        "params": parse_settings(set_ or []),
        "participation": participation,
        "eval_every": eval_every,
        "patience": patience,
        "privacy": privacy,
        "epsilon": epsilon,
        "delta": delta,
        "adjacency": adjacency,
    }
    config = make_config({key: value for key, value in values.items() if value is not None})
    terms, attributes = make_terms(config, items, clients, secure_sums, min_nodes)
    # A folder that is missing would look like one without keys, and the server would wait for a day.
    if not nodes.is_dir():
        raise FedrecError(f"{nodes} is not a folder; put the public keys of the nodes (*.pub) into one")
    # Under secure sums the terms say how many members there must be at least.
    enough = min_nodes or max(1, terms.members)
    # The first round cannot ask for fewer nodes than every other one.
    limits = Limits(deadline, enough, max(first_nodes, enough), wait)
    at = Address(host, port, Certificates(keys), nodes)
    with ended_by_signals():
        serve(terms, attributes, out, limits, at, resume, EventPrinter())
        _report(out)


@deploy_app.command("node")
def node_command(
    superlink: Annotated[str, typer.Option(help="HOST:PORT of the server.")],
    data: Annotated[Path, typer.Option(help="This node's own interactions: user,item[,rating,timestamp].")],
    state_dir: Annotated[Path, typer.Option(help="Where this node keeps its state and its secret.")],
    ca: Annotated[Path, typer.Option(help="The server's ca.crt.")],
    key: Annotated[Path, typer.Option(help="This node's private key; the server needs the public one.")],
    items: Annotated[Path | None, typer.Option(help="The agreed vocabulary; any other is refused.")] = None,
    peers: Annotated[Path | None, typer.Option(help="Folder of the other nodes' public keys, for secure sums.")] = None,
    consent: Annotated[
        Path | None, typer.Option(help="TOML of what this node's owner agrees to; docs/deployment.md has the names.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Join without asking, whatever the federation will see.")] = False,
    silo: Annotated[
        bool, typer.Option("--silo", help="All users form one client; default: one client per user.")
    ] = False,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    memory: Annotated[str, typer.Option(help="Memory budget, e.g. 8G.")] = "8G",
    port: Annotated[int | None, typer.Option(help="Local port of the SuperNode; default: a free one.")] = None,
    user: User = None,
    item: Item = None,
    rating: Rating = None,
    timestamp: Timestamp = None,
) -> None:
    """A node of a federation: its data, its state and its secret stay in its own folders."""
    from fedrec.commands import console
    from fedrec.data.roles import as_columns
    from fedrec.deploy.consent import Consent
    from fedrec.deploy.flower import require_flower
    from fedrec.deploy.node import Settings
    from fedrec.deploy.services import run_node
    from fedrec.deploy.shard import NodeData
    from fedrec.experiment.config import parse_memory
    from fedrec.experiment.machine import device_named

    require_flower()
    # A device that is missing is said now, not when the first round arrives.
    device_named(device)
    own = NodeData(
        data, silo, columns=as_columns({"user": user, "item": item, "rating": rating, "timestamp": timestamp})
    )
    # Read for mistakes too, which are better found before a connection is made.
    table = own.read()
    for note in table.notes:
        console.err.print(f"note: {note}")
    size = f"{table.n_users:,} users, {len(table):,} rows"
    console.err.print(f"{data}: {size}; state in {state_dir}, log in {state_dir / 'node.log'}")
    with ended_by_signals():
        agreed = Consent() if consent is None else Consent.read(consent)
        settings = Settings(own, items, False, device, parse_memory(memory), key, peers, agreed)
        run_node(state_dir, settings, superlink, ca, port, console.err.print, lambda lines: yes_or_ask(lines, yes))


def yes_or_ask(lines: list[str], yes: bool) -> bool:
    """Show what a federation is going to see of this node, and ask whether to join it."""
    from fedrec.commands import console

    for line in lines:
        console.err.print(line)
    if yes:
        return True
    # Without a terminal nobody can answer, and joining without an answer would decide for the owner.
    if not sys.stdin.isatty():
        raise FedrecError("joining needs the owner's word: start the node with --yes, or on a terminal")
    return typer.confirm("Join this federation?", err=True)


@deploy_app.command("init")
def init_command(
    folder: Annotated[Path, typer.Argument(help="New folder, with one in it for the server and for each member.")],
    members: Annotated[str | None, typer.Option(help="Names of the members, separated by commas.")] = None,
    host: Annotated[str | None, typer.Option(help="Name or address by which members reach the server.")] = None,
    items: Annotated[Path | None, typer.Option(help="The agreed items: CSV with a column item.")] = None,
    method: Annotated[str | None, typer.Option(help="See `fedrec methods` and `fedrec advise`.")] = None,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port of the server.")] = 8000,
    rounds: Rounds = None,
    clients: Annotated[
        int, typer.Option(min=1, help="Client numbers to reserve: at least all users of all.")
    ] = 100_000,
    silo: Annotated[bool, typer.Option("--silo", help="All users of a member form one client.")] = False,
    secure_sums: Annotated[
        bool | None,
        typer.Option("--secure-sums/--open-sums", help="Only sums are seen; default: where the method allows it."),
    ] = None,
    program: Annotated[str, typer.Option(help="Where fedrec is installed, for systemd.")] = "/opt/fedrec/bin/fedrec",
    place: Annotated[str, typer.Option(help="Folder on a machine for its part, for systemd.")] = "/var/lib/fedrec",
) -> None:
    """Write what a federation of companies needs: keys, settings, units for systemd, compose files."""
    from fedrec.commands import console
    from fedrec.deploy.consortium import Consortium, ask_for, names_of, write_consortium

    interactive = sys.stdin.isatty()

    def ask(question: str, given: Any) -> Any:
        return ask_for(question, given, typer.prompt, interactive)

    names = names_of(ask("Names of the members, separated by commas (--members)", members))
    consortium = Consortium(
        names,
        ask("Name or address by which they reach the server (--host)", host),
        Path(ask("File of the items that all agree on (--items)", items)),
        ask("Method, as fedrec advise proposes it (--method)", method),
        port,
        rounds,
        clients,
        silo,
        secure_sums,
        program,
        place,
    )
    # Checked before anything is written, so that a mistake leaves no half consortium behind.
    number = consortium.require_sound()
    for written in write_consortium(consortium, folder):
        console.out.print(str(written))
    console.err.print(f"{items or consortium.items}: {number:,} items, each listed once")
    console.err.print(
        f"hand each member its folder; whoever has this one has seen all keys. A round needs {consortium.enough} of "
        f"{len(names)} members. Start: fedrec deploy start FOLDER/server.toml, and node.toml at every member"
    )


@deploy_app.command("start")
def start_command(
    settings: Annotated[Path, typer.Argument(help="server.toml or node.toml, as fedrec deploy init writes them.")],
) -> None:
    """Start a server or a node with the settings of a file; paths in it are relative to the file."""
    import os

    from fedrec.deploy.consortium import read_start

    words = read_start(settings)
    # Settings name files beside themselves; a service manager may start us anywhere.
    os.chdir(settings.resolve().parent)
    # Through the same parser as the command line, so that files and flags cannot drift apart.
    typer.main.get_command(deploy_app).main(words, prog_name="fedrec deploy", standalone_mode=False)


keys_app = App(help="Certificates and keys: server, node.", no_args_is_help=True)
deploy_app.add_typer(keys_app, name="keys")


@keys_app.command("server")
def server_keys_command(
    folder: Annotated[Path, typer.Argument(help="Folder for ca.crt, ca.key, server.crt and server.key.")],
    host: Annotated[list[str], typer.Option(help="Name or address by which nodes reach the server; repeatable.")],
) -> None:
    """Create a certificate authority and a server certificate; nodes need ca.crt."""
    from fedrec.commands import console
    from fedrec.deploy.keys import make_server_keys

    # The server itself connects by loopback, so the certificate has to name it as well.
    make_server_keys(folder, [*host, *({"127.0.0.1"} - set(host))])
    console.out.print(f"{folder}: give ca.crt to every node; keep the .key files secret")


@keys_app.command("node")
def node_keys_command(
    path: Annotated[Path, typer.Argument(help="File for the private key; the public one gets the ending .pub.")],
) -> None:
    """Create a node's key pair; the server needs the public key."""
    from fedrec.commands import console
    from fedrec.deploy.keys import make_node_key

    console.out.print(f"give {make_node_key(path)} to the server; keep {path} secret")


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """SIGTERM as Ctrl-C: processes are ended first."""
    from fedrec.experiment.interrupt import TERMINATED, Terminated, sigterm_interrupts

    try:
        with sigterm_interrupts():
            yield
    except Terminated:
        # The exit code tells a service manager that it was ended and has not failed.
        raise typer.Exit(TERMINATED) from None


def _free_folder(name: str) -> Path:
    from fedrec.experiment.folder import folder_name

    base = folder_name(name)
    # Names of earlier runs are never used again: their folders hold results.
    paths = (Path("runs") / (base if k == 1 else f"{base}.{k}") for k in range(1, 10_000))
    return next(path for path in paths if not path.exists() and not path.with_name(path.name + "-nodes").exists())


class EventPrinter:
    """Events as lines on stderr."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.pace: Pace | None = None

    def __call__(self, event: Mapping[str, Any]) -> None:
        from fedrec.commands.console import err

        # Events without words are for programs; an empty line would only push the others away.
        if text := self._describe(event):
            err.print(f"[{time.monotonic() - self.began:6.1f} s] {text}")

    def _describe(self, event: Mapping[str, Any]) -> str:
        match event["event"]:
            case "started":
                return f"SuperLink on {event['address']} with TLS and node authentication"
            case "node":
                return f"{event['name']}: process {event['pid']}"
            case "joined":
                unknown = event["unknown"]["rows"]
                more = f"; {unknown:,} rows with unknown items left out" if unknown else ""
                return f"node {event['node']} joined: {event['clients']:,} clients{more}"
            case "expects":
                return self._describe_expected(event)
            case "key":
                return f"{event['name']} is admitted"
            case "left":
                return f"node {event['node']} has left"
            case "died":
                return f"{event['node']} ended with code {event['code']}: {event['log']}"
            case "refused":
                return f"{event['node']} refused: {event['reason']}"
            case "note":
                return f"node {event['node']}: {event['note']}"
            case "repeated":
                return f"turn {event['turn']} had {event['nodes']} of {event['minimum']} nodes; trying again"
            case "given up":
                return f"round {event['round'] + 1} is given up: its updates are masked for nodes that are gone"
            case "resumed":
                return f"continuing from round {event['round'] + 1}"
            case "round":
                return self._after_round(event)
            case "score":
                best = ", the best so far" if event["best"] else ""
                figures = ", ".join(f"{name} {value:.4f}" for name, value in event["valid"].items() if "@10" in name)
                return f"round {event['round'] + 1} on validation: {figures}{best}"
            case "finished":
                return f"done: round {event['round'] + 1} was chosen and tested"
        return ""

    def _after_round(self, event: Mapping[str, Any]) -> str:
        from fedrec.commands.progress import Pace
        from fedrec.federation.loop import Rules

        # the last round is scored, and the chosen one tested, in turns of their own
        self.pace = self.pace or Pace(Rules(event["rounds"] + 2))
        left = self.pace.estimate_left(event["round"], None, event["time"])
        parts = [
            f"{event['nodes']} nodes",
            f"{event['seconds']:.1f} s",
            f"{event['lost']:,} uploads lost" if event["lost"] else "",
            left,
        ]
        return f"round {event['round'] + 1} of {event['rounds']}: {', '.join(filter(None, parts))}"

    def _describe_expected(self, event: Mapping[str, Any]) -> str:
        from fedrec.commands.console import human

        more = f" and up to {human(event['gathered'])} of gathered uploads" if event["gathered"] else ""
        seen = event["seen"] or "updates arrive masked, and the server learns only their sum over all nodes"
        return f"in a round the server holds {human(event['sums'])} of sums{more}; {seen}"


def _report(folder: Path) -> None:
    """report.html and the result, from what the server has."""
    import json

    from fedrec.commands import console
    from fedrec.commands.summary import show_summary
    from fedrec.experiment.finished_run import read_run
    from fedrec.report.pages.report import write_report

    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    # The result comes first, since writing the report may fail.
    show_summary(summary)
    about = summary["deployment"]
    console.out.print(
        f"{about['nodes']} nodes, {about['cpu_per_node_and_turn']:.2f} CPU seconds per node and round, "
        f"{about['cpu_of_server']:.1f} of the server; {sum(about['rejected'].values())} replies refused, "
        f"{about['lost']:,} uploads lost"
    )
    try:
        # Without users: the server of a federation has no list of anybody.
        write_report([read_run(folder)], folder / "report.html", users=False)
    # A page that cannot be written must not turn a finished federation into a failure.
    except (FedrecError, OSError) as error:
        console.err.print(f"note: report.html was not written: {error}")
    beside = folder.with_name(folder.name + "-nodes")
    console.out.print(f"run folder: {folder}" + (f"; the nodes: {beside}" if beside.exists() else ""))


def _compare(config: RunConfig, folder: Path, secure: bool, record: Path | None) -> None:
    """The simulation with the same seed, for the terminal, for the report and for a file of figures."""
    import json

    from fedrec.commands import console
    from fedrec.data.atomic import atomic_file
    from fedrec.deploy.figures_file import record as record_figures
    from fedrec.experiment.driver import execute

    # Processor time and not the clock, which also counts what other programs do.
    before = time.process_time()
    simulated = execute(config)
    # At least one round, so that a run which stopped at once divides by one.
    spent = (time.process_time() - before) / max(1, simulated.summary["rounds_run"])
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    about = summary["deployment"]
    apart = {name: abs(value - simulated.test[name]) for name, value in summary["test"].items()}
    rows = [[name, value, simulated.test[name], f"{apart[name]:.1e}"] for name, value in summary["test"].items()]
    rows.append(["CPU seconds of all clients per round", about["cpu_per_node_and_turn"] * about["nodes"], spent, "-"])
    console.table(["test", "deployed", "simulated", "difference"], rows)
    about["simulated_cpu_per_round"] = spent
    # Written in one step, because the summary is the result itself.
    with atomic_file(folder / "summary.json") as temporary:
        temporary.write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    if record is not None:
        row = {
            "method": config.method,
            "data": config.data,
            "nodes": about["nodes"],
            "rounds": summary["rounds_run"],
            "secure": secure,
            "difference": max(apart.values()),
            "cpu": about["cpu_per_node_and_turn"],
            "simulated_cpu": spent,
        }
        record_figures(record, "equality", [row], ["method", "data", "nodes", "secure"])
