"""What a method is written with, in one place: `from fedrec import method as fm`.

    @dataclass(frozen=True)
    class MyMethod(fm.LocalMethod):
        info = fm.MethodInfo("mymethod", summary="one line", backbones={"mf": {}})

**A method** derives from `LocalMethod` (devices that train a backbone by gradient descent), `SiloMethod` (companies
with many users each) or `Method` (anything else), and declares what it is (`MethodInfo`) and what it discloses
(`Disclosure`). The numbers that a parameter takes stand on its type: `Count`, `Share`, `Positive`, or an interval as
in `Annotated[float, "[0, 1)"]`. Presets and a search space come from `mymethod.toml` beside `mymethod.py`.

**What its functions are given and return**: the public facts (`World`), the clients at work (`Chunk`), their `State`,
what comes down (`Down`, `Answer`), who takes part (`Plan`, `participants`), and what has arrived (`Ups`).

**What goes up** says how it is reduced: `Sum`, `Mean`, `Gather`; `Rows` is a table of which few rows have changed.

`docs/architecture.md` has the whole contract, CONTRIBUTING.md a complete example.
"""

from __future__ import annotations

from fedrec import random
from fedrec.errors import FedrecError
from fedrec.federation.accumulator import sum_in_double
from fedrec.federation.clients import Chunk, ClientData
from fedrec.federation.contract import (
    Answer,
    Cohort,
    Disclosure,
    Down,
    Footprint,
    Gather,
    Mean,
    Method,
    MethodInfo,
    OwnNoise,
    PartialSum,
    Plan,
    Reduction,
    Rows,
    State,
    Sum,
    Tensors,
    Upload,
    Uploads,
    Ups,
    World,
    participants,
    replicate,
)
from fedrec.federation.ranges import Count, Interval, Positive, Share
from fedrec.federation.settings_files import settings_beside
from fedrec.federation.stack import Stack
from fedrec.models import MF, NCF, Backbone, Linear
from fedrec.training.descent import Fitted
from fedrec.training.initial import draw_layers, draw_rows
from fedrec.training.local_training import (
    IN_TURN,
    TOGETHER,
    LocalMethod,
    LocalTrainer,
    ScoreWith,
    Shares,
    usual_backbones,
)
from fedrec.training.optimisers import adam_step
from fedrec.training.participation import part_of
from fedrec.training.precision import TableDtype
from fedrec.training.silo_method import SiloMethod

__all__ = [
    "IN_TURN",
    "MF",
    "NCF",
    "TOGETHER",
    "Answer",
    "Backbone",
    "Chunk",
    "ClientData",
    "Cohort",
    "Count",
    "Disclosure",
    "Down",
    "FedrecError",
    "Fitted",
    "Footprint",
    "Gather",
    "Interval",
    "Linear",
    "LocalMethod",
    "LocalTrainer",
    "Mean",
    "Method",
    "MethodInfo",
    "OwnNoise",
    "PartialSum",
    "Plan",
    "Positive",
    "Reduction",
    "Rows",
    "ScoreWith",
    "Share",
    "Shares",
    "SiloMethod",
    "Stack",
    "State",
    "Sum",
    "TableDtype",
    "Tensors",
    "Upload",
    "Uploads",
    "Ups",
    "World",
    "adam_step",
    "draw_layers",
    "draw_rows",
    "part_of",
    "participants",
    "random",
    "replicate",
    "settings_beside",
    "sum_in_double",
    "usual_backbones",
]
