"""Which column of a table plays which role: as asked for, else by names and by values; never a guess between two."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fedrec.data.content import Content
from fedrec.errors import FedrecError, unknown

Columns = Mapping[str, str | int]
"""Role to the name of its column, to its number from 1, or to `none`: no column has this role."""
Ask = Callable[[str, str], str]
"""How whoever reads a message chooses a column for a role."""
NONE = "none"


def by_flag(role: str, column: str) -> str:
    return f"--{role} {shlex.quote(column)}"


def by_keyword(role: str, column: str) -> str:
    return f'{role}="{column}"'


@dataclass(frozen=True)
class ColumnRequest:
    """What whoever gives a table says about its columns, and how messages ask for more."""

    columns: Columns = field(default_factory=dict)
    usual: Columns = field(default_factory=dict)
    """Names that are taken where the table has them."""
    ask: Ask = by_flag

    def among(self, names: Sequence[str]) -> dict[str, str | int]:
        """The columns to take of a table with these names."""
        # What the caller named replaces what is usual, so the explicit choice is the right operand.
        return {role: name for role, name in self.usual.items() if name in names} | dict(self.columns)

    def names(self) -> list[str]:
        """Those that must be in the header."""
        return [column for column in self.columns.values() if isinstance(column, str) and column != NONE]


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


ROLES: dict[str, tuple[str, ...]] = {
    "user": _names(
        "user userid username uid u reviewer reviewerid customer customerid customernumber customerno custid member "
        "memberid visitor visitorid buyer buyerid shopper shopperid account accountid subscriber subscriberid viewer "
        "viewerid listener listenerid reader readerid player playerid patron patronid borrower borrowerid consumer "
        "consumerid"
    ),
    "item": _names(
        "item itemid iid i itemcode movie movieid film filmid product productid productcode asin parentasin book "
        "bookid isbn artist artistid track trackid song songid article articleid articlenumber business businessid "
        "sku skuid stockcode content contentid news newsid video videoid game gameid recipe recipeid restaurant "
        "restaurantid venue venueid poi poiid hotel hotelid listing listingid anime animeid album albumid podcast "
        "podcastid episode episodeid paper paperid goods goodsid ean gtin upc barcode"
    ),
    "rating": _names("rating ratings score stars star weight value count plays overall preference rate grade"),
    "timestamp": _names(
        "timestamp unixtimestamp timestampms ts unixreviewtime unixtime datetime eventtime time createdat date"
    ),
    "title": _names("itemtitle itemname producttitle productname movietitle"),  # a bare title may be that of a review
    "silo": (),  # by request alone: users are not divided by a guess
}
"""What columns are commonly called, in the order in which files without header list them."""
LIKELY: dict[str, tuple[str, ...]] = {
    "user": _names(
        "client clientid person personid profile profileid household householdid householdkey patient patientid "
        "student studentid guest guestid session sessionid device deviceid author authorid email"
    ),
    "item": _names(
        "app appid show showid job jobid course courseid page pageid post postid document documentid doc docid url "
        "offer offerid place placeid location locationid variant variantid"
    ),
}
"""What else they may be called; taken where a single column has such a name and none a usual one."""

_IDS, _NUMBERS, _MOMENTS = ("whole", "words", "days", "epochs"), ("whole", "real"), ("dates", "epochs", "days")
_RATING_WORDS = {"rating", "ratings", "stars", "score"}
_SUMMED_WORDS = {"avg", "average", "mean", "count", "num", "number", "total", "sum", "content", "age"}
_TIME_WORDS = {"time", "date", "datetime", "timestamp", "ts", "stamp", "day", "when"}
_TIME_ENDING = re.compile(r"(timestamp|datetime|time|date|ed(at|on))$")
_OTHER_TIMES = re.compile(
    r"birth|born|dob|releas|publish|expir|until|updat|modif|delet|signup|regist|join|zone|spent|durat|dwell|deliver"
    r"|ship|valid|first|last|since|due"
)
"""In the names of times that are not those of the interaction."""
_NUMBERED = re.compile(r"(id|ids|no|nr|number|code|key|phone|ean|gtin|isbn|index)$")
_TOO_MANY = 20  # names of columns that fit in one message


@dataclass(frozen=True)
class Column:
    """A column as it stands in the file: its number from 0, its name, and what its first values are."""

    place: int
    name: str
    holds: Content = "nothing"

    @property
    def plain(self) -> str:
        return plain_name(self.name)


@dataclass(frozen=True)
class Roles:
    """The column (from 0) of each role, and what is to be said of it (`why`) or of one that has none (`maybe`)."""

    places: dict[str, int]
    why: dict[str, str] = field(default_factory=dict)
    maybe: dict[int, str] = field(default_factory=dict)

    def column_names(self, names: Sequence[str]) -> dict[str, str]:
        return {role: names[place] for role, place in self.places.items()}

    def column_choices(self, names: Sequence[str]) -> dict[str, str]:
        """What chooses the same columns again: names, or numbers where those do not tell columns apart."""

        def choice_of(place: int) -> str:
            name = names[place]
            # A name that reads as a number would be taken for a position, so such a column is recorded by its position.
            return name if names.count(name) == 1 and name != NONE and as_column(name) == name else str(place + 1)

        chosen = ("user", "item", "rating", "timestamp")
        return {role: choice_of(self.places[role]) if role in self.places else NONE for role in chosen}

    def describe_unused(self, names: Sequence[str]) -> str:
        """The columns without a role, and what they may be."""
        others = [place for place in range(len(names)) if place not in self.places.values()]
        words = [names[place] + (f" ({self.maybe[place]})" if place in self.maybe else "") for place in others]
        return join_names(words)


def as_column(text: str | int) -> str | int:
    """A column as it is given on the command line: a name, or a number from 1."""
    # At most nine digits: a longer run is an id or a date in a headerless file, never the number of a column.
    return int(text) if isinstance(text, str) and re.fullmatch("[0-9]{1,9}", text) else text


def as_columns(given: Mapping[str, str | int | None]) -> dict[str, str | int]:
    """Those that were given at all."""
    return {role: as_column(column) for role, column in given.items() if column is not None}


def plain_name(name: str) -> str:
    """'User_ID', 'userId' and RecBole's 'user_id:token' are one name."""
    # The part after the colon is RecBole's type of the column and no part of its name.
    return re.sub(r"[^a-z0-9]", "", name.split(":")[0].lower())


