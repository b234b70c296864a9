"""Stages wired together; the Python API. Nothing else knows more than one of them. Stages never import each other: here
one stage's functions are handed to the next, and files in the run directory carry the data between them.

The Python API lies here: `from chanas import workflows`, then `workflows.search(...)`. A function's module is imported
when the function is first asked for."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from chanas.workflows.digits import demo as demo
    from chanas.workflows.models.quantizing import quantize as quantize
    from chanas.workflows.models.reporting import report_tuned as report_tuned
    from chanas.workflows.searching.ablation import ablate as ablate
    from chanas.workflows.searching.front import search_front as search_front
    from chanas.workflows.searching.per_target import search_per_target as search_per_target
    from chanas.workflows.searching.search import search as search
    from chanas.workflows.searching.search import search_fastest as search_fastest
    from chanas.workflows.searching.sources import open_source as open_source
    from chanas.workflows.stages.reporting import report as report
    from chanas.workflows.stages.training import evaluate as evaluate
    from chanas.workflows.stages.training import finetune as finetune
    from chanas.workflows.stages.training import import_supernet as import_supernet
    from chanas.workflows.stages.training import plan_supernet as plan_supernet
    from chanas.workflows.stages.training import take_images as take_images
    from chanas.workflows.stages.training import train_supernet as train_supernet
    from chanas.workflows.stages.tuning import plan_table as plan_table
    from chanas.workflows.stages.tuning import preschedule as preschedule

_MODULES = {
    "ablate": "searching.ablation",
    "demo": "digits",
    "evaluate": "stages.training",
    "finetune": "stages.training",
    "import_supernet": "stages.training",
    "open_source": "searching.sources",
    "plan_supernet": "stages.training",
    "plan_table": "stages.tuning",
    "preschedule": "stages.tuning",
    "quantize": "models.quantizing",
    "report": "stages.reporting",
    "report_tuned": "models.reporting",
    "search": "searching.search",
    "search_fastest": "searching.search",
    "search_front": "searching.front",
    "search_per_target": "searching.per_target",
    "take_images": "stages.training",
    "train_supernet": "stages.training",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
