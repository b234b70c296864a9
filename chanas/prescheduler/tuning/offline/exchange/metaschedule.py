"""Databases of TVM's MetaSchedule, as its `JSONDatabase` writes them: two files of JSON lines.

    database_workload.json       [hash, module], a line for each workload; the module is a text that only TVM can read
    database_tuning_record.json  [number of the workload, [[instructions, decisions], seconds, target, arguments]]

An instruction is [name, inputs, attributes, outputs], a decision [place of the instruction, value]. The module is not
opened: loading it would let a stranger's file make objects of the compiler. So an operator is known by the hash of its
module and by the name of the block that was tiled.
"""

from __future__ import annotations

import functools
import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chanas.core.target import HardwareTarget
from chanas.errors import DataError, one_line, printable
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
    rows,
    string,
    whole,
    wholes,
)
from chanas.prescheduler.tuning.offline.primitives import Primitive, device, encode

SYSTEM = "MetaSchedule"
RECORDS_FILE, WORKLOADS_FILE = "database_tuning_record.json", "database_workload.json"
_MAX_HASH, _MAX_NAME, _MAX_LOOPS, _MAX_EXTENT = 64, 40, 256, 1 << 40
_TILING = "meta_schedule.tiling_structure"
_ROOT = "root"
_UNROLLING = "pragma_auto_unroll_max_step"

# Instructions that change nothing: they name blocks and loops, or draw the numbers of others.
_NAMING = {
    "EnterPostproc", "GetBlock", "GetChildBlocks", "GetConsumers", "GetLoops", "GetOutputBlocks", "GetProducers",
    "GetSBlock", "SampleCategorical", "SampleComputeLocation", "SamplePartitionedTile", "SamplePerfectTile",
    "Unannotate",
}  # fmt: skip
_PLAIN: Mapping[str, Callable[[], Primitive]] = {
    **dict.fromkeys(("ComputeInline", "ReverseComputeInline"), steps.inlined),
    **dict.fromkeys(("CacheWrite", "ReindexCacheWrite", "WriteAt"), steps.written),
    **dict.fromkeys(("ComputeAt", "ReverseComputeAt"), functools.partial(steps.inside, 0)),
    "RFactor": steps.shared_sum,
    "Tensorize": steps.tensorised,
    "StorageAlign": functools.partial(steps.other, "align"),
    "SetScope": functools.partial(steps.other, "scope"),
    **dict.fromkeys(
        ("PadEinsum", "ReIndex", "SetAxisSeparator", "TransformBlockLayout", "TransformLayout",
         "TransformSBlockLayout"),
        functools.partial(steps.other, "layout"),
    ),
    **dict.fromkeys(
        ("AddUnitLoop", "AnnotateBufferAccess", "Blockize", "CacheIndex", "CacheInplace", "DecomposePadding",
         "DecomposeReduction", "FuseReductionEpilogue", "LoopPartition", "Merge", "RollingBuffer",
         "UnsafeHideBufferAccess", "UnsafeSetDType"),
        functools.partial(steps.other, "rest"),
    ),
}  # fmt: skip
"""Rows of instructions that are alike wherever they stand."""
_INTENTS = {
    "meta_schedule.parallel": "Parallel",
    "meta_schedule.vectorize": "Vectorize",
    "meta_schedule.unroll_explicit": "Unroll",
    "meta_schedule.unroll_implicit": "Unroll",
}
"""Annotations that a later pass makes instructions of, and takes away (`Unannotate`)."""


def read_database(records: Path, skipped: Counter[str]) -> Iterator[Measured]:
    """The records of a database that are of use here; the others are counted.

    Raises:
        DataError: a file is missing or damaged.
    """
    beside = records.with_name(records.name.replace("tuning_record", "workload"))
    if beside == records or not beside.is_file():
        expected = WORKLOADS_FILE if beside == records else beside.name
        raise DataError(f"{records} is one of MetaSchedule's two files; expected {expected} beside it")
    workloads = list(rows(beside, _workload, Counter()))
    yield from rows(records, functools.partial(_record, workloads), skipped)


def _workload(row: Any) -> str:
    """The hash of a workload; its module is left closed."""
    digest, module = listed(row, "a workload", 2)
    string(module, "the module")
    if not 0 < len(string(digest, "the hash")) <= _MAX_HASH:
        raise ValueError(f"expected a hash of up to {_MAX_HASH} characters, got {len(digest)}")
    return str(digest)


