"""The folder of an exported network, whatever the network: a static library, its header, files by which CMake and
pkg-config find it, examples; the one in C is built and tried before anything is written.
"""

from __future__ import annotations

import functools
import shlex
import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import chanas
from chanas.compiler.backends import backend_of
from chanas.compiler.toolchains import CToolchain
from chanas.core.target import HardwareTarget
from chanas.core.units import format_latency
from chanas.devices.host import load_target
from chanas.devices.target_files import describe_target, read_target_file
from chanas.errors import ConfigError, TargetError
from chanas.export import c_sources
from chanas.export.instructions import check_in_c, describe_needs, needed_flags
from chanas.export.trials import Check
from chanas.files.writing import replacing_folder

_MADE_BY = "for C programs, made by `chanas export`."
_FREE_NAME = "net_that_no_platform_has"


@dataclass(frozen=True)
class Schedules:
    """The schedules that a network is compiled with.

    is_tuned          whether they were found by measuring on the target
    origin            what they are where they were not
    measured_s        seconds of an inference with them on the target; None where nothing was measured
    measured_through  what ran in these seconds
    why_not           why their code does not run on this machine's processor; empty where it does, or where that is
                      not known
    """

    target: HardwareTarget
    is_tuned: bool
    origin: str = "default ones"
    measured_s: float | None = None
    measured_through: str = "the bundle's module"
    why_not: str = ""

    def describe(self) -> str:
        if self.is_tuned:
            return "tuned on this target"
        return f"{self.origin}: nothing was tuned or measured on this target"

    def describe_latency(self) -> str:
        if self.measured_s is None:
            return "not measured"
        threads = self.target.num_threads
        slower = f", on {threads} threads (the C function uses one)" if threads > 1 else ""
        return f"{format_latency(self.measured_s)} measured through {self.measured_through}{slower}"


@dataclass(frozen=True)
class Sources:
    """All that the files of a folder are made of.

    name       what files and functions are called after
    kind       folder of `c_templates`
    title      what it is, in the first line of the README
    values     of the placeholders in the templates, besides those that every network has
    objects    the kernels' object files
    features   of LLVM that they may use
    toolchain  compiles and links
    """

    name: str
    kind: str
    title: str
    schedules: Schedules
    values: Mapping[str, Any]
    objects: Sequence[Path]
    features: Collection[str]
    toolchain: CToolchain

    @functools.cached_property
    def needs(self) -> list[str]:
        """Flags of the processors that it runs on."""
        return needed_flags(self.schedules.target, self.features, self.objects)

    @property
    def library(self) -> str:
        return f"lib{self.name}.a"

    @property
    def header(self) -> str:
        return f"{self.name}.h"

    @property
    def build_arguments(self) -> str:
        """The arguments of the compiler that build the example."""
        return shlex.join(self.toolchain.program_arguments(("main.c", self.library), self.name))

    def all_values(self) -> dict[str, Any]:
        target, compiler = self.schedules.target, shlex.join(self.toolchain.compiler)
        return {
            "TITLE": f"{self.title} {_MADE_BY}",
            "NAME": self.name,
            "MACRO": self.name.upper(),
            "INSTRUCTIONS": describe_needs(target, self.needs),
            "DEVICE": c_sources.comment(f"{target.name}: {target.device}"),
            "SCHEDULES": c_sources.comment(self.schedules.describe()),
            "LATENCY": self.schedules.describe_latency(),
            "VERSION": chanas.__version__,
            "COMPILER": compiler,
            "BUILD_ARGUMENTS": self.build_arguments,
            "BUILD_LINE": f"{compiler} {self.build_arguments}",
            **self.values,
        }


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


