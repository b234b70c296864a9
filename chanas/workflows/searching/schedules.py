"""The blocks of a network with their schedules: in words, how fast they are, and what tuning them was worth."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from chanas.core.blocks import BlockConfig, computing
from chanas.core.target import HardwareTarget
from chanas.core.units import format_latency
from chanas.devices.peak import peak_gflops, shares_of_peak
from chanas.errors import MeasureError, ScheduleError, TargetError

if TYPE_CHECKING:
    from chanas.bundle.codesign import CoDesign
    from chanas.search.target import SearchTarget
    from chanas.workflows.searching.sources import Prover

logger = logging.getLogger(__name__)


def block_rows(target: SearchTarget, blocks: Sequence[BlockConfig], prover: Prover) -> list[dict[str, Any]]:
    """Entries of a bundle's `blocks`: `key` (and `dtype` where there are several), `latency_s` by the table, `schedule`
    (a line for each operator), `gflops`, `share_of_peak` (None where the peak is not known: on GPUs, elsewhere, in
    other dtypes than float32), and `default_latency_s` with default schedules (None where that was not timed)."""
    lut, hardware = target.lut, target.hardware
    defaults = _defaults(target, blocks, prover)
    seconds = [lut.block_s(b) for b in blocks]
    rates = [2.0 * b.num_macs * hardware.batch / s / 1e9 for b, s in zip(blocks, seconds, strict=True)]
    shares = shares_of_peak(rates, _peak(target))
    return [
        {
            "key": block.key,
            "latency_s": latency_s,
            "schedule": schedule_words(block, lut.row(block).schedules, hardware),
            "gflops": rate,
            "share_of_peak": share if block.dtype in ("", "float32") and not block.converts else None,
            "default_latency_s": defaults.get(block),
            **({"dtype": block.dtype} if block.dtype else {}),
        }
        for block, latency_s, rate, share in zip(blocks, seconds, rates, shares, strict=True)
    ]


def _defaults(
    target: SearchTarget, blocks: Sequence[BlockConfig], prover: Prover
) -> Mapping[BlockConfig, float | None]:
    """Seconds of each block with default schedules, timed with others of its dtype."""
    from chanas.operators.steps import block_target
    from chanas.prescheduler.tables.defaults import time_default_blocks

    source, found = prover.source, dict[BlockConfig, float | None]()
    try:
        for dtype in dict.fromkeys(block.dtype for block in computing(blocks)):
            own = [block for block in computing(blocks) if block.dtype == dtype]
            seconds = time_default_blocks(
                source.run.records,
                source.task,
                block_target(own[0], target.hardware),
                own,
                open_pool=target.open_pool,
                progress=prover.progress,
            )
            found |= {block: seconds.get(block.key) for block in own}
    except (MeasureError, TargetError) as lost:  # what was searched for is there all the same
        logger.warning("default schedules were not timed: %s", lost)
    return found


def _peak(target: SearchTarget) -> float | None:
    hardware = target.hardware
    is_here = target.open_pool is None and hardware.gpu is None
    return peak_gflops(hardware.num_threads) if is_here and hardware.dtype == "float32" else None


def schedule_words(
    block: BlockConfig, schedules: Sequence[tuple[str, Sequence[int]]], target: HardwareTarget
) -> list[str]:
    """A line for each operator of a block: what it is, and its schedule point in words.

    A point of another version of the schedule spaces is given as its integers.
    """
    from chanas.compiler.backends import backend_of, schedule_space
    from chanas.operators.steps import block_target, device_workloads

    target = block_target(block, target)
    workloads = {workload.key: workload for workload in device_workloads(block, target)}
    lines = []
    for key, point in schedules:
        try:
            workload = workloads[key]
            words = backend_of(target).in_words(schedule_space(workload, target).groups(tuple(point)))
        except (KeyError, ScheduleError):
            words = f"point {list(point)}"
        lines.append(f"{key.split('-')[0]}: {words}")
    return lines


def bundle_rows(bundle: CoDesign) -> list[dict[str, Any]]:
    """The same for the target of any bundle, with `name`: of an older one, which has less, what its schedules and
    seconds say."""
    part, blocks = bundle.part, bundle.blocks
    operators = [entry["operators"] for entry in part.get("schedules", [])] or [[]] * len(blocks)
    rows = []
    names = bundle.architecture.block_names()
    for name, block, own, entry in zip(names, blocks, operators, part.get("blocks", []), strict=False):
        latency_s = entry["latency_s"]
        known = {
            "schedule": schedule_words(block, own, bundle.target),
            "gflops": 2.0 * block.num_macs * bundle.target.batch / latency_s / 1e9,
            "share_of_peak": None,
            "default_latency_s": None,
        }
        rows.append({"name": name, **known, **entry})
    return rows


def schedule_lines(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Lines for people: a block's time, its speed, and what tuning was worth to it, then its operators."""
    width = max([20, *(len(row["name"]) + 2 for row in rows)])
    yield f"{'block':<{width}}{'time':>9}{'GFLOP/s':>9}{'of peak':>9}{'default':>10}{'gain':>8}"
    for row in rows:
        share, default_s = row["share_of_peak"], row["default_latency_s"]
        told = [
            f"{row['name']:<{width}}{format_latency(row['latency_s']):>9}{row['gflops']:>9.1f}",
            f"{'-':>9}" if share is None else f"{share:>9.0%}",
            f"{'-':>10}{'-':>8}" if default_s is None else f"{format_latency(default_s):>10}",
            "" if default_s is None else f"{default_s / row['latency_s']:>7.2f}x",
        ]
        yield "".join(told)
        yield from (f"    {line}" for line in row["schedule"])