def _record(workloads: Sequence[str], row: Any) -> Measured:
    place, record = listed(row, "a tuning record", 2)
    if whole(place, "the workload") >= len(workloads):
        raise ValueError(f"expected one of {len(workloads)} workloads, got number {place}")
    trace, seconds, target, arguments = listed(record, "a tuning record", 4)
    if seconds is None or target is None:
        raise UnusableError(f"without {'seconds' if seconds is None else 'a target'}")
    source = _device(json.dumps(mapping(target, "the target"), sort_keys=True), _dtype(arguments))
    walk = _Walk(source.target)
    walk.follow(*listed(trace, "the trace", 2))
    mean_s = mean_seconds(numbers(seconds, "seconds"))
    return Measured(source, f"metaschedule-{workloads[place]}", walk.operator, mean_s, encode(walk.sequence))


def _dtype(arguments: Any) -> str:
    """The type of the first argument, `["TENSOR", dtype, shape]`; float32 where it is not said."""
    if arguments is None:
        return "float32"
    first = (listed(arguments, "the arguments") or [None])[0]
    return string(first[1], "a dtype")[:_MAX_NAME] if isinstance(first, list) and len(first) == 3 else "float32"


@functools.lru_cache(maxsize=1024)
def _device(target: str, dtype: str) -> Source:
    options = json.loads(target)
    kind = string(options.get("kind"), "the target's kind")
    named = [options[name] for name in ("model", "mcpu", "arch", "tag") if isinstance(options.get(name), str)]
    name = next((text for text in named if text and text != "unknown"), kind)
    if kind == "llvm":
        threads = whole(options.get("num-cores", 1), "num-cores", 1)
        return processor(SYSTEM, name, threads, 1, [target, dtype], dtype, string(options.get("mcpu", ""), "mcpu"))
    if kind == "cuda":
        limits = ("thread_warp_size", "max_threads_per_block", "max_shared_memory_per_block")
        features = a_gpu(string(options.get("arch", ""), "arch"), *(whole(options.get(n, 0), n) for n in limits))
        return graphics_processor(SYSTEM, name, [target, dtype], features, dtype)
    raise UnusableError(f"of targets of other kinds ({one_line(kind, 20)})")


