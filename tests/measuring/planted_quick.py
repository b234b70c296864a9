"""Workers that invent what they build and time, without TVM: run as `python planted_quick.py`.

With arguments it is `chanas` with such workers.
"""

from __future__ import annotations

import sys
import time
import types
from pathlib import Path

from chanas.compiler.comparison import Comparison, Difference, StoredCase
from chanas.measuring.messages import Answer, Build, Compare, Measure, OperatorsAt, Timing
from chanas.measuring.worker import cpu
from chanas.measuring.worker.process import WORKERS

_BUILD_S = 0.05


def build(request: Build) -> dict[str, str] | None:
    """Leave a file beside the library for as long as it takes."""
    if isinstance(request.what, OperatorsAt):
        cpu.build_each(request, build)
        return None
    half = request.path.with_suffix(".o")
    half.touch()
    time.sleep(_BUILD_S)
    half.replace(request.path)
    return {"code": str(request.path)}


def measure(request: Measure) -> Timing | list[Answer]:
    """All take the same time."""
    found = Timing(1e-6, 0.0, 1, 0.0)
    return found if request.num is None else [Answer.of(found)] * request.num


def compare(request: Compare) -> Comparison:
    """No output differs."""
    case, equal = StoredCase(request.case), Difference(0.0, 0.0, 0.0, 0)
    return Comparison(((equal,) * case.num_outputs,) * case.num_draws)


def main() -> None:
    """Be the command, or one of its workers."""
    if sys.argv[1:]:
        from chanas.commands.process import main as command

        WORKERS["llvm"] = (str(Path(__file__).resolve()),)
        command()
    sys.modules["tvm"] = types.ModuleType("tvm")
    cpu.CALLS.update({Build: build, Measure: measure, Compare: compare})
    cpu.main()


if __name__ == "__main__":
    main()
