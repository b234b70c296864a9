"""Requests to a worker: one frozen class for each call, and its JSON, one line `{"call": name, "arguments": {...}}`.

The worker of a processor, that of a GPU and the server on a device answer the same classes. A call is named after its
class: `BuildOperator` is "build_operator".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from chanas.compiler.space import Point
from chanas.core.arch import BlockConfig
from chanas.core.target import HardwareTarget
from chanas.devices.timing import TimingSettings
from chanas.measuring.wire import fields_from_json, fields_to_json
from chanas.operators.workload import Workload


class Request:
    """One call with its arguments, which are the fields of a frozen dataclass."""

    call: ClassVar[str]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.call = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()

    def to_json(self) -> dict[str, Any]:
        return {"call": self.call, "arguments": fields_to_json(self)}


def read_request(data: dict[str, Any], known: Iterable[type[Request]]) -> Request:
    """Read the request of one of the `known` classes from its JSON.

    Raises:
        KeyError: the call is none of them; TypeError: arguments are missing, or there are others.
    """
    kinds = {kind.call: kind for kind in known}
    request: Request = fields_from_json(kinds[data["call"]], data["arguments"])
    return request


# ---- compiling ------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class CompileRequest(Request):
    """Compile something for a target."""

    target: HardwareTarget


@dataclass(frozen=True, kw_only=True)
class BuildRequest(CompileRequest):
    """Compile something into `library`, a file or a folder of several."""

    library: Path


@dataclass(frozen=True, kw_only=True)
class BuildOperator(BuildRequest):
    """Compile one schedule point of one operator."""

    workload: Workload
    point: Point


@dataclass(frozen=True, kw_only=True)
class BuildOperators(BuildRequest):
    """Compile several schedule points of one operator into the folder `library`: 0.so, 1.so, …

    A point whose library is there already, as `compiled` says (one path or None for each point), is copied.
    """

    workload: Workload
    points: Sequence[Point]
    compiled: Sequence[Path | None]


@dataclass(frozen=True, kw_only=True)
class BuildBlock(BuildRequest):
    """Compile one fused block, with a schedule point for each of its operators."""

    block: BlockConfig
    points: Sequence[Point]


@dataclass(frozen=True, kw_only=True)
class BuildNetwork(BuildRequest):
    """Compile a whole network, with the schedule points of each block."""

    blocks: Sequence[BlockConfig]
    points: Sequence[Sequence[Point]]


@dataclass(frozen=True, kw_only=True)
class BuildModule(BuildRequest):
    """Compile a Relax module whose functions are scheduled, from the JSON that TVM writes of it."""

    module: Path


@dataclass(frozen=True, kw_only=True)
class BuildUntunedBlock(BuildRequest):
    """Compile one block with TVM's default pipeline (no schedules)."""

    block: BlockConfig


@dataclass(frozen=True, kw_only=True)
class BuildObject(CompileRequest):
    """Compile one fused block to the object file `path`, with its function called `name`."""

    block: BlockConfig
    points: Sequence[Point]
    name: str
    path: Path


@dataclass(frozen=True, kw_only=True)
class BuildCalls(CompileRequest):
    """Compile the Relax module in the file `module`, whose first arguments are inputs, to a static library's kernels,
    object files in `folder`; the answer is the list of their calls."""

    network: str
    module: Path
    num_inputs: int
    folder: Path


@dataclass(frozen=True, kw_only=True)
class CompilePoint(CompileRequest):
    """Compile one schedule point of one operator for a GPU and read its figures; nothing is kept of the code."""

    workload: Workload
    point: Point


# ---- learning -------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class Learn(Request):
    """Compute what a cost model asks, from its `question` alone; the answer is JSON, too."""

    question: dict[str, Any]


# ---- timing ---------------------------------------------------------------------------------------------------------
_ALONE, _IN_TURNS = TimingSettings(), TimingSettings(repeats=15)
_NETWORK = TimingSettings(repeats=15, min_repeat_s=0.01)


@dataclass(frozen=True, kw_only=True)
class TimingRequest(Request):
    """Check what is in `library` against the reference case in the file `case`, then time it."""

    library: Path
    case: Path


@dataclass(frozen=True, kw_only=True)
class Measure(TimingRequest):
    """Check an operator or a block, then time it. One slower than `hopeless_s` at first is not timed further."""

    settings: TimingSettings = _ALONE
    hopeless_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class MeasureInTurns(TimingRequest):
    """Check the programs 0.so … of the folder `library`, `num` of them, then time the right ones in turns."""

    num: int
    settings: TimingSettings = _IN_TURNS


@dataclass(frozen=True, kw_only=True)
class MeasureNetwork(TimingRequest):
    """Check a whole network, then time single inferences; on a GPU all of them are cold, whatever the settings say."""

    settings: TimingSettings = _NETWORK


@dataclass(frozen=True, kw_only=True)
class CompareModule(TimingRequest):
    """Run the module of a finished network on each draw of its case, the first draw twice; the answer is a
    `Comparison`."""


@dataclass(frozen=True, kw_only=True)
class MeasureModule(TimingRequest):
    """Check the module of a finished network on the first draw of its case, then time single inferences."""

    settings: TimingSettings = _NETWORK


# ---- the worker itself ----------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Ping(Request):
    """Answer when the worker is ready."""


@dataclass(frozen=True)
class Hang(Request):
    """Never answer."""


@dataclass(frozen=True)
class Crash(Request):
    """End the worker as a broken kernel does."""


TIMINGS: tuple[type[Request], ...] = (
    *(Measure, MeasureInTurns, MeasureNetwork, CompareModule, MeasureModule),
    *(Ping, Hang, Crash),
)
"""Requests that a device elsewhere answers."""