def is_name_of(role: str, name: str) -> bool:
    """Whether a column of this name is commonly this one."""
    return plain_name(name) in (*ROLES[role], *LIKELY.get(role, ()))


def is_known(name: str) -> bool:
    """Whether it is commonly the name of a column."""
    return any(is_name_of(role, name) for role in ROLES)


def join_names(names: Sequence[str]) -> str:
    """As many as fit in one message, each in a length that does."""
    shown = [name if len(name) <= 100 else f"{name[:40]}..." for name in names[:_TOO_MANY]]
    return ", ".join(shown) + (f" and {len(names) - _TOO_MANY:,} more" if len(names) > _TOO_MANY else "")


def find_roles(
    path: Path | str, columns: Sequence[Column], header: bool, wish: ColumnRequest = ColumnRequest()
) -> Roles:
    """What the caller says goes before what names and values suggest."""
    names, ask = [column.name for column in columns], wish.ask
    given = wish.among(names)
    asked = {role: _find_column(path, names, role, column) for role, column in given.items() if column != NONE}
    _require_ids(given, ask)
    # One column in two roles would make every user his own item, which trains without an error.
    if len(set(asked.values())) < len(asked):
        raise FedrecError(f"{path}: the same column is given as {' and '.join(asked)}; give two different ones")
    free = [column for column in columns if column.place not in asked.values()]
    guess = _Guess(path, ask, free)
    if header:
        guess.by_names([role for role in ROLES if role not in given])
    # Positions mean something only where nobody has named a column; one named column makes the others unclear.
    elif not asked:
        guess.by_position()
    roles = {role: place for role, place in guess.places.items() if role not in given} | asked
    numbered = {asked[role] for role, column in given.items() if isinstance(column, int)}
    # A column asked for by number is unambiguous even if its name occurs twice.
    for place in set(roles.values()) - numbered:
        if names.count(names[place]) > 1:
            raise FedrecError(
                f"{path} has two columns '{names[place]:.40}'; rename one, or choose by number: "
                f"{ask('user', '1')} {ask('item', '2')}"
            )
    if missing := [role for role in ("user", "item") if role not in roles]:
        raise guess.error(missing, names)
    return Roles({role: roles[role] for role in ROLES if role in roles}, guess.why, guess.maybe)


