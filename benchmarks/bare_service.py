"""The least that a service of lists can be: FastAPI and numpy, for one model whose scores are inner products.

python -m benchmarks.bare_service FOLDER --port 8001

What `fedrec serve` is compared with: no titles, no filters, no limits, no errors, no counts, no newer model.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import uvicorn
from fastapi import FastAPI

from fedrec.serve import Recommender
from fedrec.serve.item_space import find_factors


def make_bare_app(folder: Path) -> FastAPI:
    """Take vectors and histories out of a model, and serve them without the library."""
    recommender = Recommender(folder)
    factors = find_factors(recommender.chosen)
    assert factors is not None, "a model whose scores are inner products is needed, such as one of fedmf"
    user_vectors, item_vectors = (np.ascontiguousarray(part.numpy(), np.float32) for part in factors)
    users = {str(name): place for place, name in enumerate(recommender.user_ids.tolist())}
    items = recommender.item_ids.tolist()
    split = recommender.run.prepared.split
    seen: list[list[int]] = [[] for _ in users]
    for part in (split.train, split.valid, split.test):
        for user, item in zip(*(part.user, part.item), strict=True) if part is not None else ():
            seen[user].append(item)
    histories = [np.array(sorted(own), dtype=np.int64) for own in seen]
    app = FastAPI()

    @app.get("/recommendations/{user}")
    async def recommend(user: str, k: int = 10) -> dict[str, Any]:
        place = users[user]
        scores = item_vectors @ user_vectors[place]
        scores[histories[place]] = -np.inf
        best = np.argpartition(-scores, k)[:k]
        best = best[np.argsort(-scores[best])]
        return {"user": user, "items": [{"item": items[item], "score": float(scores[item])} for item in best.tolist()]}

    return app


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--port", type=int, default=8001)
    asked = parser.parse_args()
    uvicorn.run(make_bare_app(asked.folder), port=asked.port, access_log=False, log_level="warning")


if __name__ == "__main__":
    main()
