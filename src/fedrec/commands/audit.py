"""`fedrec audit leak` and `fedrec audit uploads`: choose what to audit, audit it, show it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedrec import evaluation
from fedrec.commands import console
from fedrec.data import find_published_split, load, load_split, require_no_columns
from fedrec.data.file_formats import PAGE, ending_of
from fedrec.data.roles import Columns
from fedrec.errors import FedrecError
from fedrec.experiment.audit.case import Case, from_prepared, from_protocol
from fedrec.experiment.audit.files import from_files
from fedrec.experiment.audit.leak import Report, audit
from fedrec.experiment.checks import require_tested
from fedrec.experiment.config import make_config
from fedrec.experiment.prepare import prepare_split
from fedrec.experiment.run_plan import plan_run
from fedrec.report.pages.audit_page import WORDS, lines, write_audit

STYLES = {WORDS["fail"]: "bold red", WORDS["warn"]: "yellow", WORDS["n/a"]: "dim"}


def leak(
    data: str | None,
    protocol: str,
    rounds: int,
    quick: bool,
    files: Mapping[str, str],
    columns: Columns,
    out: Path | None,
    as_json: bool,
) -> bool:
    """Returns whether a check failed."""
    # Neither both nor none: a dataset and a split of one's own would be two different audits.
    if (data is None) == (not files):
        raise FedrecError("say what to audit: --data D --protocol P, or --train t.csv --test s.csv (one of the two)")
    if files and not {"train", "test"} <= set(files):
        raise FedrecError("a split needs both parts: --train t.csv --test s.csv")
    if out is not None:
        # A wrong ending is said before minutes of auditing.
        ending_of(out, PAGE)
    with console.err.status("reading") as status:
        named = None if data is None else _load_case(data, columns, protocol, rounds, quick)
        case = named or from_files(**files, columns=columns)
        report = audit(case, status.update)
    _show(report, as_json)
    if out is not None:
        written = write_audit(report, out)
        if not as_json:
            console.out.print(f"{written} written")
    return report.has_failed


def _load_case(data: str, columns: Columns, protocol: str, rounds: int, quick: bool) -> Case:
    rules = evaluation.protocol(protocol)
    require_tested(rules)
    if find_published_split(data):
        require_no_columns(data, columns)
        split, clients = load_split(data)
        return from_prepared(prepare_split(split, rules, clients=clients), rounds, quick)
    return from_protocol(load(data, progress=console.download, columns=columns), rules, rounds, quick)


def _show(report: Report, as_json: bool) -> None:
    if as_json:
        print(json.dumps(report.to_dict(), indent=2))
        return
    for note in report.case.split.notes:
        console.err.print(f"note: {note}", style="dim")
    for record in report.case.filters:
        console.out.print(console.describe_left_out(record))
    for line in lines(report):
        console.out.print(line, style=STYLES.get(line.split(" ", 1)[0]))


def uploads(values: dict[str, Any], clients: int, as_json: bool) -> None:
    """The sign attack on the first round of some clients."""
    from fedrec.experiment.audit.uploads import expose_items  # needs an extra

    plan = plan_run(make_config(values))
    for note in plan.prepared.source.notes:
        console.err.print(f"note: {note}", style="dim")
    found = expose_items(plan.method, plan.clients, clients)
    if as_json:
        print(json.dumps(found.to_dict()))
        return
    console.out.print(f"{found.method}: the items of {found.clients} clients, guessed from one round", style="bold")
    rows = [
        ["each client's own upload", found.upload],
        ["its message in the secure sum", found.message],
        ["the secure sum", found.total],
        ["popularity, without any attack", found.popularity],
    ]
    console.table(["what the server sees", "AUC"], rows)
    console.out.print(f"largest correlation of a masked upload with the true one: {found.correlation:.4f}")
