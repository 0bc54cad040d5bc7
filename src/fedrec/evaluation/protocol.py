"""Protocols: the frozen record of every choice between a ratings file and a printed number."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedrec.errors import FedrecError, unknown
from fedrec.evaluation import fields
from fedrec.evaluation.metrics import require_known


@dataclass(frozen=True)
class Protocol:
    """Every field is a value, so a protocol can be printed, stored, compared and overridden field by field."""

    name: str
    min_interactions: int = 10
    """Users with fewer distinct items are dropped."""
    min_interactions_at: tuple[tuple[str, int], ...] = (("ml-1m", 20),)
    """Data sets with another minimum; overriding `min_interactions` by text drops these exceptions."""
    min_rating: float | None = None
    """Ratings of at least this are positives; None: every rating above 0."""
    split: str = "leave-one-out"
    test_share: float = 0.1
    """Share of the interactions (cold-items: of the items) held out for test; leave-one-out has no use for shares."""
    valid_share: float = 0.1
    """Share of the rest, without the test part, held out for validation."""
    train_fraction: float = 1.0
    """Share of the training items that every user keeps; the others are unknown to the client and never ranked."""
    time: str = "real"
    """What orders a user's interactions."""
    time_missing: str = "random"
    """What replaces `time=real` in data without time stamps; `refuse` is an error."""
    split_ties: str = "random"
    """Among equal times: a seeded random order, or the first line counts as the latest."""
    partition: str = "user"
    """`user`: every user is a client; else silos as `K` or `K:contiguous|random|taste`."""
    negatives: int = 4
    """Training negatives per positive."""
    neg_pool: str = "honest"
    """`honest`: all items outside the user's training items; `leaked`: outside all of the user's items."""
    neg_unique: str = "positive"
    """No item comes twice among the negatives of one `positive`, or among all of a `user` in a round."""
    candidates: str = "full"
    mask_val_at_test: bool = True
    mask_test_at_validation: bool = False
    """Keep test items out of the candidates at validation, as some published code does."""
    history_at_test: str = "all"
    """What users' histories hold when test items are ranked: `train`, or `all`: the validation items as well."""
    ties: str = "expected"
    select_metric: str = "ndcg@10"
    """Metric that picks the round; several are added up: `recall@20+recall@50`."""
    select_on: str = "validation"
    select_last: bool = False
    """Among rounds of equal value take the last instead of the first."""
    patience: int | None = None
    """Evaluated rounds without improvement before stopping; None: never stop early."""
    ks: tuple[int, ...] = (5, 10, 20)
    metrics: tuple[str, ...] = ("recall", "ndcg", "mrr", "coverage", "novelty")

    def __post_init__(self) -> None:
        for key, value in dataclasses.asdict(self).items():
            fields.check(key, value)
        for key, value, other, implied, why in IMPLIED:
            if getattr(self, key) == value and getattr(self, other) != implied:
                raise FedrecError(f"{why}, so {key}={value} needs {other}={fields.text(implied)}")

    def min_interactions_for(self, dataset: str) -> int:
        """The minimum for a data set; a stored split such as `ml-1m:x` follows its data set."""
        return dict(self.min_interactions_at).get(dataset.split(":")[0], self.min_interactions)

    def time_rule(self, stamped: bool) -> str:
        """What orders the interactions of a data set, given whether it has real time stamps."""
        rule = self.time if stamped or self.time != "real" else self.time_missing
        if rule == "refuse":
            raise FedrecError(
                f"protocol '{self.label}' needs timestamps, which this data lacks; use honest, or name a column of "
                "times with --timestamp"
            )
        return rule

    @property
    def selecting(self) -> tuple[str, ...]:
        """Metrics, without k, that an evaluation in between needs."""
        return tuple(sorted({name.split("@")[0] for name in self.select_metric.split("+")} | {"recall", "ndcg"}))

    @property
    def all_metrics(self) -> tuple[str, ...]:
        """All metrics that are asked for, or that selection needs."""
        return tuple(dict.fromkeys([*self.metrics, *self.selecting]))

    def selection_value(self, means: Mapping[str, float]) -> float:
        """What selection maximises, from the averages of one evaluation."""
        names = self.select_metric.split("+")
        for name in names:
            if name not in means:
                raise FedrecError(f"selection by '{name}' needs it among the metrics: {', '.join(sorted(means))}")
        return sum(means[name] for name in names)

    @property
    def label(self) -> str:
        """Preset name and the fields that differ from it; `protocol(label)` gives the protocol back."""
        preset = PRESETS.get(self.name, self)
        changed = {key for key in FIELDS if getattr(self, key) != getattr(preset, key)}
        # Overriding the minimum drops the exceptions by itself, so a label that is read again needs no word of it.
        if "min_interactions" in changed and not self.min_interactions_at:
            changed.discard("min_interactions_at")
        # Likewise for what another field of the label brings with it.
        changed -= {other for key, value, other, *_ in IMPLIED if key in changed and getattr(self, key) == value}
        return ",".join([self.name, *(f"{key}={fields.text(getattr(self, key))}" for key in sorted(changed))])

    @property
    def masks(self) -> str:
        """Which items tested lists leave out, and why."""
        left_out = "training and validation items" if self.mask_val_at_test else "training items"
        return f"tested lists leave out users' {left_out} and rank the test items"

    @property
    def leaks(self) -> tuple[str, ...]:
        """One sentence for each choice that keeps the figures from being read as recommendation accuracy."""
        return tuple(sentence for key, value, sentence in LEAKS if getattr(self, key) == value)


