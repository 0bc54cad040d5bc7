"""How many of the data's users a result is about, who they are, and which setting tests more of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from fedrec.data.filtered import LOWER_MINIMUM, LOWER_RATING
from fedrec.data.interactions import FEWEST_TO_SPLIT
from fedrec.evaluation import Protocol, parse_protocol
from fedrec.experiment.prepare import Prepared
from fedrec.schema import COUNT, TEXT, Shape

TESTED: Shape = {"users": COUNT, "of": COUNT, "who": TEXT, "setting": TEXT}
"""As a summary has it."""


@dataclass(frozen=True)
class Tested:
    """Users with a test item, and all users of the data before any filter."""

    users: int
    of: int
    who: str = ""
    """What the tested users have and the others lack."""
    setting: str = ""
    """What tests more of them, as it is given to `fedrec run`; empty where nothing does."""

    @staticmethod
    def from_summary(summary: Mapping[str, Any]) -> Tested | None:
        """None in summaries of earlier versions, which do not say."""
        found = summary.get("tested")
        return None if found is None else Tested(**{name: found[name] for name in TESTED})

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "share": round(self.share, 4)}

    @property
    def share(self) -> float:
        return self.users / self.of if self.of else 0.0

    @property
    def percent(self) -> str:
        """Never 0 or 100 where it is not."""
        hundredfold = 100 * self.share
        return f"{hundredfold:.0f} %" if 1 <= hundredfold < 99.5 else f"{min(max(hundredfold, 0.1), 99.9):.1f} %"

    @property
    def count(self) -> str:
        """How many, in a few words."""
        if self.users == self.of:
            return f"all {self.of:,} users" if self.of > 1 else "the only user"
        return f"{self.users:,} of {self.of:,} users ({self.percent})"

    @property
    def among(self) -> str:
        """The users of whom a share may be told."""
        if self.users == self.of:
            return self.count
        return f"the {self.users:,} tested users ({self.percent} of {self.of:,})"

    def __str__(self) -> str:
        who = f", those with {self.who}" if self.who else ""
        return f"{self.count}{who}" + (f"; {self.setting} tests more" if self.setting else "")


def count_tested(prepared: Prepared) -> Tested:
    """What a protocol tests of a data set."""
    lost = {
        remedy: sum(one.users for one in prepared.filters if one.remedy == remedy)
        for remedy in (LOWER_MINIMUM, LOWER_RATING)
    }
    users, kept = len(prepared.test), prepared.source.n_users
    few, rated = (lost[remedy] > 0 for remedy in (LOWER_MINIMUM, LOWER_RATING))
    return _explain_tested(
        prepared.protocol, prepared.source.name, users, kept, prepared.users_before_filters, few, rated
    )


def count_tested_by_nodes(protocol: Protocol, data: str, users: int, kept: int, given: int) -> Tested:
    """The same of a federation, in which nodes say no more than how many users they have and how many of them train."""
    few = given > kept
    return _explain_tested(protocol, data, users, kept, given, few, few and protocol.min_rating is not None)


def _explain_tested(protocol: Protocol, data: str, users: int, kept: int, given: int, few: bool, rated: bool) -> Tested:
    """`few`, `rated`: whether users were left out because of the minimum of items, or of the threshold of ratings."""
    minimum, by_user = protocol.min_interactions_for(data), protocol.split == "leave-one-out"
    least = FEWEST_TO_SPLIT if by_user else 1
    who, settings = list[str](), list[str]()
    if few or (by_user and users < kept):
        who.append(f"at least {max(minimum, least) if few else least} items")
    if few and minimum > least:
        settings.append(f"--protocol {parse_protocol(f'{protocol.label},min_interactions={least}').label}")
    if rated:
        who.append("ratings above 0" if protocol.min_rating is None else f"ratings from {protocol.min_rating:g} on")
    if rated and protocol.min_rating is not None:
        settings.append("a lower --min-rating")
    if users < kept and not by_user:
        who.append("items in the test part")
    return Tested(users, given, " and ".join(who), " or ".join(settings))