def checked_name(out: Path, name: str | None) -> str:
    """The name that a network is called by in C.

    Raises:
        ConfigError: `out` is something else than an earlier export, which is replaced; or the name is none in C.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())) and not _was_exported(out):
        raise ConfigError(f"{out} is there already and was not made by `chanas export`; name another folder")
    usable = c_sources.identifier(out.resolve().name if name is None else name)
    if name not in (None, usable):
        raise ConfigError(
            f"expected a name of at most {c_sources.MAX_NAME} small letters, digits and underscores, such as {usable}, "
            f"got '{name}'"
        )
    return usable


def free_name(usable: str, given: str | None, toolchain: CToolchain, scratch: Path) -> str:
    """A name that neither a header nor a library nor a function of the platform has: programs would find the network's
    in its place. A folder's name that is taken gets `net_` in front.

    Raises:
        ConfigError: a name that was given is taken, or a folder's is even then.
    """
    for name in (usable,) if given else (usable, f"net_{usable}"[: c_sources.MAX_NAME]):
        taken = _taken_by(name, toolchain, scratch)
        if not taken:
            return name
    raise ConfigError(f"the name {name} is taken: {taken}; give another, such as --name my_{name}")


def _taken_by(name: str, toolchain: CToolchain, scratch: Path) -> str:
    """Describe the header, library, function or macro of the platform that has this name, by its compiler; empty: none.

    Raises:
        TargetError: the compiler takes no name at all.
    """

    def compile_with(name: str) -> None:
        _fill("names.c", {"NAME": name, "MACRO": name.upper()}, scratch / "names.c")
        toolchain.compile("names.c", "names.o", scratch)

    try:
        compile_with(name)
    except TargetError as error:
        compile_with(_FREE_NAME)
        return str(error).rpartition("error: ")[2].removeprefix("#error ")
    try:
        toolchain.build_program(("names.o", f"-l{name}"), "names", scratch)
    except TargetError:
        return ""
    return f"the platform has a library of that name (-l{name})"


def _was_exported(out: Path) -> bool:
    readme = out / "README"
    text = readme.read_text(encoding="utf-8", errors="replace") if readme.is_file() else ""
    return text.partition("\n")[0].endswith(_MADE_BY)


def described_processor(name: str) -> HardwareTarget:
    """A target that `chanas target` knows.

    Raises:
        TargetError: it is unknown, or a GPU.
    """
    described = describe_target(name)
    if not backend_of(described).has_objects:
        raise TargetError(f"expected a processor, got target '{name}' ({described.device}): C code runs on processors")
    return described


def why_not_here(name: str) -> str:
    """The reason that a described processor's code does not run on this machine's, if it is of the same platform."""
    if name == "cpu":
        return ""
    file = read_target_file(name)
    missing = file.missing_flags() if file.kind == "cpu" else None
    return f"this machine's processor lacks {', '.join(missing)}" if missing else ""


def check_compilable(target: HardwareTarget, whose: str) -> str:
    """The reason that the code of a target which something was tuned for does not run here; empty where it does.

    Raises:
        TargetError: it was the processor of another machine, which is not described in LLVM's words.
    """
    host = load_target("cpu")
    if target.fingerprint == host.fingerprint:
        return ""
    if not target.mcpu:
        raise TargetError(
            f"{whose} for {target.name} are those of {target.device} ({target.fingerprint}), this is "
            f"{host.device} ({host.fingerprint}); export it there, or name a target that `chanas target list` shows"
        )
    return f"this machine is no {target.device}"


# ---- building -------------------------------------------------------------------------------------------------------
def build_example(sources: Sources, scratch: Path) -> Path:
    """Make library and example in a folder that has `weights.bin` and the kernels; returns the example.

    Raises:
        TargetError: the compiler refuses it.
    """
    values, toolchain, name = sources.all_values(), sources.toolchain, sources.name
    processor, values["NEEDED"] = check_in_c(sources.schedules.target, sources.needs)
    parts = {"MEMORY": "memory.h", "PROCESSOR": processor, "RUNTIME": "runtime.c", "HANDLES": "handles.c"}
    for part, template in (parts | {"EXAMPLE": "example.c", "HANDLE_FUNCTIONS": "handles.h"}).items():
        values[part] = c_sources.filled(template, values)
    for template in ("own.c", "run.c", f"{sources.kind}/network.h", f"{sources.kind}/main.c"):
        file = template.rpartition("/")[2]
        _fill(template, values, scratch / (sources.header if file == "network.h" else file))
    _fill("weights.s", values, scratch / "weights.s")
    files = ("run.c", "own.c", "weights.s")
    objects = [toolchain.compile(file, f"{name}_{Path(file).stem}.o", scratch) for file in files]
    toolchain.archive([*objects, *(path.name for path in sources.objects)], sources.library, scratch)
    toolchain.build_program(("main.c", sources.library), name, scratch)
    return scratch / name


def write_folder(sources: Sources, check: Check | str, scratch: Path, out: Path) -> Exported:
    """Write what `build_example` made, whole or not at all."""
    values = sources.all_values()
    values["CHECKED"] = f"It was not run: {check}." if isinstance(check, str) else f"It was tried: {check.describe()}."
    with replacing_folder(out) as folder:
        for file in (sources.library, sources.header, "main.c"):
            shutil.copyfile(scratch / file, folder / file)
        for template, file in {
            f"{sources.kind}/README": "README",
            "Makefile": "Makefile",
            "threads.cpp": "threads.cpp",
            "main.rs": "main.rs",
            "package.cmake": f"{sources.name}-config.cmake",
            "package-version.cmake": f"{sources.name}-config-version.cmake",
            "package.pc": f"{sources.name}.pc",
        }.items():
            _fill(template, values, folder / file)
    return Exported(
        folder=out,
        name=sources.name,
        schedules=sources.schedules,
        toolchain=sources.toolchain.name,
        build_line=values["BUILD_LINE"],
        library_bytes=(out / sources.library).stat().st_size,
        weight_bytes=values["WEIGHT_BYTES"],
        static_bytes=values["STATIC_BYTES"],
        check=check,
    )


def _fill(template: str, values: Mapping[str, object], path: Path) -> None:
    path.write_text(c_sources.filled(template, values), encoding="utf-8")
