"""A network that `chanas tune` made, for a device without Python: a static library that takes the network's inputs and
fills its outputs, whatever these are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open

from chanas.bundle.tuned import SOURCE, WEIGHTS, TunedNetwork
from chanas.compiler.toolchains import TOOLS, Tools, find_c_toolchain
from chanas.core.arrays import Array
from chanas.core.units import format_bytes
from chanas.errors import CheckpointError, TargetError
from chanas.export import c_sources
from chanas.export.driver import build_calls, driver, write_weights
from chanas.export.folders import (
    Exported,
    Schedules,
    Sources,
    build_example,
    check_compilable,
    checked_name,
    described_processor,
    free_name,
    why_not_here,
    write_folder,
)
from chanas.export.memory_plan import plan_memory
from chanas.export.signature import TYPES, Tensor, signature
from chanas.export.trials import Check, RunExample, find_runner, largest_error, run_example, try_example
from chanas.files.locks import one_writer
from chanas.files.scratch import scratch_folder
from chanas.operators.precision import FLOAT32

_TITLE = "A neural network"
_MOST_BYTES = (1 << 31) - (1 << 26)
"""Compiled code reaches addresses up to 2 GiB away; the rest is for the code and what else is in a program."""
_NUM_CHECKS = 2
_NUM_INDICES = 2
"""Whole numbers may be indices, of which any table has two."""
_LEAST_OUTPUT = 0.01
"""Outputs this small are shares among many classes; even smaller ones may be what rounding left of a zero."""


def export_tuned(
    folder: Path | str,
    out: Path,
    target: str | None = None,
    name: str | None = None,
    *,
    tools: Tools = TOOLS,
    run: RunExample = run_example,
) -> Exported:
    """Write the folder `out`: library, header, example, Makefile, README.

    Args:
        folder: one that `chanas tune` made.
        target: any that `chanas target` knows, with the schedules of the one that the network was tuned for; by
            default that one itself.
        name: what files and functions are called after; by default as `out`.
        tools: compilers that are installed.
        run: runs the example.

    Raises:
        CheckpointError: the folder is not whole, or was made by a version that kept no source of it.
        ConfigError: `out` is something else already, or the name is none in C.
        TargetError: the target is unknown, a GPU, or has no C compiler here; or the network takes TVM's runtime.
        MeasureError: the example computes something else than the folder's program.
    """
    network = TunedNetwork.open(folder)
    module = _source(network)
    usable = checked_name(out, name)
    schedules = _schedules(network, target)
    inputs, outputs = _tensors(network)
    toolchain = find_c_toolchain(schedules.target.mtriple, tools)
    with one_writer(out, other="name another place"), scratch_folder() as scratch:
        name = free_name(usable, name, toolchain, scratch)
        calls = build_calls(name, module, len(inputs), schedules.target, scratch)
        if calls.output_bytes != tuple(t.num_bytes for t in outputs):
            raise CheckpointError(f"{module} has other outputs than the network; make the folder again")
        plan = plan_memory(calls, [t.num_bytes for t in inputs])
        check_size((network.folder / WEIGHTS).stat().st_size + plan.num_bytes)
        offsets, num_bytes = write_weights(_parameters(network), calls, scratch / "weights.bin")
        values = {
            **signature(inputs, outputs),
            **_described(name, inputs, outputs),
            **driver(inputs, outputs, calls, plan, offsets),
            **_example(inputs, outputs),
            "NETWORK": c_sources.comment(_origin(network)),
            "WEIGHTS_HASH": c_sources.comment(str(network.document["hashes"][WEIGHTS])),
            "WEIGHT_BYTES": num_bytes,
            "FACTS": "",
        }
        title = f"{_TITLE}; {network.remark}" if network.remark else _TITLE
        sources = Sources(name, "network", title, schedules, values, calls.objects, calls.features, toolchain)
        example = Example(build_example(sources, scratch), outputs)
        return write_folder(sources, _check(network, schedules, example, run), scratch, out)


def _source(network: TunedNetwork) -> Path:
    if SOURCE not in network.document["hashes"]:
        raise CheckpointError(
            f"{network.folder} has no {SOURCE}, of which C libraries are made: it is of an older version; tune the "
            "network again to export it"
        )
    network.check_files(SOURCE)
    return network.folder / SOURCE


def _origin(network: TunedNetwork) -> str:
    origin = network.document["origin"]
    remark = f"; {network.remark}" if network.remark else ""
    return (
        f"{network.name}, tuned from {origin.get('name', 'a file')} ({origin.get('kind', 'of unknown kind')}){remark}"
    )


def _schedules(network: TunedNetwork, target: str | None) -> Schedules:
    own = network.target
    described = own if target is None else described_processor(target)
    if described.fingerprint == own.fingerprint:
        why_not = check_compilable(own, "the network's schedules")
        measured_s = network.document["measured"].get("latency_s")
        return Schedules(own, True, measured_s=measured_s, measured_through="module.so", why_not=why_not)
    return Schedules(described, False, f"those tuned on {own.device}", why_not=why_not_here(str(target)))


def _tensors(network: TunedNetwork) -> tuple[list[Tensor], list[Tensor]]:
    """Inputs and outputs, under different names that C takes."""
    found: list[Tensor] = []
    num = len(network.document["inputs"])
    for i, entry in enumerate((*network.document["inputs"], *network.document["outputs"])):
        if entry["dtype"] not in TYPES:
            raise TargetError(f"{entry['name']} of {network.name} is {entry['dtype']}, for which C has no type")
        name = c_sources.distinct(entry["name"], {t.name for t in found})
        parameter = f"{'in' if i < num else 'out'}_{name}"
        found.append(Tensor(parameter, entry["name"], tuple(entry["shape"]), entry["dtype"], name))
    return found[:num], found[num:]


def _parameters(network: TunedNetwork) -> Iterator[Array]:
    with safe_open(network.folder / WEIGHTS, "numpy") as stored:
        yield from (stored.get_tensor(name) for name in network.document["parameters"])


def check_size(num_bytes: int) -> None:
    """
    Raises:
        TargetError: a program with so many bytes of weights and activations can't be linked.
    """
    if num_bytes > _MOST_BYTES:
        raise TargetError(
            f"expected at most {format_bytes(_MOST_BYTES)} of weights and activations, as far as code reaches in a C "
            f"program, got {format_bytes(num_bytes)}; export a smaller network"
        )


# ---- the sources ----------------------------------------------------------------------------------------------------
def _described(name: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> dict[str, str]:
    """Values of the placeholders in the header."""
    sizes = (f"#define {t.size_macro(name)} {t.size}" for t in (*inputs, *outputs))
    return {
        "SIZES": "\n".join(sizes),
        "INPUTS": "\n".join(t.describe() for t in inputs),
        "OUTPUTS": "\n".join(t.describe() for t in outputs),
    }


def _example(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> dict[str, Any]:
    """Values of the placeholders in the example and the README."""

    def variables() -> Iterator[tuple[str, Tensor]]:
        yield from ((f"in{i}", t) for i, t in enumerate(inputs))
        yield from ((f"out{i}", t) for i, t in enumerate(outputs))

    names = [name for name, _ in variables()]
    rows = [f"    {{{c_sources.string(t.origin)}, {name}, sizeof {name}}}," for name, t in variables()]
    return {
        "NUM_INPUTS": len(inputs),
        "FILES": " ".join(f"{t.name}.bin" for t in inputs),
        "VARIABLES": "\n".join(f"static {t.c_type} {name}[{t.size}];" for name, t in variables()),
        "ARGUMENTS": ", ".join(names),
        "INPUT_TABLE": "\n".join(rows[: len(inputs)]),
        "OUTPUT_TABLE": "\n".join(rows[len(inputs) :]),
        "PRINTS": "\n".join(f"    PRINT({c_sources.string(t.origin)}, out{i});" for i, t in enumerate(outputs)),
        "NUMPY": "\n".join(f'    np.zeros({t.shape}, "{t.dtype}").tofile("{t.name}.bin")' for t in inputs),
    }


# ---- the example is tried -------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Example:
    """The example, and the outputs that it writes."""

    program: Path
    outputs: Sequence[Tensor]

    def answer(self, runner: Sequence[str], inputs: Sequence[Array], run: RunExample) -> list[Array]:
        files = [self.program.with_name(f"input{i}.bin") for i in range(len(inputs))]
        for file, given in zip(files, inputs, strict=True):
            given.tofile(file)
        written = self.program.with_name("outputs.bin")
        run([*runner, str(self.program), "-o", str(written), *map(str, files)], "random inputs")
        content, start, found = written.read_bytes(), 0, []
        for tensor in self.outputs:
            found.append(np.frombuffer(content, tensor.dtype, tensor.size, start).reshape(tensor.shape))
            start += tensor.num_bytes
        return found


def _check(network: TunedNetwork, schedules: Schedules, example: Example, run: RunExample) -> Check | str:
    """The example against the compiled program of the folder on random inputs; a text where one can't be run here.

    Raises:
        MeasureError: it fails, or computes something else.
    """

    def errors(runner: Sequence[str]) -> Iterator[float]:
        for seed in range(_NUM_CHECKS):
            inputs = network.random_inputs(seed, _NUM_INDICES)
            expected = network.run(*inputs)
            found = example.answer(runner, inputs, run)
            yield from (largest_error(f, e, _LEAST_OUTPUT) for f, e in zip(found, expected, strict=True))

    runner = find_runner(schedules.target, schedules.why_not)
    tried, result = f"{_NUM_CHECKS} sets of random inputs", ("outputs", "module.so's")
    return try_example(example.program, runner, errors, tried, result, FLOAT32.operator_tolerance)
