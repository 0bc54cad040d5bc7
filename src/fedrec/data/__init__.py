"""Datasets, splits and partitions. Knows nothing of models."""

from fedrec.data.atomic import atomic_file, require_unlinked
from fedrec.data.catalogue import Entry, Layout, datasets, entry, load, require_no_columns, with_ties
from fedrec.data.fetch import cache_folder
from fedrec.data.filtered import Filtered
from fedrec.data.imported import import_table
from fedrec.data.interactions import Description, Interactions, ItemInfo, from_raw
from fedrec.data.items import with_items
from fedrec.data.joined import Joined, Lost, described_by, join, lost
from fedrec.data.partition import Partition, from_labels, one_user_per_client, silos
from fedrec.data.ratings import ratings_note
from fedrec.data.splits import (
    Split,
    before_test,
    cold_items,
    disjoint,
    global_time,
    leave_one_out,
    ratio,
    read,
    reunited,
    undivided,
    whole,
    write,
)
from fedrec.data.stored import StoredSplit, load_split, stored_split, stored_splits
from fedrec.data.synthetic import World, synthetic
from fedrec.data.table import Guess, read_table, write_csv

__all__ = [
    "Description",
    "Entry",
    "Filtered",
    "Guess",
    "Interactions",
    "ItemInfo",
    "Joined",
    "Layout",
    "Lost",
    "Partition",
    "Split",
    "StoredSplit",
    "World",
    "atomic_file",
    "before_test",
    "cache_folder",
    "cold_items",
    "datasets",
    "described_by",
    "disjoint",
    "entry",
    "from_labels",
    "from_raw",
    "global_time",
    "import_table",
    "join",
    "leave_one_out",
    "load",
    "load_split",
    "lost",
    "one_user_per_client",
    "ratings_note",
    "ratio",
    "read",
    "read_table",
    "require_no_columns",
    "require_unlinked",
    "reunited",
    "silos",
    "stored_split",
    "stored_splits",
    "synthetic",
    "undivided",
    "whole",
    "with_items",
    "with_ties",
    "write",
    "write_csv",
]