@dataclass
class _Walk:
    """The walk through a trace, which replays what is known without the program: the numbers that were drawn, and the
    extents of the loops that splits of such numbers make."""

    target: HardwareTarget
    sequence: list[Primitive] = field(default_factory=list)
    known: dict[str, int] = field(default_factory=dict)
    """Numbers and extents of loops, by the names of their variables."""
    blocks: dict[str, str] = field(default_factory=dict)
    tiled: str = ""

    @property
    def operator(self) -> str:
        """The name of the block that was tiled, or of the first one."""
        first = next((name for name in self.blocks.values() if name != _ROOT), _ROOT)
        return printable(self.blocks.get(self.tiled, first))[:_MAX_NAME]

    def follow(self, instructions: Any, decisions: Any) -> None:
        """Walk from the first instruction to the last."""
        found = [listed(i, "an instruction", 4) for i in listed(instructions, "the instructions")]
        if len(found) > MAX_STEPS:
            raise ValueError(f"expected at most {MAX_STEPS} instructions, got {len(found)}")
        pairs = [listed(decision, "a decision", 2) for decision in listed(decisions, "the decisions")]
        drawn = {whole(place, "a decision's place"): value for place, value in pairs}
        self.sequence.append(device(self.target))
        removed = {str(a[0]) for name, _, a, _ in found if name == "Unannotate" and isinstance(a, list) and a}
        for place, (name, inputs, attributes, outputs) in enumerate(found):
            self._step(
                string(name, "an instruction's name"),
                listed(inputs, "the inputs"),
                listed(attributes, "the attributes"),
                [string(o, "an output") for o in listed(outputs, "the outputs")],
                drawn.get(place),
                removed,
            )

    def _step(
        self, name: str, inputs: list[Any], attributes: list[Any], outputs: list[str], drawn: Any, removed: set[str]
    ) -> None:
        if name in _NAMING:
            self._name(name, attributes, outputs, drawn)
        elif name in _PLAIN:
            self.sequence.append(_PLAIN[name]())
        else:
            match name:
                case "Split":
                    self._split(inputs, outputs)
                case "Fuse":
                    extents = [self._number(loop) for loop in _few(inputs)]
                    self._learn(outputs, [math.prod(e for e in extents if e) if all(extents) else None])
                    self.sequence.append(steps.fused(len(inputs)))
                case "Reorder":
                    order = [string(loop, "a loop") for loop in _few(inputs)]
                    self.sequence.append(steps.reordered([_place(loop) for loop in order]))
                case "Parallel" | "Vectorize" | "Unroll":
                    self._mark(name, self._number(_first(inputs, name)))
                case "Bind":
                    thread = string(_first(attributes, name), "the thread")
                    kind = "vthread" if thread.startswith("vthread") else thread.partition("Idx")[0]
                    bound = kind if kind in ("vthread", "block", "thread") else "rest"
                    self.sequence.append(steps.other(bound, self._number(_first(inputs, name))))
                case "CacheRead" | "ReadAt" | "ReindexCacheRead":
                    scope = string(attributes[-1] if attributes else None, "the scope")
                    readers = inputs[1] if len(inputs) == 2 and isinstance(inputs[1], list) else []
                    self.sequence.append(steps.loaded(scope, len(readers)))
                case "Annotate":
                    self._annotate(inputs, string(_first(attributes, name), "the annotation"), removed)
                case _:
                    raise UnusableError(f"with instructions that are not known ({name[:20]})")

    def _name(self, name: str, attributes: list[Any], outputs: list[str], drawn: Any) -> None:
        """Keep what an instruction names or draws."""
        if name in ("GetSBlock", "GetBlock"):
            self.blocks |= {output: string(_first(attributes, name), "a block") for output in outputs[:1]}
        elif name in ("SamplePerfectTile", "SamplePartitionedTile") and drawn is not None:
            self._learn(outputs, wholes(drawn, f"the decision of {name}", 1))
        elif name == "SampleCategorical" and drawn is not None:
            candidates = listed(_first(attributes, name), "the candidates")
            if whole(drawn, f"the decision of {name}") >= len(candidates):
                raise ValueError(f"expected one of {len(candidates)} candidates, got number {drawn}")
            self._learn(outputs, [whole(candidates[drawn], "a candidate", -1)])

    def _split(self, inputs: list[Any], outputs: list[str]) -> None:
        loop, *factors = [self._number(value) for value in _few(inputs)]
        if any(factor is not None and factor < 1 for factor in factors):
            raise ValueError("expected factors of Split from 1 on, got less")
        if factors.count(None) == 1 and loop:
            left = -(-loop // max(1, math.prod(f for f in factors if f)))
            factors = [left if f is None else f for f in factors]
        self._learn(outputs, factors)
        self.sequence.append(steps.split(factors))

    def _annotate(self, inputs: list[Any], key: str, removed: set[str]) -> None:
        value = self._number(inputs[1]) if len(inputs) == 2 else None
        if key == _TILING:
            self.tiled = str(inputs[0]) if inputs else ""
        elif key == _UNROLLING:
            self.sequence.append(steps.unrolled(value or 0))
        elif key in _INTENTS and key not in removed:
            self._mark(_INTENTS[key], value)
        elif not key.startswith(("meta_schedule.", "pragma_")):
            self.sequence.append(steps.other("rest"))

    def _mark(self, name: str, extent: int | None) -> None:
        """A loop that is parallel, a vector, or written out."""
        if name == "Parallel":
            self.sequence.append(steps.parallel(self.target.num_threads))
        elif name == "Vectorize":
            self.sequence.append(steps.vectorised(extent or self.target.vector_lanes))
        else:
            self.sequence.append(steps.unrolled(extent or 0))

    def _number(self, value: Any) -> int | None:
        """A whole number, or that of a variable where it is known."""
        if isinstance(value, str):
            return self.known.get(value)
        return value if type(value) is int else None

    def _learn(self, outputs: Sequence[str], values: Sequence[int | None]) -> None:
        """Keep numbers by the names of their variables; those that no loop has are not known."""
        found = zip(outputs, values, strict=False)
        self.known |= {name: value for name, value in found if value is not None and abs(value) <= _MAX_EXTENT}


def _first(values: Sequence[Any], name: str) -> Any:
    if not values:
        raise ValueError(f"expected inputs and attributes of {name}, got fewer")
    return values[0]


def _few(loops: list[Any]) -> list[Any]:
    if not 0 < len(loops) <= _MAX_LOOPS:
        raise ValueError(f"expected 1 to {_MAX_LOOPS} loops, got {len(loops)}")
    return loops


def _place(loop: str) -> int:
    """The number in a loop's name: loops are numbered as they are made."""
    digits = loop.lstrip("abcdefghijklmnopqrstuvwxyz_")
    return int(digits) if digits.isdecimal() and len(digits) < 10 else 0
