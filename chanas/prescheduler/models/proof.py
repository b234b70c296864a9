"""A program compiled as a whole, compared with the framework that its network comes from, and timed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from chanas.core.target import HardwareTarget
from chanas.devices.timing import TimingSettings
from chanas.errors import MeasureError
from chanas.prescheduler.measuring.candidates import NETWORK_TIMEOUT_S, Candidate, CandidatePipeline, time_in_rounds
from chanas.prescheduler.measuring.local.pool import OpenPool, Pool, open_workers
from chanas.prescheduler.measuring.outcomes import Outcome
from chanas.prescheduler.measuring.requests import BuildModule, MeasureNetwork
from chanas.prescheduler.models.module import ProgramModule
from chanas.prescheduler.models.reference import NETWORK_TOLERANCE, Reference
from chanas.prescheduler.workloads.cases import ReferenceCase

_ROUNDS, _SETTINGS = 9, TimingSettings(repeats=5, min_repeat_s=0.01)


@dataclass(frozen=True)
class Proof:
    """A compiled program that was compared with its framework and timed.

    relative_error  largest difference from the framework's outputs, as a share of their largest magnitude
    seconds         median of single calls, and their spread
    """

    seconds: float
    spread_s: float
    relative_error: float


def prove(
    made: ProgramModule,
    reference: Reference,
    target: HardwareTarget,
    library: Path,
    open_pool: OpenPool | None = None,
    *,
    num_rounds: int = _ROUNDS,
) -> Proof:
    """Compile a module to `library`, compare its outputs with the framework's, and time it in so many rounds.

    Raises:
        MeasureError: it does not compile, its outputs differ, or it could not be timed.
    """
    inputs, expected = reference.draws[0].inputs, reference.draws[0].outputs
    scale = min(1.0, max(float(np.abs(e).max()) for e in expected)) or 1.0  # errors are relative to 1 at least
    flat = np.concatenate([np.asarray(e, np.float32).ravel() for e in expected])
    arguments = (*inputs, *made.parameters)
    weights = tuple(range(len(inputs), len(arguments)))
    with open_workers(target, open_pool) as (pool, scratch):
        case, module = scratch / "network.npz", scratch / "network.json"
        ReferenceCase(arguments, weights, flat, NETWORK_TOLERANCE * scale).save(case)
        module.write_text(made.to_json())
        candidate = Candidate(
            token=0,
            build=BuildModule(target=target, library=library, module=module),
            timing=MeasureNetwork(library=library, case=case, settings=_SETTINGS),
            timeout_s=NETWORK_TIMEOUT_S,
            keep_library=True,
        )
        outcome = _timed(pool, candidate, num_rounds)
    if outcome.seconds is None:
        library.unlink(missing_ok=True)
        raise MeasureError(f"the compiled network failed: {outcome.error}")
    return Proof(outcome.seconds, outcome.spread_s or 0.0, (outcome.max_error or 0.0) / scale)


def _timed(pool: Pool, candidate: Candidate[int], num_rounds: int) -> Outcome:
    line: CandidatePipeline[int] = CandidatePipeline(pool)
    line.submit(candidate)
    while line.num_in_flight:
        for _, outcome in line.finished():
            first = outcome
    if first.seconds is None:
        return first
    [(_, median)] = time_in_rounds([(candidate, [first])], pool, num_rounds)
    return median
