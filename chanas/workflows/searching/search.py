"""The three stages wired together: the Python API, and what the commands call.

Stages never import each other; here one stage's functions are handed to the next, and files in the run directory carry
the data between them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from chanas.core.progress import announce, named_wait
from chanas.core.task import NO_LIMITS, Limits
from chanas.core.usage import HERE, Usage
from chanas.errors import ConfigError
from chanas.files.run import RunDirectory
from chanas.files.scratch import scratch_folder
from chanas.workflows.searching.hand_over import hand_over
from chanas.workflows.searching.sources import AccuracySource, SupernetSource
from chanas.workflows.searching.targets import Latencies, hold_targets

if TYPE_CHECKING:
    from chanas.bundle.codesign import CoDesign
    from chanas.search.config import SearchConfig
    from chanas.search.cosearch import SearchOutcome
    from chanas.search.target import SearchTarget


def search(
    run: RunDirectory,
    *,
    latency_s: Latencies,
    source: AccuracySource | None = None,
    usage: Usage = HERE,
    config: SearchConfig | None = None,
    limits: Limits = NO_LIMITS,
    seed: int = 0,
    name: str | None = None,
    progress: bool = True,
) -> CoDesign:
    """Search under latency budgets, prove the finalists, and leave the winner's bundle in `run.bundles`, where
    `run.bundle` points to it.

    The test split is touched once, here, for the winner alone.

    Args:
        latency_s: seconds on the target that `usage` says, or seconds by the names of several targets, such as
            `{"cpu": 5e-3, "cpu-2t": 4e-3}`; of one call, so of all images of a batch.
        source: of accuracies, from `open_source`; the run's supernet by default.
        usage: of the device; with a tracker and a key as place its table is searched, and it measures the finalists.
        name: of the bundle; by default the budget. An earlier one of another network is kept under another name.

    Raises:
        ConfigError: the name cannot be a folder's.
        StageOrderError: supernet or a latency table are missing.
        LUTError: a table is of another space, device or compiler.
        InfeasibleError: no architecture meets the constraints; the message names the smallest reachable value.
        MeasureError: a compiled module of the winner does not classify the test images as PyTorch does.
    """
    source = source or SupernetSource(run)
    with hold_targets(run, source, latency_s, usage, _dtypes(config)) as targets:
        return search_on(run, targets, source, config=config, limits=limits, seed=seed, name=name, progress=progress)


def search_on(
    run: RunDirectory,
    targets: Sequence[SearchTarget],
    source: AccuracySource,
    *,
    config: SearchConfig | None = None,
    limits: Limits = NO_LIMITS,
    seed: int = 0,
    name: str | None = None,
    progress: bool = True,
) -> CoDesign:
    """Search as `search` does, on targets that are held."""
    from chanas.search.cosearch import search as cosearch

    find = partial(cosearch, progress=progress)
    return _find_on(run, targets, source, find, limits.to_json(), config, limits, seed, name, progress)


def search_fastest(
    run: RunDirectory,
    *,
    top1: float,
    source: AccuracySource | None = None,
    usage: Usage = HERE,
    config: SearchConfig | None = None,
    limits: Limits = NO_LIMITS,
    seed: int = 0,
    name: str | None = None,
    progress: bool = True,
) -> CoDesign:
    """Search for the fastest network with an accuracy of at least `top1`, and leave its bundle as
    `search` does.

    The accuracy is the one on holdout, or the predicted one where accuracies come from a file. The bundle's latency
    budget is the smallest at which such a network was found.

    Args:
        top1: above 0, and 1 at most.

    Raises:
        ConfigError: `top1` is none.
        InfeasibleError: no network is so accurate, or none is inside `limits`.
        ChanasError: as `search` says.
    """
    if not 0.0 < top1 <= 1.0:
        raise ConfigError(f"expected an accuracy above 0 and up to 1, such as 0.753, got {top1:g}")
    from chanas.search.evolution.constraints import NO_LIMIT_S
    from chanas.search.fastest import search_fastest as cosearch

    source, find = source or SupernetSource(run), partial(cosearch, top1=top1, progress=progress)
    with hold_targets(run, source, NO_LIMIT_S, usage, _dtypes(config)) as targets:
        asked = {"top1": top1, **limits.to_json()}
        return _find_on(run, targets, source, find, asked, config, limits, seed, name, progress)


def _dtypes(config: SearchConfig | None) -> tuple[str, ...]:
    return () if config is None else config.dtypes


def plan_line(source: AccuracySource, targets: Sequence[SearchTarget], config: SearchConfig) -> str:
    """Lines about the plan of a search."""
    task, names = source.task, ", ".join(target.name for target in targets)
    num = config.num_evaluations + config.refine_evaluations
    accuracies = f"at most {num} evaluations of sub-networks" if source.table is None else "accuracies from a table"
    return f"plan       search space {task.space.name}, {task.num_classes} classes, on {names}: {accuracies}"


def _find_on(
    run: RunDirectory,
    targets: Sequence[SearchTarget],
    source: AccuracySource,
    find: Callable[..., SearchOutcome],
    asked: Mapping[str, float],
    config: SearchConfig | None,
    limits: Limits,
    seed: int,
    name: str | None,
    progress: bool,
) -> CoDesign:
    """Find a network on targets that are held, and hand over its bundle. `find` takes job, accuracies and prover;
    `asked` is what the bundle says that it was asked for besides latencies."""
    from chanas.bundle.places import check_name
    from chanas.search.config import SearchConfig
    from chanas.search.cosearch import in_dtypes, new_job
    from chanas.search.evolution.constraints import further_constraints

    if name is not None:
        check_name(name)
    task = in_dtypes(source.task, config or SearchConfig())
    with scratch_folder() as scratch:
        constraints = further_constraints(task.space, task.num_classes, limits, [t.hardware for t in targets])
        # what is out of reach is told before a supernet is loaded
        job = new_job(task, targets, constraints, config, seed)
        if progress:
            rounds = f"up to {job.config.max_rounds} rounds of {job.config.num_finalists} compiled and measured"
            announce([f"{plan_line(source, targets, job.config)}, {rounds}; bundle into {run.root / 'bundles'}"])
        prover = source.prover(targets, scratch, progress)
        with named_wait("opening the supernet", progress):
            accuracies = source.accuracies()
        outcome = find(job, source=accuracies, prove=prover)
        return hand_over(run, outcome, prover, asked, seed, name=name)