def _require_ids(given: Columns, ask: Ask) -> None:
    for role in ("user", "item"):
        if given.get(role) == NONE:
            raise FedrecError(f"{ask(role, NONE)}: every interaction has a user and an item; name their columns")


def _find_column(path: Path | str, names: Sequence[str], role: str, column: str | int) -> int:
    if role not in ROLES:
        raise unknown("column role", role, ROLES)
    if isinstance(column, int):
        if not 1 <= column <= len(names):
            raise FedrecError(f"{path} has columns 1 to {len(names)}, not {column}: {join_names(names)}")
        return column - 1
    if column not in names:
        raise FedrecError(f"{path} has no column '{column:.40}'; it has {join_names(names)}")
    return names.index(column)


class _Guess:
    """Roles of the columns that nobody has named, and what to say about them."""

    def __init__(self, path: Path | str, ask: Ask, columns: Sequence[Column]) -> None:
        self.path, self.ask, self.columns = path, ask, columns
        self.places: dict[str, int] = {}
        self.why: dict[str, str] = {}
        self.maybe: dict[int, str] = {}

    def _free_columns(self) -> list[Column]:
        return [column for column in self.columns if column.place not in self.places.values()]

    def _find_usual(self, role: str) -> list[Column]:
        return [column for column in self._free_columns() if column.plain in ROLES[role]]

    def _offer(self, role: str, columns: Sequence[Column]) -> None:
        what = {"timestamp": "times", "rating": "ratings"}.get(role, f"the {role}")
        self.maybe |= {c.place: f"may be {what}: {self.ask(role, c.name)}" for c in columns}

    # -- with a header --

    def by_names(self, roles: Sequence[str]) -> None:
        # In this order: a role that comes first takes its column from the others, and ids are the surest.
        finders: dict[str, Callable[[], Column | None]] = {
            "user": lambda: self._ids("user"),
            "item": lambda: self._ids("item"),
            "title": lambda: next(iter(self._find_usual("title")), None),
            "rating": self._rating,
            "timestamp": self._time,
        }
        for role, find in finders.items():
            if role in roles and (column := find()) is not None:
                self.places[role] = column.place

    def _ids(self, role: str) -> Column | None:
        # 'user_id' goes before 'user', which is often a readable name beside it.
        usual = sorted(self._find_usual(role), key=lambda c: (c.holds not in _IDS, not c.plain.endswith("id"), c.place))
        found = usual or [column for column in self._free_columns() if column.plain in LIKELY[role]]
        # One likely name is taken, two are offered: a wrong user column gives plausible but worthless results.
        chosen = found[0] if usual or len(found) == 1 else None
        self._offer(role, [column for column in found if column is not chosen])
        return chosen

    def _rating(self) -> Column | None:
        """By its name, or where it is named after ratings beside other words, and holds numbers."""
        usual = sorted(
            self._find_usual("rating"), key=lambda c: (c.holds not in _NUMBERS, ROLES["rating"].index(c.plain))
        )
        # A column named count or value counts as a rating only with numbers in it; stars is one even as text.
        if usual and (usual[0].holds in _NUMBERS or usual[0].plain in _RATING_WORDS):
            return usual[0]
        found = [column for column in self._free_columns() if _is_rating_name(column.name) and column.holds in _NUMBERS]
        if len(found) == 1:
            return found[0]
        self._offer("rating", found)
        return None

    def _time(self) -> Column | None:
        """By its name and its values: a usual name, another name of a time, dates; at last a usual name alone."""
        left = self._free_columns()
        usual = sorted(self._find_usual("timestamp"), key=lambda c: ROLES["timestamp"].index(c.plain))
        own = [column for column in left if not _OTHER_TIMES.search(column.plain)]
        # From the surest sign to the weakest; the first tier with any column decides, the weaker ones never outvote it.
        tiers = [
            [column for column in usual if column.holds in _MOMENTS][:1],
            [column for column in own if _is_time_name(column.name) and column.holds in _MOMENTS],
            [column for column in usual if column.holds in _NUMBERS][:1],
            [column for column in own if column.holds == "dates"],
            usual[:1],
        ]
        found = next(filter(None, tiers), [])
        # Two candidates are an error and not a choice: the wrong clock would put the future into training.
        if len(found) > 1:
            names = f"{', '.join(c.name for c in found[1:])} and {found[0].name}"
            raise FedrecError(
                f"{self.path}: {names} look like times; say which is that of the interaction: "
                f"{self.ask('timestamp', found[0].name)}, or {self.ask('timestamp', NONE)}"
            )
        if not found:
            self._offer("timestamp", [column for column in left if _may_be_time(column)])
            return None
        if found[0] not in usual and not _is_time_name(found[0].name):
            self.why["timestamp"] = "its values are dates"
        return found[0]

    def error(self, missing: Sequence[str], names: Sequence[str]) -> FedrecError:
        """Where a column is missing that must be there; those that can hold ids are offered."""
        able = [column.name for column in self._free_columns() if column.holds in _IDS]
        asked = " ".join(self.ask(role, "COLUMN") for role in missing)
        return FedrecError(
            f"{self.path}: no column for {' and '.join(missing)} among {join_names(names)}; rename one, or "
            f"choose with: {asked}" + (f" (perhaps {join_names(able)})" if able else "")
        )

    # -- without --

    def by_position(self) -> None:
        """User, item, then a rating, a time or both; the time comes last unless values say otherwise."""
        # More than user, item, rating and time cannot be told apart by position.
        if len(self.columns) > 4:
            raise FedrecError(
                f"{self.path} has {len(self.columns)} columns and no header; add one, or choose columns "
                f"by number: {self.ask('user', '1')} {self.ask('item', '2')}"
            )
        timed = [column.holds in _MOMENTS for column in self.columns[2:]]
        rest = ["timestamp", "rating"] if timed in ([True], [True, False]) else ["rating", "timestamp"]
        for role, column in zip(["user", "item", *rest], self.columns, strict=False):
            # A third or fourth column of words is a title or a note, neither rating nor time.
            if role in ("user", "item") or column.holds != "words":
                self.places[role] = column.place


def _split_name(name: str) -> list[str]:
    """'eventTime', 'Event Time' and 'event_time' have two words."""
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name.split(":")[0])]


def _is_rating_name(name: str) -> bool:
    words = set(_split_name(name))
    return bool(words & _RATING_WORDS) and not words & _SUMMED_WORDS


def _is_time_name(name: str) -> bool:
    words = _split_name(name)
    return bool(
        _TIME_WORDS & set(words)
        or (len(words) > 1 and words[-1] in ("at", "on"))
        or _TIME_ENDING.search(plain_name(name))
    )


def _may_be_time(column: Column) -> bool:
    """Whether it is worth a word that it was not taken for one."""
    if _NUMBERED.search(column.plain):
        return False
    return column.holds in ("dates", "epochs") or (_is_time_name(column.name) and column.holds != "nothing")
