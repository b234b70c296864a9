"""The measured Pareto front of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chanas.core.progress import announce
from chanas.core.task import NO_LIMITS, Limits
from chanas.core.usage import HERE, Usage
from chanas.files.run import RunDirectory
from chanas.files.scratch import scratch_folder
from chanas.workflows.searching.search import plan_line
from chanas.workflows.searching.sources import AccuracySource, SupernetSource
from chanas.workflows.searching.targets import hold_targets

if TYPE_CHECKING:
    from chanas.search.config import SearchConfig
    from chanas.search.front import FrontPoint

DEFAULT_POINTS = 8


def search_front(
    run: RunDirectory,
    *,
    source: AccuracySource | None = None,
    usage: Usage = HERE,
    num_points: int = DEFAULT_POINTS,
    config: SearchConfig | None = None,
    limits: Limits = NO_LIMITS,
    seed: int = 0,
    progress: bool = True,
) -> tuple[FrontPoint, ...]:
    """Points of the front of latency and accuracy, compiled whole and measured; `search/pareto.json` keeps them.

    Arguments are those of `chanas.workflows.searching.search.search`. No bundle is written: `chanas search --latency`
    makes one.

    Raises:
        ChanasError: as `chanas.search.front.search_front` and `chanas.workflows.searching.search.search` say.
    """
    from chanas.search import front
    from chanas.search.config import SearchConfig
    from chanas.search.cosearch import in_dtypes
    from chanas.search.evolution.constraints import NO_LIMIT_S, further_constraints

    source = source or SupernetSource(run)
    config = config or SearchConfig()
    with hold_targets(run, source, NO_LIMIT_S, usage, config.dtypes) as (target,), scratch_folder() as scratch:
        task = in_dtypes(source.task, config)
        constraints = further_constraints(task.space, task.num_classes, limits, [target.hardware])
        job = front.new_front(  # what is out of reach is told before a supernet is loaded
            task, target.lut, num_points=num_points, config=config, constraints=constraints, seed=seed
        )
        if progress:
            wanted = f"{num_points} points compiled and measured; into {run.search / 'pareto.json'}"
            announce([f"{plan_line(source, [target], job.config)}, {wanted}"])
        prover = source.prover([target], scratch, progress)
        return front.search_front(job, source.accuracies(), prover, progress)
