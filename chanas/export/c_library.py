"""A bundle for a device without Python: the static library of its image classifier."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from chanas.bundle.codesign import CoDesign
from chanas.compiler.backends import backend_of
from chanas.compiler.cpu.c_kernels import CallList, Place
from chanas.compiler.cpu.module import program_module
from chanas.compiler.emulation import emulated_logits, has_int8
from chanas.compiler.program import Program
from chanas.compiler.space import Point
from chanas.compiler.toolchains import TOOLS, Tools, find_c_toolchain
from chanas.core.target import HardwareTarget, dtypes_of
from chanas.core.usage import DTYPES
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
from chanas.export.instructions import code_flags
from chanas.export.memory_plan import plan_memory
from chanas.export.signature import Tensor, signature
from chanas.export.trials import Check, RunExample, find_runner, largest_error, run_example, try_example
from chanas.files.locks import one_writer
from chanas.files.scratch import scratch_folder
from chanas.network.folding import packed_parameters, split_tensors
from chanas.operators.steps import block_workloads, network_tolerance
from chanas.prescheduler.ideas import default_points

_TITLE = "An image classifier"
_CHECKED_IMAGES = 4
_FACTS = """
const char *const {name}_class_names[{macro}_CLASSES] = {{
{class_names}
}};
const float {name}_mean[{macro}_CHANNELS] = {{{mean}}}, {name}_std[{macro}_CHANNELS] = {{{std}}};
"""

Points = tuple[tuple[Point, ...], ...]
"""A schedule point for each operator of each block."""


def export(
    bundle: Path | str,
    out: Path,
    target: str | None = None,
    name: str | None = None,
    *,
    tools: Tools = TOOLS,
    run: RunExample = run_example,
) -> Exported:
    """Write the folder `out`: library, header, example, Makefile, README.

    Args:
        bundle: a bundle that search made, with weights.
        target: one of the bundle's, by default its first; or any target that `chanas target` knows, for which the
            schedules are then default ones.
        name: what files and functions are called after; by default as `out`.
        tools: compilers that are installed.
        run: runs the example.

    Raises:
        CheckpointError: the bundle is not whole, or has no weights.
        ConfigError: `out` is something else already, or the name is none in C.
        TargetError: the target is unknown, a GPU, or has no C compiler here.
        MeasureError: the example computes something else than PyTorch.
    """
    loaded = CoDesign.load(bundle)
    loaded.check_weights("there is nothing to classify with; search with a trained supernet")
    usable = checked_name(out, name)
    schedules, points = _schedules(loaded, target)
    toolchain = find_c_toolchain(schedules.target.mtriple, tools)
    with one_writer(out, other="name another place"), scratch_folder() as scratch:
        name = free_name(usable, name, toolchain, scratch)
        module, program = scratch / "module.json", Program.from_blocks(loaded.blocks, points, schedules.target)
        parameters = packed_parameters(loaded.blocks, split_tensors(loaded.tensors, loaded.blocks), schedules.target)
        module.write_text(program_module(program, {}, schedules.target).to_json())
        calls = build_calls(name, module, 1, schedules.target, scratch)
        offsets, num_bytes = write_weights(parameters, calls, scratch / "weights.bin")
        values = {**_source_values(loaded, name, calls, offsets), "WEIGHT_BYTES": num_bytes}
        sources = Sources(name, "classifier", _TITLE, schedules, values, calls.objects, calls.features, toolchain)
        example = build_example(sources, scratch)
        return write_folder(sources, _check(loaded, schedules, example, run), scratch, out)


# ---- schedules ------------------------------------------------------------------------------------------------------
def _schedules(bundle: CoDesign, target: str | None) -> tuple[Schedules, Points]:
    """The bundle's own schedules where it has some for the target, else default ones."""
    if target is None or target in bundle.targets:
        return _own_schedules(bundle, target)
    described = described_processor(target)
    for own in bundle.targets:
        if CoDesign.load(bundle.path, own).target.fingerprint == described.fingerprint:
            return _own_schedules(bundle, own)
    _check_dtypes(described, bundle.architecture.dtypes)
    points = {block: tuple(default_points(block, described)) for block in dict.fromkeys(bundle.blocks)}
    order = tuple(points[block] for block in bundle.blocks)
    return Schedules(described, is_tuned=False, why_not=why_not_here(target)), order


