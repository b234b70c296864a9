"""A network that is quantised already: what its numbers stand for is given, and it is compared with its file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

from chanas.compiler.comparison import Draw
from chanas.compiler.cpu.module import Chosen
from chanas.compiler.program import Form, Program
from chanas.core.target import HardwareTarget
from chanas.measuring.fleet import Pool
from chanas.models.calibration.mixed import NO_SHIFTS, Agreement, InFloat32, Mixed, Shifts
from chanas.models.quantised import QuantisedProgram

_SHOWN = 3


@dataclass(frozen=True)
class Given:
    """A program whose operators may be in int8 with the numbers of its file.

    draws      inputs, and the framework's outputs of the file for them
    device     in int8
    folder     where libraries are written
    measure_s  seconds that `measured` takes about
    """

    quantised: QuantisedProgram
    draws: Sequence[Draw]
    device: HardwareTarget
    pool: Pool
    folder: Path
    measure_s: float
    losses: ClassVar[Mapping[int, float]] = MappingProxyType({})

    @property
    def program(self) -> Program:
        return self.quantised.program

    def lines(self) -> list[str]:
        """The numbers of the file for people, and what of it is not in int8."""
        found = self.quantised
        lines = [
            f"ranges and weights of the file; {len(found.able)} of {len(found.program.tuned)} operators can be in int8"
        ]
        if found.too_wide:
            lines.append(
                f"{found.too_wide} stay in float32: pairs of their weights take more than the 16 bits that this "
                "processor, without VNNI, adds them up in; quantise with weights of seven bits (reduce_range)"
            )
        if found.inexact:
            lines.append(f"{found.inexact} stay in float32: their weights are no whole numbers of eight bits")
        if found.rounded:
            shown = ", ".join(found.rounded[:_SHOWN])
            more = f" and {len(found.rounded) - _SHOWN} more" if len(found.rounded) > _SHOWN else ""
            lines.append(f"rounded in float32, to other numbers than one grid of eight bits: {shown}{more}")
        return lines

    def to_json(self) -> dict[str, Any]:
        """Content of `tuned.json` about the numbers."""
        found = self.quantised
        return {
            "method": "file",
            "num_able": len(found.able),
            "too_wide": found.too_wide,
            "inexact": found.inexact,
            "rounded": list(found.rounded),
        }

    def measured(self, forms: Mapping[int, Form], chosen: Chosen, allowed: float) -> tuple[Shifts, Agreement]:
        """The program with operators in other forms, each in int8 compared with its emulation: no shifts, and the
        whole beside the framework's outputs of the file, which bound nothing.

        Raises:
            MeasureError: it does not compile, or an operator computes other numbers than its emulation.
        """
        program = self.program
        floats = InFloat32(program, [draw.inputs for draw in self.draws], [draw.outputs for draw in self.draws], {})
        mixed = Mixed(floats, forms, program.grids, self.device, chosen, self.pool, self.folder)
        return NO_SHIFTS, mixed.agreement(None, "the framework's outputs of the file, for the inputs of the proof")
