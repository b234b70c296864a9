"""A bundle for a device without Python: a static library with one function, its header, an example that uses it."""

from __future__ import annotations

import math
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import chanas
from chanas.bundle.codesign import CoDesign
from chanas.core.arch import BlockConfig
from chanas.core.target import HardwareTarget
from chanas.core.units import format_latency
from chanas.devices.host import load_target
from chanas.devices.target_files import describe_target, read_target_file
from chanas.errors import CheckpointError, ConfigError, MeasureError, TargetError
from chanas.export import c_sources
from chanas.export.kernels import build_kernels
from chanas.files.scratch import scratch_folder
from chanas.files.writing import replacing_folder
from chanas.network.folding import Array, pack_block, split_tensors
from chanas.operators.steps import block_workloads
from chanas.prescheduler.checks.qemu import emulator_program
from chanas.prescheduler.codegen.c_toolchain import CToolchain, find_c_toolchain
from chanas.prescheduler.codegen.cpu.static_library import Kernels, aligned
from chanas.prescheduler.codegen.linkers import TOOLS, Tools, is_native
from chanas.prescheduler.kernels.backends import backend_of
from chanas.prescheduler.kernels.cpu.shapes import input_shape, output_shape
from chanas.prescheduler.tuning.default_points import default_points
from chanas.prescheduler.workloads.cases import BFLOAT16_NETWORK_TOLERANCE, FLOAT32_TOLERANCE
from chanas.prescheduler.workloads.space import Point

_TITLE = "An image classifier for C programs, made by `chanas export`."
_CHECKED_IMAGES, _CHECK_TIMEOUT_S = 4, 600.0
_TOLERANCE = {"float32": FLOAT32_TOLERANCE, "bfloat16": BFLOAT16_NETWORK_TOLERANCE}
_ITEM_BYTES = {"float32": 4, "uint16": 2}


@dataclass(frozen=True)
class Schedules:
    """The schedules that a network is compiled with.

    points      one for each operator of each block
    measured_s  seconds of an inference with them on the target; None where nothing was measured
    is_tuned    whether they were found by measuring on the target
    why_not     why their code does not run on this machine's processor; empty where it does, or where that is not known
    """

    target: HardwareTarget
    points: tuple[tuple[Point, ...], ...]
    is_tuned: bool
    measured_s: float | None = None
    why_not: str = ""

    def describe(self) -> str:
        return "tuned on this target" if self.is_tuned else "default ones: nothing was tuned or measured on this target"

    def describe_latency(self) -> str:
        if self.measured_s is None:
            return "not measured"
        threads = self.target.num_threads
        slower = f", on {threads} threads (the C function uses one)" if threads > 1 else ""
        return f"{format_latency(self.measured_s)} measured through the bundle's module{slower}"


@dataclass(frozen=True)
class Check:
    """The example run on random images and compared with PyTorch.

    under      the emulator that ran it; empty: this machine itself
    max_error  largest difference of a logit from PyTorch's, relative to the largest magnitude (1 at least)
    """

    num_images: int
    under: str
    max_error: float

    def describe(self) -> str:
        where = f"under {self.under}" if self.under else "on this machine"
        return f"{self.num_images} random images {where}: logits within {self.max_error:.1g} of PyTorch's"


@dataclass(frozen=True)
class Exported:
    """A written library, with its sizes.

    library_bytes   the static library
    weight_bytes    constants in it
    static_bytes    memory for activations
    check           a text where the example cannot be run here: why
    """

    folder: Path
    name: str
    schedules: Schedules
    toolchain: str
    build_line: str
    library_bytes: int
    weight_bytes: int
    static_bytes: int
    check: Check | str

    @property
    def library(self) -> Path:
        return self.folder / f"lib{self.name}.a"