# (field, value, other field, what it must be, why): overriding the first by text sets the other as well.
IMPLIED: tuple[tuple[str, Any, str, Any, str], ...] = (
    *(
        ("candidates", rule, "mask_test_at_validation", True, "sampled candidates lie outside all items of the user")
        for rule in ("sampled99", "split198")
    ),
    (
        "split",
        "cold-items",
        "history_at_test",
        "train",
        "the cold items of the validation part are unseen by every model",
    ),
)

FIELDS = tuple(field.name for field in dataclasses.fields(Protocol) if field.name != "name")

# The honest value of every field has no entry here.
LEAKS: tuple[tuple[str, Any, str], ...] = (
    (
        "neg_pool",
        "leaked",
        "training negatives avoid the held-out items, so a private item table finds them by elimination",
    ),
    ("select_on", "test", "the reported round is chosen by its test value"),
    (
        "candidates",
        "sampled99",
        "each held-out item is ranked among 99 sampled items, the same for validation and test, not the catalogue",
    ),
    ("candidates", "split198", "each held-out item is ranked among 99 sampled items, not the catalogue"),
    ("ties", "first", "among equal scores the held-out item is placed last, so a constant scorer gets 0"),
    ("ties", "item_id", "among equal scores the lower item id wins, so the numbering of items matters"),
    ("mask_val_at_test", False, "validation items compete with the test items"),
    (
        "mask_test_at_validation",
        True,
        "test items are not candidates at validation, so which items are tested enters the choice of the round",
    ),
    ("time", "item_order", "items are ordered by first appearance in the file, which is not time"),
    ("time", "line_order", "interactions are ordered by line in the file, which need not be time"),
    ("time_missing", "item_order", "without timestamps, items are ordered by first appearance in the file"),
    ("time_missing", "line_order", "without timestamps, interactions are ordered by line in the file"),
)

