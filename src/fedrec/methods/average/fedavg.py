"""FedAvg: everything that is not private is replaced by its mean over clients, weighted by sample counts.

McMahan et al. 2017, algorithm 1; with backbone ncf it is FedNCF (Perifanis & Efraimidis 2022). User vectors never
leave.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedrec import method as fm

HISTORY = "from which the sign attack recovers each user's entire history (AUC 1.000 on ml-100k after one round)"


@dataclass(frozen=True)
class FedAvg(fm.LocalMethod):
    info: ClassVar[fm.MethodInfo] = fm.MethodInfo(
        name="fedavg",
        summary="sample-weighted mean of item table and network",
        paper="McMahan et al., AISTATS 2017",
        aliases={"WAA": {}, "fedncf": {"backbone": "ncf"}},
        backbones=fm.usual_backbones("mf", "ncf", "sasrec"),
        new_users=30,
    )

    aggregated_fraction: fm.Share = 1.0
    shares: fm.Shares = "samples"  # equal: the plain mean, FedMF's (FCF in FedCA's comparison)
    layers: fm.Count = 2
    """ncf: hidden layers, the first dim wide and each half as wide as the one before."""
    score_with: fm.ScoreWith = "received"  # local: the client's own model after training

    @property
    def reveals(self) -> str:  # type: ignore[override]
        return HISTORY if self.backbone == "mf" else ""

    @property
    def working_tables(self) -> int:  # type: ignore[override]
        return 8 if self.keeps_models else 0

    def local(self, state: fm.State, down: fm.Down, chunk: fm.Chunk, round: int) -> tuple[fm.State, fm.Uploads]:
        """ClientUpdate(k, w)."""
        weight, own = self.client_weight(chunk), state.per_client.get("item")
        fitted = self.trainer.fit_common(chunk, round, state.per_user["user"], down.shared, weight, own)
        kept = {} if own is None else {"item": own, **fitted.dense}
        return fm.State(kept, {"user": fitted.user}), {
            name: fm.Mean(value, weight) for name, value in fitted.model.items()
        }

    def aggregate(self, server: fm.Tensors, ups: fm.Ups, round: int) -> fm.Tensors:
        """w <- sum_k n_k / n w_k."""
        return server | {name: ups[name] for name in server if name in ups}