def export(
    bundle: Path | str, out: Path, target: str | None = None, name: str | None = None, tools: Tools = TOOLS
) -> Exported:
    """Write the folder `out`: library, header, example, Makefile, README.

    Args:
        bundle: a bundle that search made, with weights.
        target: one of the bundle's, by default its first; or any target that `chanas target` knows, for which the
            schedules are then default ones.
        name: what files and functions are called after; by default as `out`.
        tools: compilers that are installed.

    Raises:
        CheckpointError: the bundle is not whole, or has no weights.
        ConfigError: `out` is something else already, or the name is none in C.
        TargetError: the target is unknown, a GPU, or has no C compiler here.
        MeasureError: the example computes something else than PyTorch.
    """
    loaded = CoDesign.load(bundle)
    if not loaded.has_weights or loaded.preprocess is None:
        raise CheckpointError(
            f"bundle {bundle} has no weights (it was searched with accuracies measured elsewhere), so there is nothing "
            "to classify with; search with a trained supernet"
        )
    _check_free(out)
    name = _checked_name(name) if name is not None else c_sources.identifier(out.resolve().name)
    schedules = _schedules(loaded, target)
    toolchain = find_c_toolchain(schedules.target.mtriple, tools)
    with scratch_folder() as scratch:
        kernels = build_kernels(name, loaded.blocks, schedules.points, schedules.target, scratch)
        offsets = _write_weights(loaded, schedules.target, scratch / "weights.bin")
        values = _source_values(name, loaded, schedules, kernels, offsets)
        header, library = f"{name}.h", f"lib{name}.a"
        for template in ("network.h", "run.c", "main.c", "weights.s"):
            _fill(template, values, scratch / (header if template == "network.h" else template))
        objects = [toolchain.compile("run.c", f"{name}_run.o", scratch)]
        objects += [toolchain.compile("weights.s", f"{name}_weights.o", scratch)]
        toolchain.archive([*objects, *(path.name for path in kernels.objects)], library, scratch)
        toolchain.build_program(("main.c", library), name, scratch)
        check = _check(loaded, schedules, scratch / name)
        values |= _build_values(name, toolchain, check)
        for template in ("Makefile", "README"):
            _fill(template, values, scratch / template)
        with replacing_folder(out) as folder:
            for file in (library, header, "main.c", "Makefile", "README"):
                shutil.copyfile(scratch / file, folder / file)
    return Exported(
        folder=out,
        name=name,
        schedules=schedules,
        toolchain=toolchain.name,
        build_line=values["BUILD_LINE"],
        library_bytes=(out / library).stat().st_size,
        weight_bytes=values["WEIGHT_BYTES"],
        static_bytes=values["STATIC_BYTES"],
        check=check,
    )


def _fill(template: str, values: Mapping[str, object], path: Path) -> None:
    path.write_text(c_sources.filled(template, values), encoding="utf-8")


def _check_free(out: Path) -> None:
    """Only a folder that an export wrote is replaced."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    readme = out / "README"
    if not (readme.is_file() and readme.read_text(encoding="utf-8", errors="replace").startswith(_TITLE)):
        raise ConfigError(f"{out} is there already and was not made by `chanas export`; name another folder")


def _checked_name(name: str) -> str:
    usable = c_sources.identifier(name)
    if name != usable:
        raise ConfigError(f"expected a name of small letters, digits and underscores, such as {usable}, got '{name}'")
    return name


# ---- schedules ------------------------------------------------------------------------------------------------------
def _schedules(bundle: CoDesign, target: str | None) -> Schedules:
    """The bundle's own schedules where it has some for the target, else default ones."""
    if target is None or target in bundle.targets:
        return _own_schedules(bundle, target)
    described = describe_target(target)
    if not backend_of(described).has_objects:
        raise TargetError(
            f"expected a processor, got target '{target}' ({described.device}): C code runs on processors"
        )
    for own in bundle.targets:
        if CoDesign.load(bundle.path, own).target.fingerprint == described.fingerprint:
            return _own_schedules(bundle, own)
    points = {block: tuple(default_points(block, described)) for block in dict.fromkeys(bundle.blocks)}
    order = tuple(points[block] for block in bundle.blocks)
    return Schedules(described, order, is_tuned=False, why_not=_why_not_here(target))


