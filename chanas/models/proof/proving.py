"""A program compiled as a whole, compared with the framework that its network comes from, and timed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from chanas.compiler.comparison import Comparison, Difference
from chanas.compiler.cpu.module import ProgramModule
from chanas.core.target import HardwareTarget
from chanas.devices.timing import NETWORK
from chanas.errors import ChanasError, MeasureError
from chanas.measuring.candidates import NETWORK_TIMEOUT_S, Candidate, CandidatePipeline, time_in_rounds
from chanas.measuring.fleet import OpenPool, Pool, open_workers
from chanas.measuring.messages import ModuleFile, Outcome
from chanas.models.proof.comparing import build, compare
from chanas.models.proof.parting import first_difference
from chanas.models.proof.reference import Reference
from chanas.models.proof.uncertainty import with_uncertainty
from chanas.operators.precision import FLOAT32, precision_of

_ROUNDS = 9
_FEWEST_ROUNDS, _ROUNDS_S = 3, 4.0
"""Rounds where the first one tells that more would take longer than so many seconds."""
_TELLING, _TELLING_ROUNDED = 1e-2, 0.2
"""The largest bound up to which an error says how exact the program is, and not how uncertain the framework is; the
same of a program that is partly in bfloat16."""


@dataclass(frozen=True)
class OutputProof:
    """Error of an output beside the framework's, where it is furthest off for what is allowed.

    error, bound  as shares of the output's largest magnitude in that draw
    draw          name of the inputs
    """

    name: str
    error: float
    bound: float
    draw: str


@dataclass(frozen=True)
class Proof:
    """A compiled program that was compared with its framework and timed.

    seconds         median of single calls, and their spread
    relative_error  the largest of all outputs and draws, without those that are uncertain by more than 1e-2 in the
                    framework itself, of programs partly in bfloat16 by more than 0.2; of all where all are uncertain
    draws           names of the inputs that outputs were compared for
    """

    seconds: float
    spread_s: float
    relative_error: float
    outputs: tuple[OutputProof, ...]
    draws: tuple[str, ...]


def prove(
    made: ProgramModule,
    reference: Reference,
    target: HardwareTarget,
    library: Path,
    open_pool: OpenPool | None = None,
    *,
    num_rounds: int = _ROUNDS,
) -> Proof:
    """Compile a module to `library`, compare its outputs with the framework's, and time it in at most so many
    rounds. Of operators in bfloat16 outputs may be further off (`Reference.rounded_to`).

    Raises:
        MeasureError: it does not compile, its outputs differ, or it could not be timed.
    """
    precisions, telling = [precision_of(operation.form.dtype) for operation in made.program.tuned], _TELLING
    for precision in {p for p in precisions if p != FLOAT32}:
        reference = reference.rounded_to(precision, precisions.count(precision))
        telling = _TELLING_ROUNDED
    try:
        with open_workers(target, open_pool) as (pool, scratch):
            case, source = scratch / "network.npz", scratch / "network.json"
            build(made, target, library, source, pool)
            compared = compare(made, reference.draws, library, case, pool)
            if _is_wrong(compared):
                compared = compare(made, with_uncertainty(reference, compared), library, case, pool)
            if _is_wrong(compared):
                said, draw = _verdict(compared, reference)
                where = first_difference(made, reference, reference.draws[draw], target, pool, scratch)
                raise MeasureError(f"{said}; {where}")
            candidate = Candidate(
                token=0,
                what=ModuleFile(source),
                target=target,
                library=library,
                case=case,
                settings=NETWORK,
                timeout_s=NETWORK_TIMEOUT_S,
                keep_library=True,
            )
            outcome = _timed(candidate, pool, num_rounds)
        if outcome.seconds is None:
            raise MeasureError(f"the compiled network could not be timed: {outcome.error}")
    except ChanasError:
        library.unlink(missing_ok=True)
        raise
    every = [d for draw in compared.draws for d in draw]
    errors = [d.error for d in every if d.bound <= telling] or [d.error for d in every]
    names = tuple(draw.name for draw in reference.draws)
    return Proof(
        outcome.seconds,
        outcome.spread_s or 0.0,
        max(errors),
        tuple(_output_proof(compared, reference, i) for i in range(len(reference.draws[0].outputs))),
        names,
    )


def _is_wrong(compared: Comparison) -> bool:
    return bool(compared.changed) or any(d.excess > 1.0 for draw in compared.draws for d in draw)


def _worst(compared: Comparison, outputs: Sequence[int]) -> tuple[int, int, Difference]:
    """The draw and the output that are furthest beyond what is allowed, or nearest to it, and the difference there."""
    every = [(d, i, draw[i]) for d, draw in enumerate(compared.draws) for i in outputs]
    return max(every, key=lambda found: found[2].excess)


def _output_proof(compared: Comparison, reference: Reference, output: int) -> OutputProof:
    draw, _, apart = _worst(compared, [output])
    return OutputProof(reference.opened.output_name(output), apart.error, apart.bound, reference.draws[draw].name)


def _verdict(compared: Comparison, reference: Reference) -> tuple[str, int]:
    """Message about the worst output, in one line, and the draw in which it is."""
    name = reference.opened.output_name
    draw, output, apart = _worst(compared, range(len(compared.draws[0])))
    if apart.excess <= 1.0:
        names = ", ".join(map(name, compared.changed))
        return f"wrong result: {names} changed when the compiled network was called again with the same inputs", 0
    inputs, size = reference.draws[draw].name, reference.draws[draw].outputs[output].size
    return (
        f"wrong result: output {name(output)} of the compiled network is {apart.error:.2g} of its largest number off "
        f"where {apart.bound:.2g} is allowed, for inputs '{inputs}' ({apart.num_wrong} of {size} numbers)"
    ), draw


def _timed(candidate: Candidate[int], pool: Pool, num_rounds: int) -> Outcome:
    line: CandidatePipeline[int] = CandidatePipeline(pool)
    start_s = time.monotonic()
    line.time_again(candidate)
    first = next(outcome for _, outcome in line.finished())
    if first.seconds is None:
        return first
    in_time = int(_ROUNDS_S / (time.monotonic() - start_s))
    [(_, median)] = time_in_rounds([(candidate, [first])], pool, min(num_rounds, max(_FEWEST_ROUNDS, in_time)))
    return median
