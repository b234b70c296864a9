"""Measure records of Ansor (TVM's auto-scheduler), as TenSet's files have them: an object of JSON on each line.

    {"i": [[workload key, target, hardware parameters, host, layout rewriting, input names], [[], steps]],
     "r": [seconds, error, all seconds, timestamp], "v": "v0.6"}

Steps are those of TVM's `transform_step.cc`: a name, the stage, and what the kind of step has.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from chanas.core.target import HardwareTarget
from chanas.errors import one_line, printable
from chanas.files.writing import parse_json
from chanas.prescheduler.records.sources import Source
from chanas.prescheduler.tuning.offline.exchange import steps
from chanas.prescheduler.tuning.offline.exchange.measured import (
    Measured,
    a_gpu,
    graphics_processor,
    mean_seconds,
    processor,
)
from chanas.prescheduler.tuning.offline.exchange.reading import (
    MAX_STEPS,
    UnusableError,
    listed,
    mapping,
    numbers,
    string,
    whole,
    wholes,
)
from chanas.prescheduler.tuning.offline.primitives import Primitive, device, encode

VERSION = "v0.6"
SYSTEM = f"Ansor {VERSION}"
_ERRORS = (
    "",
    "instantiation",
    "compiling on the host",
    "compiling for the device",
    "runtime",
    "wrong answer",
    "build timeout",
    "run timeout",
    "unknown error",
)
_ANNOTATIONS = ("", "unroll", "vectorise", "parallel", "vthread", *("block", "thread") * 3, "tensorise")
"""The annotations by their numbers; blocks and threads have three dimensions."""
_PRAGMA = "auto_unroll_max_step"
_NUM_HARDWARE, _SHORTEST_TASK, _LONGEST_TASK = 8, 3, 6
_MAX_KEY, _MAX_NAME, _MAX_LOOPS, _MAX_LENGTHS = 4096, 40, 256, 16
_NUM_VALUES = {
    "AN": 4, "FU": 3, "PR": 4, "RE": 3, "SP": 6, "FSP": 5, "FFSP": 6, "SA": 5,
    "CA": 4, "CI": 2, "CR": 2, "CHR": 4, "CHW": 3, "RF": 4,
}  # fmt: skip
"""Values of each step, its name included."""


class _Split(NamedTuple):
    """A split that others follow: its lengths, and the factor left of the extent; None where that is not known."""

    lengths: list[int]
    left: int | None


def read_record(row: Any) -> Measured:
    """A record.

    Raises:
        UnusableError: it is of no use here.
        ValueError: it is no such record.
    """
    row = mapping(row, "a measure record")
    if not {"i", "r", "v"} <= row.keys():
        raise ValueError(f"expected a measure record with i, r and v, got {sorted(row)[:8]}")
    if (version := string(row["v"], "v")) != VERSION:
        raise UnusableError(f"of another version than {VERSION} ({version[:20]})")
    task, state = listed(row["i"], "i", 2)
    seconds, error, *_ = listed(row["r"], "r", 4)
    if error_number := whole(error, "the error's number"):
        name = _ERRORS[error_number] if error_number < len(_ERRORS) else str(error_number)
        raise UnusableError(f"that failed ({name})")
    key, source = _task(task)
    sequence = _sequence(listed(state, "the state", 2)[1], source.target)
    mean_s = mean_seconds(numbers(seconds, "seconds"))
    return Measured(source, key, _operator(key), mean_s, encode(sequence))


def _task(task: Any) -> tuple[str, Source]:
    values = listed(task, "the task")
    if not _SHORTEST_TASK <= len(values) <= _LONGEST_TASK:
        raise ValueError(f"expected a task of workload, target and hardware parameters, got {len(values)} values")
    key, target = string(values[0], "the workload's key"), string(values[1], "the target")
    if len(key) > _MAX_KEY:
        raise ValueError(f"expected a workload's key of at most {_MAX_KEY} characters, got {len(key)}")
    hardware = wholes(listed(values[2], "hardware parameters", _NUM_HARDWARE), "hardware parameters", -1)
    return key, _device(target, tuple(hardware))


@functools.lru_cache(maxsize=1024)
def _device(target: str, hardware: tuple[int, ...]) -> Source:
    """Hardware parameters are cores, bytes of a vector and of a cache line, shared and local memory and threads of a
    block, virtual threads, and threads of a warp."""
    kind, *words = target.split() or [""]
    options = dict(word.lstrip("-").split("=", 1) for word in words if "=" in word)
    named = [
        options[name] for name in ("model", "mcpu", "arch", "mtriple") if options.get(name, "unknown") != "unknown"
    ]
    name, identity = (named or [kind])[0], [target, hardware]
    cores, vector_bytes, _, shared_bytes, _, threads, _, warp = hardware
    if kind == "llvm":
        return processor(SYSTEM, name, max(1, cores), vector_bytes // 4, identity, mcpu=options.get("mcpu", ""))
    if kind == "cuda":
        features = a_gpu(options.get("arch", ""), max(0, warp), max(0, threads), max(0, shared_bytes))
        return graphics_processor(SYSTEM, name, identity, features)
    raise UnusableError(f"of targets of other kinds ({one_line(kind, 20)})")


@functools.lru_cache(maxsize=1 << 14)
def _operator(key: str) -> str:
    """The function that a key names; TenSet's have a hash of the computation instead, which names none."""
    try:
        first = parse_json(key)[0]
    except (ValueError, LookupError, TypeError):
        return "subgraph"
    is_hash = isinstance(first, str) and len(first) == 32 and set(first) <= set("0123456789abcdef")
    return printable(first)[:_MAX_NAME] if isinstance(first, str) and not is_hash else "subgraph"


