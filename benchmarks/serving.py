"""Load on `fedrec serve`: requests a second and how long they take, from several connections that stay open.

python -m benchmarks.serving FOLDER [--connections 4] [--seconds 10]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import threading
import time
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import quote, urlsplit

import numpy as np

from fedrec.data.spreadsheet import unguard


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--connections", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=10)
    asked = parser.parse_args()
    began = time.perf_counter()
    command = [sys.executable, "-m", "fedrec", "serve", str(asked.folder), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            url = server.stdout.readline().split()[-1]
            print(f"ready after {time.perf_counter() - began:.1f} s")
            report(load(url, users_of(asked.folder), asked.connections, asked.seconds), asked.seconds)
        finally:
            server.terminate()


def users_of(folder: Path) -> list[str]:
    """Some users of the model."""
    import polars as pl

    users = pl.read_csv(folder / "users.csv", schema_overrides={"user": pl.String})["user"]
    return [unguard(user) for user in users.sample(min(1000, len(users)), seed=0).to_list()]


def load(url: str, users: list[str], connections: int, seconds: float) -> list[float]:
    """Seconds of every request."""
    took: list[list[float]] = [[] for _ in range(connections)]
    end = time.perf_counter() + seconds

    def ask(number: int) -> None:
        address = urlsplit(url)
        line = HTTPConnection(str(address.hostname), int(address.port or 80))
        at = number
        while (began := time.perf_counter()) < end:
            line.request("GET", f"/recommendations/{quote(users[at % len(users)], safe='')}")
            answer = line.getresponse()
            answer.read()
            assert answer.status == 200
            took[number].append(time.perf_counter() - began)
            at += connections

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [one for own in took for one in own]


def report(took: list[float], seconds: float) -> None:
    middle, slow = np.percentile(np.array(took) * 1000, [50, 99])
    print(f"{len(took) / seconds:,.0f} requests a second, median {middle:.1f} ms, p99 {slow:.1f} ms")


if __name__ == "__main__":
    main()
