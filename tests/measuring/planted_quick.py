"""Workers that invent what they build and time, without TVM: run as `python planted_quick.py`.

With arguments it is `chanas` with such workers.
"""

from __future__ import annotations

import dataclasses
import sys
import time
import types
from pathlib import Path

from planted_abort import measure

from chanas.compiler.backends import BACKENDS
from chanas.compiler.comparison import Comparison, Difference, StoredCase
from chanas.measuring.answers import Answer
from chanas.measuring.local import worker
from chanas.measuring.requests import (
    BuildBlock,
    BuildModule,
    BuildOperator,
    BuildOperators,
    BuildRequest,
    CompareModule,
    Measure,
    MeasureInTurns,
    MeasureModule,
    MeasureNetwork,
)

_BUILD_S = 0.05


def build(request: BuildRequest) -> dict[str, str]:
    """Leave a file beside the library for as long as it takes."""
    half = request.library.with_suffix(".o")
    half.touch()
    time.sleep(_BUILD_S)
    half.replace(request.library)
    return {"code": str(request.library)}


def measure_in_turns(request: MeasureInTurns) -> list[Answer]:
    """All take the same time."""
    return [Answer.of(measure(request))] * request.num


def compare(request: CompareModule) -> Comparison:
    """No output differs."""
    case, equal = StoredCase(request.case), Difference(0.0, 0.0, 0.0, 0)
    return Comparison(((equal,) * case.num_outputs,) * case.num_draws)


def main() -> None:
    """Be the command, or one of its workers."""
    if sys.argv[1:]:
        from chanas.commands.process import main as command

        BACKENDS["llvm"] = dataclasses.replace(BACKENDS["llvm"], worker=(str(Path(__file__).resolve()),))
        command()
    sys.modules["tvm"] = types.ModuleType("tvm")
    worker.CALLS.update(
        {
            BuildOperator: build,
            BuildOperators: lambda request: worker.build_operators(request, build),
            BuildBlock: build,
            BuildModule: build,
            Measure: measure,
            MeasureNetwork: measure,
            CompareModule: compare,
            MeasureModule: measure,
            MeasureInTurns: measure_in_turns,
        }
    )
    worker.main()


if __name__ == "__main__":
    main()