def _sequence(found: Any, target: HardwareTarget) -> list[Primitive]:
    """Rows of primitives of the steps."""
    of_state = listed(found, "the steps")
    if len(of_state) > MAX_STEPS:
        raise ValueError(f"expected at most {MAX_STEPS} steps, got {len(of_state)}")
    sequence, splits = [device(target)], dict[int, _Split]()
    for place, step in enumerate(of_state):
        name, *values = listed(step, "a step") or [""]
        name = string(name, "a step's name")
        if name not in _NUM_VALUES:
            raise UnusableError(f"with steps that are not known ({name[:20]})")
        if len(values) + 1 != _NUM_VALUES[name]:
            raise ValueError(f"expected {_NUM_VALUES[name]} values of step {name}, got {len(values) + 1}")
        whole(values[0], f"the stage of {name}")
        if name == "SP":
            splits[place] = _split(values[2], values[3])
        sequence += _rows(name, values[1:], splits, splits.get(place), target)
    return sequence


def _split(extent: Any, lengths: Any) -> _Split:
    factors = _short(lengths, "the lengths of SP", _MAX_LENGTHS, least=1)
    total = 0 if extent is None else whole(extent, "the extent of SP")
    return _Split(factors, -(-total // math.prod(factors)) if total else None)


def _rows(
    name: str, values: Sequence[Any], splits: Mapping[int, _Split], own: _Split | None, target: HardwareTarget
) -> list[Primitive]:
    """Rows of a step, of its values behind the stage; `own` is the split that it is itself."""
    match name:
        case "SP":
            assert own is not None
            lengths, left = own
            return [steps.split([left, *lengths] if whole(values[3], "the direction of SP") else [*lengths, left])]
        case "FSP":  # as many lengths as it asks for: the last one has the inner ones of the split that it follows
            (lengths, left), num = _followed(values[1], splits), whole(values[2], "the parts of FSP", 1)
            return [steps.split([left, *lengths[: num - 1], math.prod(lengths[num - 1 :])])]
        case "FFSP":  # a fused loop, whose extent is not in the record
            length = _length_of_all(values[1], values[2], splits)
            return [steps.split([None, length] if whole(values[3], "the kind of FFSP") else [length, None])]
        case "AN":
            return _annotated(whole(values[1], "the annotation"), target)
        case "PR":
            pragma, _, size = string(values[1], "the pragma").partition("$")
            known = pragma == _PRAGMA and size.isdecimal() and len(size) < 10
            return [steps.unrolled(int(size)) if known else steps.other("rest")]
        case "FU":
            return [steps.fused(len(_short(values[0], "the loops of FU", _MAX_LOOPS)))]
        case "RE":
            return [steps.reordered(_short(values[0], "the order of RE", _MAX_LOOPS))]
        case "CA":
            return [steps.inside(whole(values[1], "the loop of CA"))]
        case "CI":
            return [steps.inlined()]
        case "CHR":
            readers = _short(values[1], "the readers of CHR", _MAX_LOOPS)
            return [steps.loaded(string(values[0], "the scope of CHR"), len(readers))]
        case "CHW":
            return [steps.written()]
        case "RF":
            return [steps.shared_sum()]
    return [steps.other({"SA": "align", "CR": "root"}[name])]


def _followed(place: Any, splits: Mapping[int, _Split]) -> _Split:
    if (split := splits.get(whole(place, "the step that is followed"))) is None:
        raise ValueError(f"expected a step SP before it to be followed, got step {place}")
    return split


def _length_of_all(places: Any, level: Any, splits: Mapping[int, _Split]) -> int:
    """The product of the lengths at a level of several splits."""
    followed = [_followed(p, splits) for p in _short(places, "the steps that FFSP follows", _MAX_LENGTHS)]
    depth = whole(level, "the level of FFSP")
    if any(depth >= len(split.lengths) for split in followed):
        raise ValueError(f"expected a level of FFSP that all splits have, got {depth}")
    return math.prod(split.lengths[depth] for split in followed)


def _annotated(number: int, target: HardwareTarget) -> list[Primitive]:
    if number >= len(_ANNOTATIONS):
        raise UnusableError(f"with steps that are not known (annotation {number})")
    match _ANNOTATIONS[number]:
        case "":
            return []
        case "unroll":
            return [steps.unrolled(0)]
        case "vectorise":
            return [steps.vectorised(target.vector_lanes)]
        case "parallel":
            return [steps.parallel(target.num_threads)]
        case "tensorise":
            return [steps.tensorised()]
        case bound:
            return [steps.other(bound)]


def _short(value: Any, what: str, most: int, least: int = 0) -> list[int]:
    found = wholes(value, what, least)
    if len(found) > most:
        raise ValueError(f"expected at most {most} numbers for {what}, got {len(found)}")
    return found
