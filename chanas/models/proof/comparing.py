"""A program built, run on draws of inputs, and compared with the framework's outputs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from chanas.compiler.comparison import Comparison, Draw, NetworkCase
from chanas.compiler.cpu.module import ProgramModule
from chanas.core.codec import fields_from_json
from chanas.core.target import HardwareTarget
from chanas.errors import MeasureError
from chanas.files.scratch import raise_if_full
from chanas.measuring.candidates import NETWORK_TIMEOUT_S
from chanas.measuring.fleet import Pool
from chanas.measuring.messages import Answer, Build, Compare, ModuleFile


def build(
    made: ProgramModule,
    target: HardwareTarget,
    library: Path,
    source: Path,
    pool: Pool,
    timeout_s: float = NETWORK_TIMEOUT_S,
) -> None:
    """Compile a module, which is left in the file `source`, to `library`.

    Raises:
        MeasureError: it does not compile.
    """
    source.write_text(made.to_json())
    answer = pool.build(Build(target=target, what=ModuleFile(source), path=library), timeout_s).result()
    _require(answer, library, "can't be compiled")


def compare(
    made: ProgramModule,
    draws: Sequence[Draw],
    library: Path,
    case: Path,
    pool: Pool,
    timeout_s: float = NETWORK_TIMEOUT_S,
) -> Comparison:
    """Run what was compiled from a module on each draw, which are left in the file `case`.

    Raises:
        MeasureError: it does not run.
    """
    NetworkCase(made.parameters, draws).save(case)
    answer = pool.measure(Compare(library=library, case=case), timeout_s).result()
    _require(answer, library, "can't be run")
    found: Comparison = fields_from_json(Comparison, answer.result)
    return found


def _require(answer: Answer, library: Path, what: str) -> None:
    if answer.error is not None:
        raise_if_full(library.parent, str(answer.error))
        raise MeasureError(f"the network as a whole {what}: {answer.error}")
