"""`fedrec serve` beside a bare FastAPI and numpy service of the same model: requests a second and times, by wrk.

python -m benchmarks.serving FOLDER [--connections 1 8 64] [--seconds 5] [--repeats 5] [--steady 0]

Both services run all the time and are asked in turn, so that other work on the machine meets both: what counts are the
ratios. `--steady SECONDS` loads `fedrec serve` alone at the end, and prints its memory. wrk must be installed.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import NamedTuple
from urllib.parse import quote

from fedrec.data.spreadsheet import unguard
from fedrec.serve.web_server import listen

SCRIPT = """
local paths = {}
for line in io.lines("%s") do paths[#paths + 1] = line end
math.randomseed(os.time())
request = function() return wrk.format("GET", paths[math.random(#paths)]) end
"""
UNITS = {"us": 1e-3, "ms": 1.0, "s": 1e3}


class Load(NamedTuple):
    """Of one run of wrk: requests a second, milliseconds that 99 of 100 stay below, and answers that failed.

    Answers that wrk finds late, after two seconds, are no failures: on a busy machine both services have some.
    """

    rate: float
    p99: float
    failed: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--connections", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--seconds", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--steady", type=int, default=0)
    asked = parser.parse_args()
    if shutil.which("wrk") is None:
        raise SystemExit("wrk is not installed; on Debian: apt-get install wrk")
    users = read_users(asked.folder)
    with tempfile.TemporaryDirectory() as place, running(asked.folder) as (ours, bare, process):
        script = Path(place) / "users.lua"
        (Path(place) / "paths").write_text("".join(f"/recommendations/{quote(user, safe='')}\n" for user in users))
        script.write_text(SCRIPT % (Path(place) / "paths"))
        require_equal_lists(ours, bare, users[:50])
        print("connections  fedrec serve req/s  bare req/s  ratio  p99 ms  bare p99 ms  ratio  failed")
        for connections in asked.connections:
            loads = [
                [put_load(url, script, connections, asked.seconds) for url in (ours, bare)]
                for _ in range(asked.repeats)
            ]
            rates, p99s = ([[getattr(load, name) for load in pair] for pair in loads] for name in ("rate", "p99"))
            columns = [median(pair[0] for pair in rates), median(pair[1] for pair in rates)]
            columns += [median(a / b for a, b in rates), *(median(pair[at] for pair in p99s) for at in (0, 1))]
            columns += [median(a / b for a, b in p99s), sum(load.failed for pair in loads for load in pair)]
            print(f"{connections:11}  {columns[0]:18,.0f}  {columns[1]:10,.0f}  {columns[2]:5.2f}  ", end="")
            print(f"{columns[3]:6.2f}  {columns[4]:11.2f}  {columns[5]:5.2f}  {columns[6]:6}", flush=True)
        for part in range(asked.steady // 10):
            load = put_load(ours, script, 64, 10)
            print(
                f"after {10 * (part + 1)} s of load: {read_memory(process.pid):,} KiB, {load.failed} failed", flush=True
            )


def read_users(folder: Path) -> list[str]:
    """Read the users of a model."""
    import polars as pl

    users = pl.read_csv(folder / "users.csv", schema_overrides={"user": pl.String})["user"]
    return [unguard(user) for user in users.to_list()]


@contextmanager
def running(folder: Path) -> Iterator[tuple[str, str, subprocess.Popen[str]]]:
    """Start both services, one process each, and end them."""
    with listen() as free:
        port = free.getsockname()[1]
    commands = (
        [sys.executable, "-m", "fedrec", "serve", str(folder), "--port", "0"],
        [sys.executable, "-m", "benchmarks.bare_service", str(folder), "--port", str(port)],
    )
    with (
        subprocess.Popen(commands[0], stdout=subprocess.PIPE, text=True) as ours,
        subprocess.Popen(commands[1], stdout=subprocess.PIPE, text=True) as bare,
    ):
        try:
            assert ours.stdout is not None
            url = ours.stdout.readline().split()[-1]
            wait_for(f"http://127.0.0.1:{port}/openapi.json", bare)
            yield url, f"http://127.0.0.1:{port}", ours
        finally:
            ours.terminate()
            bare.terminate()


def wait_for(url: str, process: subprocess.Popen[str]) -> None:
    """Return when a service answers."""
    while process.poll() is None:
        try:
            urllib.request.urlopen(url).read()
            return
        except OSError:
            subprocess.run(["sleep", "0.2"], check=True)
    raise SystemExit("the bare service ended")


def require_equal_lists(ours: str, bare: str, users: list[str]) -> None:
    """Check that both give the same items in the same order."""
    for user in users:
        path = f"/recommendations/{quote(user, safe='')}"
        first, second = (json.load(urllib.request.urlopen(url + path))["items"] for url in (ours, bare))
        assert [line["item"] for line in first] == [line["item"] for line in second], user


def put_load(url: str, script: Path, connections: int, seconds: int) -> Load:
    """Let wrk ask for random users for some seconds."""
    words = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--latency", "-s", str(script), url]
    text = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    rate, p99 = re.search(r"Requests/sec:\s+([\d.]+)", text), re.search(r"99%\s+([\d.]+)(us|ms|s)", text)
    assert rate is not None, text
    assert p99 is not None, text
    failed = [int(number) for number in re.findall(r"(?:connect|read|write|responses:) (\d+)", text)]
    return Load(float(rate[1]), float(p99[1]) * UNITS[p99[2]], sum(failed))


def read_memory(process: int) -> int:
    """Return the resident memory of a process in KiB."""
    status = Path(f"/proc/{process}/status").read_text(encoding="utf-8")
    found = re.search(r"VmRSS:\s+(\d+)", status)
    assert found is not None
    return int(found[1])


if __name__ == "__main__":
    main()