# The published ones differ from `honest` in what their papers and released code do, and in nothing else.
PRESETS: dict[str, Protocol] = {
    preset.name: preset
    for preset in (
        Protocol("honest"),
        Protocol(
            "honest-time",
            split="global-time",
            time_missing="refuse",
            metrics=("recall", "ndcg", "precision", "f1", "mrr", "map", "coverage", "novelty"),
        ),
        Protocol(
            "fedca",
            min_interactions_at=(),
            time_missing="item_order",
            split_ties="first",
            neg_pool="leaked",
            candidates="sampled99",
            mask_test_at_validation=True,
            history_at_test="train",
            ties="first",
            select_metric="hr@10",
            select_on="test",
            ks=(10,),
            metrics=("hr", "ndcg"),
        ),
        Protocol(
            "fedrap",
            min_interactions_at=(),
            time_missing="item_order",
            split_ties="first",
            neg_pool="leaked",
            candidates="sampled99",
            mask_test_at_validation=True,
            history_at_test="train",
            ties="first",
            select_metric="hr@10",
            select_on="test",
            ks=(10,),
            metrics=("hr", "ndcg"),
        ),
        Protocol(
            "pfedrec",
            min_interactions=3,
            min_interactions_at=(),
            time_missing="line_order",
            split_ties="first",
            neg_pool="leaked",
            candidates="split198",
            mask_test_at_validation=True,
            history_at_test="train",
            ties="first",
            select_metric="hr@10",
            select_last=True,
            ks=(10,),
            metrics=("hr", "ndcg"),
        ),
        Protocol(
            "cgfedrec",
            min_interactions=5,
            min_interactions_at=(),
            time_missing="line_order",
            split_ties="first",
            neg_pool="leaked",
            candidates="split198",
            mask_test_at_validation=True,
            history_at_test="train",
            ties="first",
            select_metric="hr@5",
            patience=10,
            ks=(5,),
            metrics=("hr", "ndcg"),
        ),
        Protocol(
            "fedrkg",
            time_missing="item_order",
            split_ties="first",
            neg_pool="leaked",
            mask_test_at_validation=True,
            history_at_test="train",
            patience=100,
            ks=(5, 10),
            metrics=("recall", "ndcg"),
        ),
        Protocol("fedrkg-honest", patience=100, ks=(5, 10), metrics=("recall", "ndcg")),
        Protocol(
            "fedcia",
            min_interactions=1,
            min_interactions_at=(),
            split="ratio",
            test_share=0.2,
            valid_share=0.1,
            partition="100:contiguous",
            negatives=1,
            history_at_test="train",
            ties="item_id",
            select_metric="f1_of_means@10",
            patience=10,
            ks=(10,),
            metrics=("f1_of_means", "mrr", "ndcg", "precision", "recall", "f1", "mrr_released", "ndcg_released"),
        ),
        Protocol(
            "ifedrec",
            min_interactions=1,
            min_interactions_at=(),
            split="cold-items",
            test_share=0.14,
            # 6 of the 86 percent that the test part leaves.
            valid_share=0.0698,
            negatives=5,
            history_at_test="train",
            neg_unique="user",
            ties="item_id",
            select_metric="recall@20+recall@50+recall@100",
            select_last=True,
            ks=(20, 50, 100),
            metrics=("precision", "recall", "ndcg", "ndcg_index", "ndcg_ifedrec"),
        ),
    )
}


def protocol(spec: str = "honest") -> Protocol:
    """Read `name[,field=value...]`; lists are joined by `+`, as in `honest,ks=10+20,neg_pool=leaked`."""
    found = parse_protocol(spec)
    require_known(found.all_metrics)
    return found


def parse_protocol(spec: str) -> Protocol:
    """Parse the protocol of a run that was done: its metrics need not be registered here and now."""
    name, *overrides = (part.strip() for part in spec.split(","))
    if name not in PRESETS:
        raise unknown("protocol", name, PRESETS)
    changes: dict[str, Any] = {}
    for part in overrides:
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals:
            several = "; several protocols are separated by semicolons" if part in PRESETS else ""
            raise FedrecError(f"protocol override '{part}' has no value; write field=value{several}")
        if key not in FIELDS:
            raise unknown("protocol field", key, FIELDS)
        changes[key] = fields.parse(key, value)
    # A plain number is meant for every data set; exceptions stay only if they are written beside it.
    if "min_interactions" in changes:
        changes.setdefault("min_interactions_at", ())
    for key, value, other, implied, _ in IMPLIED:
        if changes.get(key) == value:
            changes.setdefault(other, implied)
    return dataclasses.replace(PRESETS[name], **changes)
