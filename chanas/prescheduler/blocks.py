"""Blocks compiled, checked and timed, with weights and code as cold as they are inside a network (paper, section
3.6)."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from chanas.compiler.backends import case_of
from chanas.compiler.cases import mean_network_weight_bytes
from chanas.compiler.space import Point
from chanas.core import genome
from chanas.core.arch import SearchSpace
from chanas.core.blocks import BlockConfig
from chanas.core.target import HardwareTarget
from chanas.devices.timing import BLOCK
from chanas.measuring.canary import Canary
from chanas.measuring.candidates import Candidate, CandidatePipeline
from chanas.measuring.fleet import Pool
from chanas.measuring.messages import BlockAt, Outcome, median_outcome
from chanas.prescheduler.records.store import BlockRecord, RecordStore

_NETWORKS_FOR_MEAN = 64
# Rounds of a block, seconds that they lie apart where others are timed meanwhile, and libraries that are kept for them.
_ROUNDS, _APART_S, _GROUP = 3, 4.0, 64

Schedules = tuple[tuple[str, Point], ...]
# A block to time, its schedules, and how many better ones were tried before.
BlockTask = tuple[BlockConfig, Schedules, int]


@dataclass(frozen=True)
class Surroundings:
    """The rest of a network that runs between two uses of a block: how cold its weights and its code are by then."""

    weight_bytes: int
    num_blocks: int


def surroundings(space: SearchSpace, num_classes: int, seed: int = 0, dtype: str = "float32") -> Surroundings:
    """Mean bytes of weights in `dtype` and mean number of blocks of the space's networks."""
    drawn = genome.sample(space, _NETWORKS_FOR_MEAN, np.random.default_rng(seed))
    networks = [a.blocks(space, num_classes) for a in genome.decode(space, drawn)]
    return Surroundings(mean_network_weight_bytes(networks, dtype), round(np.mean([len(n) for n in networks])))


@dataclass
class _Waiting:
    """A block between two rounds: what came of those so far, how many are left, and since when it waits."""

    candidate: Candidate[BlockTask]
    outcomes: list[Outcome]
    num_left: int
    since: float = 0.0

    def ends(self, outcome: Outcome) -> bool:
        """Take in a round; whether it was the last. One that fails is left out, but the first of a block that nothing
        is known of, or that does not build."""
        self.num_left -= 1
        fails = outcome.seconds is None and not (self.outcomes and self.candidate.library.exists())
        if outcome.seconds is not None or fails:
            self.outcomes.append(outcome)
        return fails or self.num_left == 0


def time_blocks(
    todo: list[BlockTask],
    pool: Pool,
    target: HardwareTarget,
    scratch: Path,
    around: Surroundings,
    canary: Canary | None = None,
    store: RecordStore | None = None,
) -> Iterator[tuple[BlockTask, Outcome]]:
    """Compile, check and time blocks, as rows of a table are, each in several rounds while others are compiled.

    A slow moment of the machine lasts seconds: the median over rounds that lie seconds apart is free of it. `todo` is
    emptied; who iterates may append to it. A block may be in it once at a time. `canary` tells of drift. `store` gets
    each round as it ends, so that a process that ends loses none; those that it has from before count.
    """
    line: CandidatePipeline[BlockTask] = CandidatePipeline(pool, canary)
    blocks: dict[BlockTask, _Waiting] = {}
    between: deque[_Waiting] = deque()
    num_again = 0  # rounds after the first that are under way
    num_at_once, num_kept = 2 * pool.num_builders + pool.num_devices, _GROUP * pool.num_devices
    while todo or blocks:
        while todo and len(blocks) < num_kept and line.num_in_flight - num_again < num_at_once:
            task = todo.pop(0)
            block, schedules, _ = task
            known = [] if store is None else store.load_rounds(block.key, schedules)
            stored = [Outcome(r.seconds, r.spread_s, None, drift=r.drift) for r in known]
            if len(stored) >= _ROUNDS:
                yield task, median_outcome(stored[:_ROUNDS])
                continue
            candidate = _block_candidate(*task, target, scratch, around)
            blocks[task] = _Waiting(candidate, stored, _ROUNDS - len(stored))
            line.submit(candidate)
        # those that have waited long enough; the others only when a device has nothing else to do
        while between and (time.monotonic() - between[0].since >= _APART_S or line.num_in_flight < pool.num_devices):
            waiting = between.popleft()
            line.time_again(waiting.candidate, waiting.outcomes[-1].device)
            num_again += 1
        for candidate, outcome in line.finished():
            waiting = blocks[candidate.token]
            block, schedules, _ = candidate.token
            num_again -= waiting.since > 0.0
            if outcome.seconds is not None and store is not None:
                store.add_round(
                    block.key, BlockRecord(schedules, outcome.seconds, outcome.spread_s, drift=outcome.drift)
                )
            if waiting.ends(outcome):
                del blocks[candidate.token]
                candidate.library.unlink(missing_ok=True)
                candidate.case.unlink(missing_ok=True)
                last = waiting.outcomes[-1]
                yield candidate.token, last if last.seconds is None else median_outcome(waiting.outcomes)
            else:
                waiting.since = time.monotonic()
                between.append(waiting)


def _block_candidate(
    block: BlockConfig, schedules: Schedules, rank: int, target: HardwareTarget, scratch: Path, around: Surroundings
) -> Candidate[BlockTask]:
    case = scratch / f"{block.key}.npz"
    case_of(block, target).save(case)
    library = scratch / f"{block.key}-{rank}.so"
    settings = BLOCK.cold(around.weight_bytes, around.num_blocks)
    return Candidate(
        token=(block, schedules, rank),
        what=BlockAt(block, [point for _, point in schedules]),
        target=target,
        library=library,
        case=case,
        settings=settings,
        timeout_s=60.0,
        keep_library=True,
    )
