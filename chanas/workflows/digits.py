"""The demo: all three stages on handwritten digits, one after the other."""

from __future__ import annotations

import itertools
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from chanas.core.effort import TableEffort
from chanas.core.usage import Place, Usage
from chanas.devices.host import load_target
from chanas.files.run import RunDirectory
from chanas.workflows.searching.search import search
from chanas.workflows.stages.stored import SUPERNET, load_supernet, supernet_task
from chanas.workflows.stages.tables import median_latency_s
from chanas.workflows.stages.training import Changes, train_supernet
from chanas.workflows.stages.tuning import preschedule

if TYPE_CHECKING:
    from chanas.bundle.codesign import CoDesign


_DEMO_EVALUATIONS = (60, 16)  # before and after the evolution; each takes a third of a second, and tells little more


@dataclass(frozen=True)
class DemoResult:
    """The result of the demo."""

    bundle: CoDesign
    report: Path
    images: tuple[Path, ...]
    stages_s: dict[str, float]
    """Seconds of each stage in this call, by its name."""
    total_s: float


def demo(
    run: RunDirectory,
    *,
    target: str = "cpu",
    latency_s: float | None = None,
    num_trials: int = 4,
    shared: bool = False,
    seed: int = 0,
    progress: bool = True,
) -> DemoResult:
    """All three stages on the embedded default, through the functions above; stages that are done are not done again.

    The default budget is the median latency of the space, so that it binds on any machine.
    """
    from chanas.report.page import build_report
    from chanas.search.config import SearchConfig
    from chanas.supernet.data.images import export_images

    load_target(target)  # one that is not there is told before the training
    times_s = [time.perf_counter()]
    stored = run.supernet / "checkpoint.json"
    done = stored.is_file() and SUPERNET.read(stored).get("done", False)
    if not done:
        train_supernet(run, changes=Changes(seed=seed), resume=stored.is_file(), progress=progress)
    times_s.append(time.perf_counter())
    usage = Usage(target, place=Place(shared=shared))
    lut = preschedule(run, usage, effort=TableEffort(trials=num_trials, seed=seed), progress=progress).lut
    times_s.append(time.perf_counter())
    budget_s = latency_s or median_latency_s(lut, *supernet_task(run))
    config = SearchConfig(num_evaluations=_DEMO_EVALUATIONS[0], refine_evaluations=_DEMO_EVALUATIONS[1])
    bundle = search(run, latency_s=budget_s, usage=usage, config=config, seed=seed, progress=progress)
    times_s.append(time.perf_counter())
    folder = run.root / "images"
    shutil.rmtree(folder, ignore_errors=True)
    images = export_images(load_supernet(run).data, "test", folder, limit=20)
    page = build_report(run)
    stages_s = dict(zip(("training", "tuning", "search"), np.diff(times_s).tolist(), strict=True))
    total_s = time.perf_counter() - times_s[0]
    return DemoResult(bundle, page, tuple(itertools.islice(images, 3)), stages_s, total_s)