def _check_dtypes(described: HardwareTarget, dtypes: Collection[str]) -> None:
    """Raises TargetError: a described processor lacks the instructions of a dtype."""
    known = {DTYPES[dtype] for dtype in dtypes_of(code_flags(described, described.llvm_features()))}
    if lacking := sorted(set(dtypes) - known):
        raise TargetError(
            f"the network has blocks in {', '.join(lacking)}, and there is no such code for {described.device}; export "
            "it for a processor that has it, or search in float32 (without --dtypes)"
        )


def _own_schedules(bundle: CoDesign, name: str | None) -> tuple[Schedules, Points]:
    chosen = CoDesign.load(bundle.path, name)
    target = chosen.target
    why_not = check_compilable(target, "the bundle's schedules")
    made_with, now = chosen.part.get("space_version"), backend_of(target).space_version
    if made_with not in (None, now):
        raise CheckpointError(
            f"the schedules of bundle {bundle.path} are of version {made_with} of the schedule spaces, and of version "
            f"{now} they would be other programs; search again, or export with the chanas that made it"
        )
    try:
        points = []
        for block, part in zip(bundle.blocks, chosen.part["schedules"], strict=True):
            found = dict(part["operators"])
            points.append(tuple(tuple(found[w.key]) for w in block_workloads(block, target.dtype)))
        measured_s = chosen.measured.get("latency_s")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(
            f"bundle {bundle.path} lacks schedules of its operators for {target.name} ({error!r}); make it again"
        ) from error
    return Schedules(target, is_tuned=True, measured_s=measured_s, why_not=why_not), tuple(points)


# ---- what goes into the library -------------------------------------------------------------------------------------
def _source_values(bundle: CoDesign, name: str, calls: CallList, offsets: Mapping[Place, int]) -> dict[str, Any]:
    """Return the values of the placeholders in the source templates."""
    assert bundle.preprocess is not None
    resolution = bundle.architecture.resolution
    shape = (bundle.space.in_channels, resolution, resolution)
    image = Tensor("image", "image", shape, "float32")
    logits = Tensor("logits", "logits", (len(bundle.class_names),), "float32")
    return {
        **signature([image], [logits]),
        **driver([image], [logits], calls, plan_memory(calls, [image.num_bytes]), offsets),
        "ARCHITECTURE": bundle.architecture.key,
        "WEIGHTS_HASH": c_sources.comment(str(bundle.document["hashes"]["weights.safetensors"])),
        "CHANNELS": bundle.space.in_channels,
        "RESOLUTION": resolution,
        "SHORT_SIDE": round(resolution / bundle.preprocess.crop_ratio),
        "CLASSES": len(bundle.class_names),
        "FACTS": _FACTS.format(
            name=name,
            macro=name.upper(),
            class_names=",\n".join(f"    {c_sources.string(c)}" for c in bundle.class_names),
            mean=c_sources.numbers(bundle.preprocess.mean),
            std=c_sources.numbers(bundle.preprocess.std),
        ),
    }


# ---- the example is tried -------------------------------------------------------------------------------------------
def _check(bundle: CoDesign, schedules: Schedules, program: Path, run: RunExample) -> Check | str:
    """The example against PyTorch on random images, in int8 against an emulation; a text where it cannot be run here.

    Raises:
        MeasureError: it fails, or computes something else.
    """
    target, resolution = schedules.target, bundle.architecture.resolution
    reference, name = bundle.torch_logits, "PyTorch's"
    if has_int8(bundle.blocks, target.dtype):
        parameters = split_tensors(bundle.tensors, bundle.blocks)
        emulated = partial(emulated_logits, bundle.blocks, parameters, dtype=target.dtype, exact=True)
        reference, name = emulated, "an emulation's"
    tried = f"{_CHECKED_IMAGES} random images"

    def errors(runner: Sequence[str]) -> Iterator[float]:
        shape = (_CHECKED_IMAGES, bundle.space.in_channels, resolution, resolution)
        images = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
        expected = reference(images)
        file = program.with_suffix(".f32")
        images.tofile(file)
        printed = run([*runner, str(program), "-l", str(file)], f"{_CHECKED_IMAGES} images")
        rows = [line.split(b"\t")[-expected.shape[1] :] for line in printed.splitlines()]
        yield largest_error(np.array(rows, dtype=np.float32).reshape(expected.shape), expected)

    runner = find_runner(target, schedules.why_not)
    tolerance = network_tolerance(bundle.blocks, target.dtype)
    return try_example(program, runner, errors, tried, ("logits", name), tolerance)
