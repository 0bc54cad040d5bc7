"""A shop's log as shops have them: many rows, some of them bad, times in several formats; and the rows of the next day.

    python examples/shop_log.py --out shop            # shop/log.csv, shop/day.csv, shop/catalogue.csv

The rows are made up (`fedrec.data.synthetic`), so they may be shared; the same seed makes the same files.
"""

from __future__ import annotations

import argparse
import csv
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from fedrec.data import synthetic

BRANDS = ("Alder", "Birch", "Cedar", "Elm", "Fir", "Hazel", "Larch", "Maple")
DAMAGE = ("no customer", "no product", "a word for the rating", "no time", "too many cells", "an open quote")


def spoil(row: list[str], kind: str) -> str:
    """A row as it comes out of a broken export."""
    customer, product, rating, time = row
    return {
        "no customer": f",{product},{rating},{time}",
        "no product": f"{customer},NULL,{rating},{time}",
        "a word for the rating": f"{customer},{product},good,{time}",
        "no time": f"{customer},{product},{rating},yesterday",
        "too many cells": f"{customer},{product},{rating},{time},EUR,19.90",
        "an open quote": f'{customer},"{product},{rating},{time}',
    }[kind]


def write_time(seconds: int, how: int) -> str:
    """As three of the shop's systems do."""
    moment = datetime.fromtimestamp(seconds, UTC)
    return (f"{moment:%Y-%m-%d %H:%M:%S}", f"{moment:%Y-%m-%dT%H:%M:%SZ}", str(seconds))[how]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("shop"))
    parser.add_argument("--rows", type=int, default=300_000)
    parser.add_argument("--bad", type=int, default=600)
    parser.add_argument("--users", type=int, default=20_000)
    parser.add_argument("--items", type=int, default=4_000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    world = synthetic(given.users, given.items, given.rows, given.seed).interactions
    assert world.timestamp is not None
    rng, order = np.random.default_rng(given.seed), np.argsort(world.timestamp, kind="stable")
    bad = set(rng.choice(given.rows, given.bad, replace=False).tolist())
    tomorrow = given.rows - given.rows // 300  # about what arrives in a day of the year that the log covers
    given.out.mkdir(parents=True, exist_ok=True)
    with (given.out / "log.csv").open("w", newline="") as log, (given.out / "day.csv").open("w", newline="") as day:
        for file in (log, day):
            file.write("customer_id,sku,stars,event_time\n")
        for place, row in enumerate(order.tolist()):
            seconds, user = int(world.timestamp[row]), int(world.user[row])
            cells = [f"c{user:05}", f"p{world.item[row]:04}", str(rng.integers(1, 6)), write_time(seconds, user % 3)]
            text = spoil(cells, DAMAGE[place % len(DAMAGE)]) if place in bad else ",".join(cells)
            (day if place >= tomorrow else log).write(text + "\n")
    with (given.out / "catalogue.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["sku", "product_name", "brand", "price"])
        for item in range(given.items):
            writer.writerow([f"p{item:04}", f"Thing {item}", BRANDS[item % len(BRANDS)], f"{rng.lognormal(3, 1):.2f}"])
    print(f"{given.out}: log.csv, day.csv, catalogue.csv")


if __name__ == "__main__":
    main()
