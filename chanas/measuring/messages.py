"""Messages between what asks and what measures: requests, answers, and what comes of them.

A request is a frozen dataclass, and one line of JSON: `{"call": "build", "arguments": {…}}`. The worker of a processor,
that of a GPU and the server on a device answer the same ones; another process of ours may have some of its own. An
answer is a result, or an error with its kind.
"""

from __future__ import annotations

import dataclasses
import enum
import re
import statistics
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from chanas import errors
from chanas.compiler.program import FormChange
from chanas.compiler.space import Point
from chanas.core.blocks import BlockConfig
from chanas.core.codec import fields_from_json, fields_to_json, to_json
from chanas.core.target import HardwareTarget
from chanas.core.units import is_seconds
from chanas.devices.timing import TimingSettings
from chanas.errors import ChanasError, one_line
from chanas.operators.workload import Workload


# ---- requests -------------------------------------------------------------------------------------------------------
class Request:
    """One call with its arguments, which are the fields of a frozen dataclass. It is named after its class."""

    call: ClassVar[str]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.call = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()

    def to_json(self) -> dict[str, Any]:
        return {"call": self.call, "arguments": fields_to_json(self)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """Inverse of `to_json`, for every class of requests that is known here."""
        request: Self = read_request(data, _kinds(cls))
        return request


def read_request(data: dict[str, Any], known: Iterable[type[Request]]) -> Any:
    """Read the request of one of the `known` classes from its JSON.

    Raises:
        KeyError: the call is none of them; TypeError: arguments are missing, or there are others.
    """
    kinds = {kind.call: kind for kind in known}
    return fields_from_json(kinds[data["call"]], data["arguments"])


def _kinds(kind: type[Request]) -> Iterator[type[Request]]:
    for child in kind.__subclasses__():
        yield child
        yield from _kinds(child)


@dataclass(frozen=True)
class OperatorAt:
    """One operator at a schedule point."""

    workload: Workload
    point: Point


@dataclass(frozen=True)
class OperatorsAt:
    """One operator at several schedule points: as many libraries in a folder, 0.so, 1.so, …

    One that is there already, as `compiled` says (one path or None for each point), is copied.
    """

    workload: Workload
    points: Sequence[Point]
    compiled: Sequence[Path | None]


@dataclass(frozen=True)
class BlockAt:
    """One fused block, with a schedule point for each of its operators."""

    block: BlockConfig
    points: Sequence[Point]


@dataclass(frozen=True)
class NetworkAt:
    """A whole network, with the schedule points of each block."""

    blocks: Sequence[BlockConfig]
    points: Sequence[Sequence[Point]]


@dataclass(frozen=True)
class ModuleFile:
    """A Relax module whose functions are scheduled, in the JSON that TVM writes of it; `num_inputs` of its arguments
    come first and are no parameters."""

    path: Path
    num_inputs: int = 0


@dataclass(frozen=True)
class UntunedBlock:
    """One block by TVM's default pipeline, without schedules."""

    block: BlockConfig


What = OperatorAt | OperatorsAt | BlockAt | NetworkAt | ModuleFile | UntunedBlock | FormChange
"""Things that can be compiled."""


@dataclass(frozen=True, kw_only=True)
class Build(Request):
    """Compile something for a target into `path`.

    form  `library`: what the target's workers load; `object`: an object file, the function called as the file;
          `kernels`: object code of a C library, a folder of a module's functions, whose symbols begin with `name`
    """

    target: HardwareTarget
    what: What
    path: Path
    form: Literal["library", "object", "kernels"] = "library"
    name: str = ""


@dataclass(frozen=True, kw_only=True)
class CompilePoint(Request):
    """Compile one schedule point of one operator for a GPU and read its figures; nothing is kept of the code."""

    target: HardwareTarget
    workload: Workload
    point: Point


@dataclass(frozen=True, kw_only=True)
class TimingRequest(Request):
    """Check what is in `library` against the reference case in the file `case`."""

    library: Path
    case: Path


@dataclass(frozen=True, kw_only=True)
class Measure(TimingRequest):
    """Check a program, then time it.

    form        `function`: of an operator or a block; `network`: a whole one, of which single inferences are timed;
                `module`: a finished one, checked on the first draw of its case
    num         so many programs 0.so … of the folder `library`, timed in turns against each other; None: one
    hopeless_s  one slower than this at first is not timed further
    """

    settings: TimingSettings = field(default_factory=TimingSettings)
    form: Literal["function", "network", "module"] = "function"
    num: int | None = None
    hopeless_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class Compare(TimingRequest):
    """Run the module of a finished network on each draw of its case, the first draw twice; the answer is a
    `Comparison`."""


@dataclass(frozen=True, kw_only=True)
class Learn(Request):
    """Compute what a cost model asks, from its `question` alone; the answer is JSON, too."""

    question: dict[str, Any]


@dataclass(frozen=True)
class Ping(Request):
    """Answer when the worker is ready."""


@dataclass(frozen=True)
class Hang(Request):
    """Never answer."""


@dataclass(frozen=True)
class Crash(Request):
    """End the worker as a broken kernel does."""


TIMINGS: tuple[type[Request], ...] = (Measure, Compare, Ping, Hang, Crash)
"""Requests that a device elsewhere answers."""


# ---- answers --------------------------------------------------------------------------------------------------------
_MAX_TEXT = 300
_LAST_WORDS = "; it said: "


class ErrorKind(enum.StrEnum):
    """Kind of an error. Its value is what a stored error of the kind begins with."""

    WRONG = "wrong result"
    TIMEOUT = "timeout"
    CRASH = "crash"
    """The worker ended, or devices were lost over the request again and again."""
    OUT_OF_MEMORY = "out of memory"
    GPU_FAULT = "GPU fault"
    """The GPU does nothing more for the process."""
    STOPPED = "stopped"
    BUSY = "busy"
    RAISED = "raised"
    """An exception; a stored error begins with the name of its class instead."""


@dataclass(frozen=True)
class WorkerError:
    """The reason that there is no result, in one line.

    exception   name of the exception's class, of the kind `RAISED`
    last_words  the line that tells most of what a worker that ended left on standard error
    max_error   error relative to the largest expected magnitude, of the kind `WRONG`
    signal      that ended a worker, of the kind `CRASH`; it is not stored
    """

    kind: ErrorKind
    text: str
    exception: str = ""
    last_words: str = ""
    max_error: float | None = None
    signal: int | None = None

    def __str__(self) -> str:
        """The error as it is stored and told."""
        head = self.exception if self.kind is ErrorKind.RAISED else self.kind.value
        last_words = f"{_LAST_WORDS}{self.last_words}" if self.last_words else ""
        return ": ".join(filter(None, (head, self.text))) + last_words

    @classmethod
    def read(cls, stored: str) -> WorkerError:
        """Read a stored error, the inverse of `str`; a text that begins like none is of the kind `RAISED`."""
        rest, _, last_words = stored.partition(_LAST_WORDS)
        head, _, text = rest.partition(": ")
        if head in list(ErrorKind):
            return cls(ErrorKind(head), text, last_words=last_words)
        if head.isidentifier() and text:
            return cls(ErrorKind.RAISED, text, head, last_words)
        return cls(ErrorKind.RAISED, rest, last_words=last_words)

    @classmethod
    def of(cls, error: Exception) -> WorkerError:
        """The error of a request over which an exception was raised; the texts of chanas' own are whole."""
        if isinstance(error, RequestError):
            return error.error
        text = str(error) if isinstance(error, ChanasError) else one_line(error, _MAX_TEXT)
        return cls(ErrorKind.RAISED, text, type(error).__name__)

    @classmethod
    def wrong(cls, max_error: float) -> WorkerError:
        """The error of a program that computes something else than PyTorch."""
        return cls(ErrorKind.WRONG, f"relative error {max_error:.3g} against PyTorch", max_error=max_error)

    @property
    def exception_class(self) -> type[ChanasError] | None:
        """The class of an exception that is one of chanas' own."""
        found = getattr(errors, self.exception, None)
        return found if isinstance(found, type) and issubclass(found, ChanasError) else None

    @property
    def message(self) -> str:
        """The error without the class of an exception."""
        return self.text if self.kind is ErrorKind.RAISED else str(self)

    @classmethod
    def from_json(cls, data: dict[str, Any] | str) -> WorkerError:
        """Inverse of `to_json`; a device of an earlier version sends the text alone."""
        if isinstance(data, str):
            return cls.read(data)
        error: WorkerError = fields_from_json(cls, data)
        return error


class RequestError(Exception):
    """Raised where a request fails over an error that has its kind already."""

    def __init__(self, error: WorkerError) -> None:
        super().__init__(str(error))
        self.error = error


@dataclass(frozen=True)
class Timing:
    """Seconds of a program that computes the right thing: their median and spread over `repeats`, and its error."""

    seconds: float
    spread_s: float
    repeats: int
    max_error: float


@dataclass(frozen=True)
class Answer:
    """A worker's answer: a result as JSON, or the reason that there is none."""

    result: Any
    error: WorkerError | None
    wall_s: float = 0.0
    device: int = 0
    """Index of the pool's device that timed it."""

    @classmethod
    def of(cls, found: Any) -> Answer:
        """The answer that a request found something, or an error."""
        return cls(None, found) if isinstance(found, WorkerError) else cls(to_json(found), None)

    @property
    def timing(self) -> Timing:
        """The result of a timing."""
        timing: Timing = fields_from_json(Timing, self.result)
        return timing

    @property
    def members(self) -> tuple[Answer, ...]:
        """The answers about several programs that were timed in turns; about one there are none."""
        return tuple(map(Answer.from_json, self.result)) if isinstance(self.result, list) else ()

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """Inverse of `to_json`; a timing that nothing can have taken is an error."""
        answer: Self = fields_from_json(cls, data)
        seconds = answer.result.get("seconds", 1.0) if isinstance(answer.result, dict) else 1.0
        if not is_seconds(seconds):
            error = WorkerError(ErrorKind.RAISED, f"expected seconds above 0, got {seconds!r:.40}")
            return dataclasses.replace(answer, result=None, error=error)
        return answer


# ---- outcomes -------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Reading:
    """One timing of the canary: seconds and their spread, and seconds relative to the run's median by then."""

    seconds: float
    spread_s: float
    drift: float
    created: float = field(default_factory=time.time)


@dataclass(frozen=True)
class Outcome:
    """Seconds of a candidate, or why there are none; of several that were timed in turns, the outcome of each.

    `drift` is the canary's correction; the raw measurement was `seconds * drift`. `code` identifies the machine code;
    if another candidate compiled to the same code, `same_as` is its token and all figures are that candidate's.
    """

    seconds: float | None
    spread_s: float | None
    error: str | None
    max_error: float | None = None
    build_s: float = 0.0
    measure_s: float = 0.0
    members: tuple[Outcome, ...] = ()
    drift: float = 1.0
    code: str | None = None
    same_as: Any = None
    device: int | None = field(default=None, compare=False)
    """Index of the pool's device that timed it; None if it is unknown."""
    disagreement: float | None = None
    """Difference between the timings of several processes, relative to the largest; None if there was but one."""


def median_outcome(outcomes: Sequence[Outcome]) -> Outcome:
    """The last, with the median of all seconds; the spread is the largest of theirs or of what lies between them."""
    seconds = [o.seconds for o in outcomes if o.seconds is not None]
    if len(seconds) < 2:
        return outcomes[-1]
    low, _, high = statistics.quantiles(seconds, n=4, method="inclusive")
    return dataclasses.replace(
        outcomes[-1],
        seconds=statistics.median(seconds),
        spread_s=max(high - low, statistics.median(o.spread_s or 0.0 for o in outcomes)),
        drift=statistics.median(o.drift for o in outcomes),
    )
