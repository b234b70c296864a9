"""A program run in this process with the values between its inputs and outputs given back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from chanas.bundle.runtimes import load_main
from chanas.compiler.cpu.module import Chosen, program_module, program_parameters
from chanas.compiler.program import Program
from chanas.core.target import HardwareTarget
from chanas.measuring.fleet import Pool
from chanas.models.lowering import with_outputs
from chanas.models.proof.comparing import build
from chanas.models.sources.model import Array


class Probe:
    """A compiled program that gives back some of its values.

    Args:
        numbers: of the values.
        folder: where its library is written, under `name`.

    Raises:
        MeasureError: it does not compile.
    """

    def __init__(
        self,
        program: Program,
        numbers: Sequence[int],
        chosen: Chosen,
        target: HardwareTarget,
        pool: Pool,
        folder: Path,
        name: str,
    ) -> None:
        self.numbers, self.chosen, self.target = tuple(numbers), chosen, target
        self._shapes = [program.value(number).shape for number in numbers]
        made = program_module(with_outputs(program, self.numbers, target), chosen, target)
        library = folder / f"{name}.so"
        build(made, target, library, folder / f"{name}.json", pool)
        self._function = load_main(library, target.num_threads)
        self.renew(program)

    def renew(self, program: Program) -> None:
        """Take the parameters of a program, of the same operations with other grids or other biases."""
        import tvm

        given_back = with_outputs(program, self.numbers, self.target)
        self._parameters = tuple(map(tvm.runtime.tensor, program_parameters(given_back, self.chosen, self.target)))

    def values(self, inputs: Sequence[Array]) -> Mapping[int, Array]:
        """The values for some inputs, in the shapes of the framework."""
        import tvm

        found = self._function(*map(tvm.runtime.tensor, inputs), *self._parameters)
        outputs = [found] if hasattr(found, "numpy") else found
        given = zip(self.numbers, outputs, self._shapes, strict=True)
        return {number: np.array(np.from_dlpack(output)).reshape(shape) for number, output, shape in given}
