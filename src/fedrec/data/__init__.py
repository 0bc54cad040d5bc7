"""Datasets, splits and partitions. Knows nothing of models."""

from fedrec.data.atomic import atomic_file, require_unlinked
from fedrec.data.catalogue import Entry, Layout, datasets, entry, load, require_no_columns, with_ties
from fedrec.data.companies import partition_by_company
from fedrec.data.fetch import cache_folder
from fedrec.data.filtered import Filtered
from fedrec.data.imported import import_table
from fedrec.data.interactions import Description, Interactions, ItemInfo, from_raw
from fedrec.data.items import with_items
from fedrec.data.joined import Joined, Lost, count_lost, describe_items, join
from fedrec.data.partition import Partition, from_labels, one_user_per_client, silos
from fedrec.data.ratings import ratings_note
from fedrec.data.splits import (
    Split,
    all_in_time,
    before_test,
    cold_items,
    disjoint,
    global_time,
    leave_one_out,
    ratio,
    read,
    reunite,
    train_on_all,
    write,
)
from fedrec.data.stored import StoredSplit, find_published_split, list_published_splits, load_split
from fedrec.data.synthetic import World, synthetic
from fedrec.data.table import Guess, read_table, write_csv
from fedrec.plugins import keep_old_names

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
    "all_in_time",
    "atomic_file",
    "before_test",
    "cache_folder",
    "cold_items",
    "count_lost",
    "datasets",
    "describe_items",
    "disjoint",
    "entry",
    "find_published_split",
    "from_labels",
    "from_raw",
    "global_time",
    "import_table",
    "join",
    "leave_one_out",
    "list_published_splits",
    "load",
    "load_split",
    "one_user_per_client",
    "partition_by_company",
    "ratings_note",
    "ratio",
    "read",
    "read_table",
    "require_no_columns",
    "require_unlinked",
    "reunite",
    "silos",
    "synthetic",
    "train_on_all",
    "with_items",
    "with_ties",
    "write",
    "write_csv",
]

__getattr__ = keep_old_names(
    __name__,
    {
        "described_by": "describe_items",
        "lost": "count_lost",
        "reunited": "reunite",
        "stored_split": "find_published_split",
        "stored_splits": "list_published_splits",
        "undivided": "train_on_all",
        "whole": "all_in_time",
    },
)
