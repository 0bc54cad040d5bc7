"""Experiments: configurations, runs, their folders, searches for settings.

What other packages may use of it is named here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedrec.plugins import lazily

if TYPE_CHECKING:
    from fedrec.experiment.checks import reads_order
    from fedrec.experiment.command_line import again
    from fedrec.experiment.config import RunConfig, make_config, require_same
    from fedrec.experiment.driver import Listener, Run
    from fedrec.experiment.finished_run import read_run
    from fedrec.experiment.folder import RunFolder, folder_name, require_harmless
    from fedrec.experiment.interrupt import TERMINATED, Terminated, sigterm_interrupts
    from fedrec.experiment.limits import require_room, require_room_for_uploads
    from fedrec.experiment.machine import device_named, memory_of, peak_memory_mb, processor, versions
    from fedrec.experiment.params import build_method, method_of, parse_settings
    from fedrec.experiment.prepare import Prepared
    from fedrec.experiment.run_plan import RunPlan, plan_run
    from fedrec.experiment.search_space import Space, describe_space, dimension, is_searchable, settings_text, space_of
    from fedrec.experiment.tuning import Budget, Study, Trial, best_of, search
else:
    __getattr__, __dir__ = lazily(
        __name__,
        {
            "fedrec.experiment.command_line": ["again"],
            "fedrec.experiment.checks": ["reads_order"],
            "fedrec.experiment.config": ["RunConfig", "make_config", "require_same"],
            "fedrec.experiment.finished_run": ["read_run"],
            "fedrec.experiment.folder": ["RunFolder", "folder_name", "require_harmless"],
            "fedrec.experiment.interrupt": ["TERMINATED", "Terminated", "sigterm_interrupts"],
            "fedrec.experiment.limits": ["require_room", "require_room_for_uploads"],
            "fedrec.experiment.machine": ["device_named", "memory_of", "peak_memory_mb", "processor", "versions"],
            "fedrec.experiment.params": ["build_method", "method_of", "parse_settings"],
            "fedrec.experiment.prepare": ["Prepared"],
            "fedrec.experiment.driver": ["Listener", "Run"],
            "fedrec.experiment.run_plan": ["RunPlan", "plan_run"],
            "fedrec.experiment.search_space": [
                "Space",
                "describe_space",
                "dimension",
                "is_searchable",
                "settings_text",
                "space_of",
            ],
            "fedrec.experiment.tuning": ["Budget", "Study", "Trial", "best_of", "search"],
        },
    )

__all__ = [
    "TERMINATED",
    "Budget",
    "Listener",
    "Prepared",
    "Run",
    "RunConfig",
    "RunFolder",
    "RunPlan",
    "Space",
    "Study",
    "Terminated",
    "Trial",
    "again",
    "best_of",
    "build_method",
    "describe_space",
    "device_named",
    "dimension",
    "folder_name",
    "is_searchable",
    "make_config",
    "memory_of",
    "method_of",
    "parse_settings",
    "peak_memory_mb",
    "plan_run",
    "processor",
    "read_run",
    "reads_order",
    "require_harmless",
    "require_room",
    "require_room_for_uploads",
    "require_same",
    "search",
    "settings_text",
    "sigterm_interrupts",
    "space_of",
    "versions",
]