def _why_not_here(name: str) -> str:
    if name == "cpu":
        return ""
    file = read_target_file(name)
    missing = file.missing_flags() if file.kind == "cpu" else None
    return f"this machine's processor lacks {', '.join(missing)}" if missing else ""


def _own_schedules(bundle: CoDesign, name: str | None) -> Schedules:
    chosen = CoDesign.load(bundle.path, name)
    target, host = chosen.target, load_target("cpu")
    if not target.mcpu and target.fingerprint != host.fingerprint:
        raise TargetError(
            f"the bundle's schedules for {target.name} are those of {target.device} ({target.fingerprint}), this is "
            f"{host.device} ({host.fingerprint}); export it there, or name a target that `chanas target list` shows"
        )
    made_with, now = chosen.part.get("space_version"), backend_of(target).space_version
    if made_with not in (None, now):
        raise CheckpointError(
            f"the schedules of bundle {bundle.path} are of version {made_with} of the schedule spaces, and of version "
            f"{now} they would be other programs; search again, or export with the chanas that made it"
        )
    try:
        per_block = {part["block"]: part["operators"] for part in chosen.part["schedules"]}
        points = []
        for block in bundle.blocks:
            found = dict(per_block[block.key])
            points.append(tuple(tuple(found[w.key]) for w in block_workloads(block, target.dtype)))
        measured_s = chosen.measured.get("latency_s")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(
            f"bundle {bundle.path} lacks schedules of its operators for {target.name} ({error!r}); make it again"
        ) from error
    why_not = "" if target.fingerprint == host.fingerprint else f"this machine is no {target.device}"
    return Schedules(target, tuple(points), is_tuned=True, measured_s=measured_s, why_not=why_not)


# ---- what goes into the library -------------------------------------------------------------------------------------
def _write_weights(bundle: CoDesign, target: HardwareTarget, path: Path) -> list[int]:
    """The packed weights of all blocks in one file; returns where each block's begin, and the end of the last."""
    offsets = [0]
    parts = split_tensors(bundle.tensors, len(bundle.blocks))
    with open(path, "wb") as file:
        for block, tensors in zip(bundle.blocks, parts, strict=True):
            packed = pack_block(block, tensors, target.vector_lanes, target.dtype).tobytes()
            file.write(packed.ljust(aligned(len(packed)), b"\0"))
            offsets.append(offsets[-1] + aligned(len(packed)))
    return offsets


def _buffer_bytes(blocks: Sequence[BlockConfig], target: HardwareTarget) -> tuple[int, int]:
    """Bytes of what blocks 0, 2, 4, … write to; of what the others write to and a copy of the image lies in."""
    lanes, sizes = target.vector_lanes, [0, 0]
    image = block_workloads(blocks[0], target.dtype)[0]
    sizes[1] = math.prod(input_shape(image, lanes)) * _ITEM_BYTES[image.input_storage]
    for i, block in enumerate(blocks):
        last = block_workloads(block, target.dtype)[-1]
        output = math.prod(output_shape(last, lanes)) * _ITEM_BYTES[last.output_storage]
        sizes[i % 2] = max(sizes[i % 2], output)
    return aligned(sizes[0]), aligned(sizes[1])


