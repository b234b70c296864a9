"""The measured Pareto front of a run: with the accuracies of its supernet, or of a table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from chanas.files.run import RunDirectory
from chanas.files.scratch import scratch_folder
from chanas.workflows.searching.search import Prover, searched_stages
from chanas.workflows.searching.table_search import RandomWeightsProver, open_accuracies
from chanas.workflows.stages.stored import load_supernet

if TYPE_CHECKING:
    from chanas.search.config import SearchConfig
    from chanas.search.front import FrontPoint

DEFAULT_POINTS = 8


def search_front(
    run: RunDirectory,
    *,
    accuracy_table: Path | str | None = None,
    target: str = "cpu",
    num_threads: int = 1,
    dtype: str = "f32",
    batch: int = 1,
    rpc: str | None = None,
    key: str | None = None,
    space: str | Path | None = None,
    num_classes: int | None = None,
    num_points: int = DEFAULT_POINTS,
    config: SearchConfig | None = None,
    macs: float | None = None,
    params: float | None = None,
    peak_memory: float | None = None,
    shared: bool = False,
    seed: int = 0,
    progress: bool = True,
) -> tuple[FrontPoint, ...]:
    """Points of the front of latency and accuracy, compiled whole and measured; `search/pareto.json` keeps them.

    `space` and `num_classes` go with an `accuracy_table`; `rpc`, `key` and `shared` say what measures
    (`chanas.workflows.searching.search.search`). No bundle is written: `chanas search --latency` makes one.

    Raises:
        ChanasError: as `chanas.search.front.search_front`, `chanas.workflows.searching.search.searched_stages` and
        `open_accuracies` say.
    """
    from chanas.prescheduler.measuring.devices import timing_device
    from chanas.search import front
    from chanas.search.evolution import constraints as limits

    num_devices = None if rpc is None else 1
    held = timing_device(target, num_threads, dtype, rpc, key, num_devices, batch=batch, shared=shared)
    with held as (hardware, open_pool), scratch_folder() as scratch:
        open_pools = {} if open_pool is None else {hardware.name: open_pool}
        if accuracy_table is None:
            loaded, classes, lut = searched_stages(run, hardware)
            further = limits.further_constraints(loaded, classes, macs, params, peak_memory, [hardware])
            front.front_latency(loaded, lut, classes, num_points, config, further, seed)  # told before it is loaded
            supernet = load_supernet(run)
            return front.search_front(
                loaded,
                lut,
                supernet.top1,
                Prover(supernet, lut, hardware, scratch, progress, open_pools=open_pools),
                num_classes=classes,
                store=run,
                supernet=supernet.digest,
                num_points=num_points,
                config=config,
                constraints=further,
                seed=seed,
                progress=progress,
            )
        opened, accuracies = open_accuracies(run, accuracy_table, hardware, space, num_classes)
        loaded, classes, lut = opened.required_space(), opened.num_classes, opened.lut
        return front.search_front(
            loaded,
            lut,
            None,
            RandomWeightsProver(loaded, classes, accuracies, lut, hardware, scratch, progress, open_pools=open_pools),
            num_classes=classes,
            store=run,
            supernet=accuracies.digest,
            num_points=num_points,
            config=config,
            constraints=limits.further_constraints(loaded, classes, macs, params, peak_memory, [hardware]),
            table=accuracies,
            seed=seed,
            progress=progress,
        )
