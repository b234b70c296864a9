"""The measured Pareto front of a run: with the accuracies of its supernet, or of a table."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from chanas.core.task import NO_LIMITS, Limits, Task
from chanas.core.usage import HERE, Usage
from chanas.files.run import RunDirectory
from chanas.files.scratch import scratch_folder
from chanas.workflows.searching.search import Prover, searched_stages
from chanas.workflows.searching.table_search import Accuracies, RandomWeightsProver, open_accuracies
from chanas.workflows.stages.stored import load_supernet

if TYPE_CHECKING:
    from chanas.search.config import SearchConfig
    from chanas.search.front import FrontPoint

DEFAULT_POINTS = 8


def search_front(
    run: RunDirectory,
    *,
    accuracies: Accuracies | None = None,
    usage: Usage = HERE,
    num_points: int = DEFAULT_POINTS,
    config: SearchConfig | None = None,
    limits: Limits = NO_LIMITS,
    seed: int = 0,
    progress: bool = True,
) -> tuple[FrontPoint, ...]:
    """Points of the front of latency and accuracy, compiled whole and measured; `search/pareto.json` keeps them.

    With `accuracies` no supernet is needed. Other arguments are those of `chanas.workflows.searching.search.search`. No
    bundle is written: `chanas search --latency` makes one.

    Raises:
        ChanasError: as `chanas.search.front.search_front`, `chanas.workflows.searching.search.searched_stages` and
        `open_accuracies` say.
    """
    from chanas.prescheduler.measuring.devices import timing_device
    from chanas.search import front
    from chanas.search.evolution.constraints import further_constraints
    from chanas.search.learning import Source

    place = usage.place
    one = usage if place.rpc is None else replace(usage, place=replace(place, num_devices=1))
    with timing_device(one) as (hardware, open_pool), scratch_folder() as scratch:
        open_pools = {} if open_pool is None else {hardware.name: open_pool}
        how: dict[str, Any] = {"num_points": num_points, "config": config, "seed": seed}
        if accuracies is None:
            loaded, classes, lut = searched_stages(run, hardware)
            task, further = Task(loaded, classes), further_constraints(loaded, classes, limits, [hardware])
            job = front.new_front(task, lut, constraints=further, **how)  # told before the supernet is loaded
            supernet = load_supernet(run)
            prover = Prover(supernet, lut, hardware, scratch, progress, open_pools=open_pools)
            return front.search_front(job, Source(run, supernet.digest, supernet.top1), prover, progress)
        opened, table = open_accuracies(run, accuracies, hardware)
        task, lut = Task(opened.required_space(), opened.num_classes), opened.lut
        further = further_constraints(task.space, task.num_classes, limits, [hardware])
        job = front.new_front(task, lut, constraints=further, **how)
        timer = RandomWeightsProver(
            task.space, task.num_classes, table, lut, hardware, scratch, progress, open_pools=open_pools
        )
        return front.search_front(job, Source(run, table.digest, table=table), timer, progress)