def _source_values(
    name: str, bundle: CoDesign, schedules: Schedules, kernels: Kernels, offsets: Sequence[int]
) -> dict[str, Any]:
    """Return the values of the placeholders in the source templates."""
    assert bundle.preprocess is not None
    target, resolution = schedules.target, bundle.architecture.resolution
    even_bytes, odd_bytes = _buffer_bytes(bundle.blocks, target)
    return {
        "NAME": name,
        "MACRO": name.upper(),
        "ARCHITECTURE": bundle.architecture.key,
        "DEVICE": c_sources.comment(f"{target.name}: {target.device}"),
        "SCHEDULES": schedules.describe(),
        "LATENCY": schedules.describe_latency(),
        "VERSION": chanas.__version__,
        "WEIGHTS_HASH": c_sources.comment(str(bundle.document["hashes"]["weights.safetensors"])),
        "CHANNELS": bundle.space.in_channels,
        "RESOLUTION": resolution,
        "SHORT_SIDE": round(resolution / bundle.preprocess.crop_ratio),
        "CLASSES": len(bundle.class_names),
        "CLASS_NAMES": ",\n".join(f"    {c_sources.string(c)}" for c in bundle.class_names),
        "MEAN": c_sources.numbers(bundle.preprocess.mean),
        "STD": c_sources.numbers(bundle.preprocess.std),
        "KERNELS": "\n".join(f"INTERNAL kernel {symbol};" for symbol in dict.fromkeys(kernels.symbols)),
        "BLOCKS": ",\n".join(f"    {{{s}, {o}}}" for s, o in zip(kernels.symbols, offsets[:-1], strict=True)),
        "EVEN_BYTES": even_bytes,
        "ODD_BYTES": odd_bytes,
        "WORKSPACE_BYTES": kernels.workspace_bytes,
        "WEIGHT_BYTES": offsets[-1],
        "STATIC_BYTES": even_bytes + odd_bytes + kernels.workspace_bytes,
    }


# ---- the example is built and tried ---------------------------------------------------------------------------------
def _check(bundle: CoDesign, schedules: Schedules, program: Path) -> Check | str:
    """The example against PyTorch on random images; a text where it cannot be run here.

    Raises:
        MeasureError: it fails, or computes something else.
    """
    runner = _runner(schedules)
    if isinstance(runner, str):
        return runner
    resolution = bundle.architecture.resolution
    shape = (_CHECKED_IMAGES, bundle.space.in_channels, resolution, resolution)
    images = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
    expected = bundle.torch_logits(images)
    file = program.with_suffix(".f32")
    images.tofile(file)
    try:
        logits = _run_example([*runner, str(program)], file, expected.shape)
    except OSError as reason:  # temporary files that must not be run, say
        return f"{reason.strerror or reason}: {program}"
    error = float(np.abs(logits - expected).max()) / max(1.0, float(np.abs(expected).max()))
    if not error <= _TOLERANCE[schedules.target.dtype]:
        raise MeasureError(f"the exported example's logits are {error:.2g} away from PyTorch's; nothing was written")
    return Check(_CHECKED_IMAGES, Path(runner[0]).name if runner else "", error)


def _run_example(command: Sequence[str], images: Path, shape: tuple[int, ...]) -> Array:
    """The logits that the example prints, float32[images, classes]."""
    try:
        done = subprocess.run([*command, "-l", str(images)], capture_output=True, timeout=_CHECK_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise MeasureError(
            f"the exported example took over {_CHECK_TIMEOUT_S:.0f} s for {shape[0]} images; nothing was written"
        ) from None
    if done.returncode:
        reason = (done.stderr.decode(errors="replace").strip() or "no message").splitlines()[-1]
        raise MeasureError(f"the exported example ended with code {done.returncode} ({reason}); nothing was written")
    rows = [line.split(b"\t")[-shape[1] :] for line in done.stdout.splitlines()]
    return np.array(rows, dtype=np.float32).reshape(shape)


def _runner(schedules: Schedules) -> list[str] | str:
    """Return the command that runs a program here: nothing, or an emulator; a text if nothing runs it."""
    triple = schedules.target.mtriple
    if is_native(triple):
        return schedules.why_not or []
    found = emulator_program(triple)
    return [found] if found else f"this machine is none of {triple} and has no emulator of one (qemu-user-static)"


def _build_values(name: str, toolchain: CToolchain, check: Check | str) -> dict[str, Any]:
    """Return the values of the placeholders in the templates of Makefile and README."""
    arguments = shlex.join(toolchain.program_arguments(("main.c", f"lib{name}.a"), name))
    compiler = shlex.join(toolchain.compiler)
    tried = f"It was not run: {check}." if isinstance(check, str) else f"It was tried: {check.describe()}."
    return {
        "TITLE": _TITLE,
        "COMPILER": compiler,
        "BUILD_ARGUMENTS": arguments,
        "BUILD_LINE": f"{compiler} {arguments}",
        "CHECKED": tried,
    }
