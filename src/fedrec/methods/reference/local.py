"""Local: every client trains alone from the common start and sends nothing. What federation adds shows against it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedrec import method as fm


@dataclass(frozen=True)
class Local(fm.LocalMethod):
    info: ClassVar[fm.MethodInfo] = fm.MethodInfo(
        name="local",
        summary="no exchange: each client alone",
        aliases={"IM": {}},
        backbones=fm.usual_backbones("mf", "ncf", "sasrec"),
        new_users=150,
    )
    models = "own"
    working_tables = 2

    rounds: fm.Count = 150
    table_dtype: fm.TableDtype = "full"

    @property
    def disclosure(self) -> fm.Disclosure:
        return fm.Disclosure(private=("user", "item", *self.model.dense_shapes()), attributes=self.attributes)

    def local(self, state: fm.State, down: fm.Down, chunk: fm.Chunk, round: int) -> tuple[fm.State, fm.Uploads]:
        user, own = self.trainer.fit_own(chunk, round, state.per_user["user"], state.per_client)
        return fm.State(self.trainer.narrow(own), {"user": user}), {}
