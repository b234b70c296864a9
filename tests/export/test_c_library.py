"""`chanas export`: the C example, built by the line that its folder gives, computes what PyTorch computes."""

from __future__ import annotations

import functools
import importlib.util
import json
import platform
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

from chanas.bundle.codesign import CoDesign, write_bundle
from chanas.commands.main import app
from chanas.compiler.emulation import emulated_logits
from chanas.compiler.toolchains import Tools, search_path
from chanas.core.arch import SearchSpace
from chanas.core.arrays import Float32Array
from chanas.core.processor import host_processor
from chanas.core.target import HardwareTarget
from chanas.devices.host import load_target
from chanas.errors import CheckpointError, ConfigError, MeasureError, TargetError
from chanas.export import c_library as c_export
from chanas.export.c_library import export
from chanas.export.folders import Exported
from chanas.export.trials import Check
from chanas.measuring.checks.qemu import emulator_program
from chanas.measuring.messages import Build, NetworkAt
from chanas.measuring.worker.compiler import Compiler
from chanas.models.calibration.blocks import calibrated_blocks
from chanas.network import folding
from chanas.network.preprocess import Preprocess
from chanas.operators.steps import block_workloads
from chanas.prescheduler import ideas
from chanas.prescheduler.tables.networks import block_points

from ..bundle.test_codesign import DOCUMENT, WEIGHTS, edit, edit_target, images, logits_of_torch
from ..compiler.workbench import HOST, in_dtypes, mixed_lut, needs_int8, network_job, random_lut

CLASSES = ('"a\\b"', "bêe", "c?a/t", "%s", "*/")  # names that C has to be told about
PI = "aarch64-linux-gnu"
NUM_IMAGES = 5
HAS_COMPILER = shutil.which("cc") is not None and shutil.which("ar") is not None
needs_compiler = pytest.mark.skipif(not HAS_COMPILER, reason="no C compiler (cc, ar) is installed")
needs_bf16 = pytest.mark.skipif(
    "avx512_bf16" not in host_processor().used_flags, reason="this processor has no AVX512_BF16"
)


pytestmark = pytest.mark.usefixtures("one_compiler")


def make_bundle(
    space: SearchSpace, folder: Path, target: HardwareTarget, compiler: Compiler, letters: str = ""
) -> Path:
    """The smallest network with random weights and schedules; compiled, and never timed. `letters` are of its blocks'
    dtypes."""
    architecture = in_dtypes(space.smallest, letters) if letters else space.smallest
    blocks = architecture.blocks(space, len(CLASSES))
    job = network_job(blocks, folder / "network.so")
    lut, parameters = random_lut(space, blocks, target), job.parameters
    if letters:
        lut = mixed_lut(space, blocks, target)
        parameters = calibrated_blocks(blocks, parameters, images(8, blocks[0].input_size), target.dtype)
    points = block_points(lut, blocks)
    request = Build(target=target, what=NetworkAt(blocks, points), path=job.library)
    compiler.result(request, "the network")
    tensors = {f"blocks.{i}.{name}": v for i, part in enumerate(parameters) for name, v in part.items()}
    document = {
        "space": space.to_json(),
        "architecture": architecture.to_json(),
        "class_names": list(CLASSES),
        "preprocess": Preprocess(space.smallest.resolution, (0.5, 0.4, 0.3), (0.2, 0.3, 0.4)).to_json(),
        "targets": [
            {
                "target": target.to_json(),
                "schedules": [{"block": b.key, "operators": lut.row(b).schedules} for b in blocks],
            }
        ],
    }
    write_bundle(folder / "bundle", document, tensors, [job.library])
    return folder / "bundle"


@pytest.fixture(scope="module")
def bundle(tiny_space: SearchSpace, tmp_path_factory: pytest.TempPathFactory, compiler: Compiler) -> Path:
    return make_bundle(tiny_space, tmp_path_factory.mktemp("c-export"), HOST, compiler)


@pytest.fixture(scope="module")
def exported(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    if not HAS_COMPILER:
        pytest.skip("no C compiler (cc, ar) is installed")
    return export(bundle, tmp_path_factory.mktemp("exported") / "First-net")


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """This machine, described as one with vectors of four values."""
    path = tmp_path_factory.mktemp("narrow") / "narrow.yaml"
    here, triple = host_processor(), f"{platform.machine()}-linux-gnu"
    facts = {"kind": "cpu", "name": "narrow", "device": "this one /* with */ little", "mtriple": triple}
    sizes = {"num_cores": 1, "vector_lanes": 4, "num_vector_registers": 16, "l1_bytes": 32768, "l2_bytes": 262144}
    path.write_text(yaml.safe_dump({**facts, **sizes, "mcpu": here.mcpu, "mattr": list(here.mattr)}))
    return path


@pytest.fixture(scope="module")
def unlike(bundle: Path, narrow: Path, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """The same network for the narrow machine: other kernels, otherwise packed weights, default schedules."""
    return export(bundle, tmp_path_factory.mktemp("unlike") / "net", target=str(narrow), name="second")


def files_of(name: str) -> set[str]:
    cmake = {f"{name}-config.cmake", f"{name}-config-version.cmake"}
    return cmake | {f"lib{name}.a", f"{name}.h", f"{name}.pc", "main.rs", "threads.cpp", "main.c", "Makefile", "README"}


def build(folder: Path, program: Path, line: str) -> Path:
    """A program by a build line of a folder, which stays as it is."""
    copy = shutil.copytree(folder, program.parent / "copy", dirs_exist_ok=True)
    subprocess.run(line, shell=True, cwd=copy, env=search_path(), check=True)
    return shutil.copyfile(copy / program.name, program)


def line_of_the_readme(folder: Path) -> str:
    (line,) = re.findall(r"^    (\S.* -o .*)$", (folder / "README").read_text(), re.MULTILINE)
    return str(line)


def classified(
    command: list[str], x: Float32Array, folder: Path, piped: bool = False
) -> tuple[list[list[str]], Float32Array]:
    """Class and probability of each image, and the logits."""
    file = folder / "images.f32"
    x.tofile(file)
    content = file.read_bytes() if piped else None
    done = subprocess.run(
        [*command, "-l", *([] if piped else [str(file)])], input=content, capture_output=True, check=True
    )
    rows = [line.split("\t") for line in done.stdout.decode().splitlines()]
    return [row[:2] for row in rows], np.array([row[2:] for row in rows], dtype=np.float32)


def check_program(command: list[str], bundle: Path, folder: Path) -> None:
    loaded = CoDesign.load(bundle)
    x = images(NUM_IMAGES, loaded.architecture.resolution)
    expected = logits_of_torch(bundle, x)
    shares = np.exp(expected) / np.exp(expected).sum(1, keepdims=True)
    for piped in (False, True):
        found, logits = classified(command, x, folder, piped)
        np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-4)
        assert [name for name, _ in found] == [loaded.class_names[i] for i in expected.argmax(1)]
        np.testing.assert_allclose([float(p) for _, p in found], shares.max(1), atol=2e-4)
    assert np.ptp(expected) > 0.01  # or anything would be equal


@pytest.fixture(scope="module")
def program(exported: Exported, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example, built by the line of the README."""
    built = build(
        exported.folder, tmp_path_factory.mktemp("program") / "first_net", line_of_the_readme(exported.folder)
    )
    built.chmod(0o755)
    return built


# ---- the example ----------------------------------------------------------------------------------------------------
def test_the_example_computes_what_pytorch_and_the_bundle_compute(
    exported: Exported, bundle: Path, tmp_path: Path
) -> None:
    program = build(exported.folder, tmp_path / "first_net", line_of_the_readme(exported.folder))
    program.chmod(0o755)
    check_program([str(program)], bundle, tmp_path)
    x = images(NUM_IMAGES, CoDesign.load(bundle).architecture.resolution)
    _, logits = classified([str(program)], x, tmp_path)
    np.testing.assert_allclose(logits, CoDesign.load(bundle).predict(x), rtol=1e-4, atol=1e-4)
    timed = subprocess.run([program, "-t", "images.f32"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert re.fullmatch(r"\d+\.\d{4} ms", timed.stdout.splitlines()[-1])


@pytest.mark.parametrize(
    ("arguments", "content", "code", "says"),
    [
        (["-x"], b"", 2, "usage: "),
        (["a.f32", "b.f32"], b"", 2, "usage: "),
        (["nowhere.f32"], b"", 1, "nowhere.f32: No such file"),
        ([], bytes(10), 1, r"the last image has 2 of \d+ numbers"),
    ],
)
def test_the_example_refuses_bad_input(
    program: Path, arguments: list[str], content: bytes, code: int, says: str, tmp_path: Path
) -> None:
    done = subprocess.run([program, *arguments], input=content, capture_output=True, check=False, cwd=tmp_path)
    assert done.returncode == code
    assert re.search(says, done.stderr.decode())


def test_make_builds_the_example_too(exported: Exported, tmp_path: Path) -> None:
    if shutil.which("make") is None:
        pytest.skip("make is not installed")
    copy = shutil.copytree(exported.folder, tmp_path / "copy")
    subprocess.run(["make", "-s"], cwd=copy, check=True)
    assert (copy / "first_net").is_file()
    subprocess.run(["make", "-s", "clean"], cwd=copy, check=True)
    assert {p.name for p in copy.iterdir()} == files_of("first_net")


def test_header_and_example_are_c99_without_warnings(exported: Exported, tmp_path: Path) -> None:
    (tmp_path / "twice.c").write_text('#include "first_net.h"\n#include "first_net.h"\nint main(void) { return 0; }\n')
    for source in (tmp_path / "twice.c", exported.folder / "main.c"):
        flags = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", f"-I{exported.folder}"]
        subprocess.run(["cc", *flags, "-c", str(source), "-o", str(tmp_path / "out.o")], check=True)


def test_the_header_says_what_a_caller_must_know(exported: Exported, bundle: Path) -> None:
    loaded, text = CoDesign.load(bundle), (exported.folder / "first_net.h").read_text()
    resolution = loaded.architecture.resolution
    assert re.findall(r"#define FIRST_NET_(\w+) (\d+)\b", text)[:4] == [
        ("CHANNELS", "3"),
        ("HEIGHT", str(resolution)),
        ("WIDTH", str(resolution)),
        ("CLASSES", str(len(CLASSES))),
    ]
    assert re.findall(r"\n(\w[^\n]*\(.*\));", text) == [
        "int first_net_supported(void)",
        "int first_net_run(const float *image, float *logits)",
        "first_net_handle *first_net_create(void)",
        "int first_net_run_with(first_net_handle *handle, size_t num, const float *image, float *logits)",
        "void first_net_destroy(first_net_handle *handle)",
    ]
    for fact in (
        loaded.architecture.key,
        HOST.device,
        "tuned on this target",
        f"{exported.static_bytes} of activations",
    ):
        assert fact in text


# ---- the library ----------------------------------------------------------------------------------------------------
TWO_NETWORKS = """
#include <stdio.h>
#include <string.h>
#include "first_net.h"
#include "second.h"

static unsigned char memory[sizeof(float) * FIRST_NET_CHANNELS * FIRST_NET_HEIGHT * FIRST_NET_WIDTH + 128];

static void print(const float *logits) {
    for (int i = 0; i < SECOND_CLASSES; ++i) printf("%.9g ", logits[i]);
    putchar('\\n');
}

int main(void) {
    const size_t size = sizeof memory - 128;
    unsigned char *start = memory + (64 - (size_t)memory % 64) % 64;
    float logits[SECOND_CLASSES + 1];
    if (fread(start, 1, size, stdin) != size) return 1;
    logits[SECOND_CLASSES] = 42;
    for (int offset = 0; offset <= 4; offset += 4) { /* an image that is aligned, and one that is not */
        memmove(start + offset, start, size);
        if (first_net_run((float *)(start + offset), logits) != FIRST_NET_OK) return 2;
        print(logits);
        if (second_run((float *)(start + offset), logits) != SECOND_OK) return 3;
        print(logits);
    }
    if (logits[SECOND_CLASSES] != 42) return 4;
    if (first_net_run(NULL, logits) != FIRST_NET_NULL_POINTER) return 5;
    return second_run((float *)start, NULL) == SECOND_NULL_POINTER ? 0 : 6;
}
"""


def test_two_networks_in_one_program(exported: Exported, unlike: Exported, bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "main.c").write_text(TWO_NETWORKS)
    command = ["cc", "-Wall", "-Werror", "main.c", f"-I{exported.folder}", f"-I{unlike.folder}"]
    subprocess.run([*command, exported.library, unlike.library, "-o", "both"], cwd=tmp_path, check=True)
    (x,) = images(1, CoDesign.load(bundle).architecture.resolution)
    done = subprocess.run([tmp_path / "both"], input=x.tobytes(), capture_output=True, check=True)
    rows = np.array([line.split() for line in done.stdout.decode().splitlines()], dtype=np.float32)
    assert rows.shape == (4, len(CLASSES))
    np.testing.assert_allclose(rows, np.repeat(logits_of_torch(bundle, x[None]), 4, axis=0), rtol=1e-4, atol=1e-4)


def test_a_library_asks_for_nothing_but_the_c_library(exported: Exported) -> None:
    listed = subprocess.run(["nm", "-g", exported.library], capture_output=True, text=True, check=True).stdout
    rows = [line.split()[-2:] for line in listed.splitlines() if re.search(r" [A-Za-z] ", line)]
    defined = {name for kind, name in rows if kind != "U"}
    wanted = {name for kind, name in rows if kind == "U"} - defined
    assert wanted <= {"memcpy", "memset", "memmove", "malloc", "free", "__tls_get_addr", "_GLOBAL_OFFSET_TABLE_"}
    assert all(name.startswith("first_net_") for kind, name in rows if kind in "TDBRC")


def test_the_folder_tells_what_was_exported(exported: Exported, unlike: Exported, bundle: Path) -> None:
    assert exported.name == "first_net"
    assert exported.schedules.is_tuned
    assert exported.schedules.describe_latency() == "not measured"
    assert not unlike.schedules.is_tuned
    assert "nothing was tuned or measured on this target" in (unlike.folder / "second.h").read_text()
    for done in (exported, unlike):
        assert isinstance(done.check, Check)
        assert done.check.max_error < 1e-4
        assert done.library_bytes > done.weight_bytes > 4 * CoDesign.load(bundle).document.get("num_params", 1000)
        assert "It was tried: 4 random images on this machine" in (done.folder / "README").read_text()


@needs_compiler
def test_kernels_are_compiled_in_another_process(no_build_here: None, bundle: Path, tmp_path: Path) -> None:
    assert export(bundle, tmp_path / "net").library.is_file()


@needs_compiler
@needs_bf16
def test_a_network_in_bfloat16(tiny_space: SearchSpace, tmp_path: Path, compiler: Compiler) -> None:
    done = export(make_bundle(tiny_space, tmp_path, load_target("cpu", 1, "bf16"), compiler), tmp_path / "net")
    assert isinstance(done.check, Check)
    assert done.check.max_error < 0.05


@needs_compiler
@needs_int8
def test_a_network_of_several_dtypes(tiny_space: SearchSpace, tmp_path: Path, compiler: Compiler, narrow: Path) -> None:
    """Its bundle, the library with its schedules, and that with default ones for other vectors are its emulation."""
    made = make_bundle(tiny_space, tmp_path, HOST, compiler, "fifiif")
    loaded = CoDesign.load(made)
    x = images(NUM_IMAGES, loaded.architecture.resolution)
    parameters = folding.split_tensors(loaded.tensors, loaded.blocks)
    expected = emulated_logits(loaded.blocks, parameters, x, exact=True)
    np.testing.assert_allclose(loaded.predict(x), expected, atol=2e-4 * np.abs(expected).max())
    assert np.abs(expected - logits_of_torch(made, x)).max() < 0.05 * np.abs(expected).max()
    for name, target in (("own", None), ("other", str(narrow))):
        done = export(made, tmp_path / name, target=target)
        assert isinstance(done.check, Check)
        assert done.check.result == ("logits", "an emulation's")
        assert done.check.max_error < 2e-4
        assert done.schedules.is_tuned == (target is None)
    with pytest.raises(
        TargetError, match=r"blocks in int8, and there is no such code for Raspberry Pi 4.*search in float32"
    ):
        export(made, tmp_path / "pi", target="raspberry-pi-4")
    assert not (tmp_path / "pi").exists()


@needs_compiler
def test_latency_and_schedules_are_those_of_the_target_that_was_asked_for(
    bundle: Path, tiny_space: SearchSpace, tmp_path: Path
) -> None:
    copy = shutil.copytree(bundle, tmp_path / "bundle")
    two = load_target("cpu", 1).to_json() | {"name": "cpu-2t", "num_threads": 2}
    document = json.loads((copy / DOCUMENT).read_text())
    points = ideas.default_points
    blocks = CoDesign.load(copy).blocks
    schedules = []
    for block in blocks:
        keys = [w.key for w in block_workloads(block)]
        found = points(block, HardwareTarget.from_json(two))
        schedules.append({"block": block.key, "operators": [list(pair) for pair in zip(keys, found, strict=True)]})
    part = {"target": two, "module": "module.so", "schedules": schedules, "measured": {"latency_s": 2e-3}}
    one = {**document["targets"][0], "measured": {"latency_s": 1e-3}}
    edit(copy, targets=[one, part])
    done = export(copy, tmp_path / "net", target="cpu-2t")
    text = (done.folder / "net.h").read_text()
    assert "2 ms measured through the bundle's module, on 2 threads (the C function uses one)" in text
    assert isinstance(done.check, Check)


@pytest.mark.parametrize("version", [None, 99])
def test_schedules_that_would_be_other_programs_are_not_exported(
    bundle: Path, tmp_path: Path, version: int | None
) -> None:
    copy = shutil.copytree(bundle, tmp_path / "bundle")
    (part,) = json.loads((copy / DOCUMENT).read_text())["targets"]
    edit(copy, targets=[{**part, "space_version": version}])
    if version is None:
        assert export(copy, tmp_path / "net").library.is_file()
        return
    with pytest.raises(CheckpointError, match="version 99"):
        export(copy, tmp_path / "net")
    assert not (tmp_path / "net").exists()


def test_an_earlier_export_is_replaced_whole(exported: Exported, bundle: Path, tmp_path: Path) -> None:
    out = shutil.copytree(exported.folder, tmp_path / "out")
    (out / "note").write_text("gone afterwards")
    export(bundle, out, name="again")
    assert {p.name for p in out.iterdir()} == files_of("again")


# ---- other platforms ------------------------------------------------------------------------------------------------
@pytest.mark.qemu
def test_an_aarch64_program_computes_what_pytorch_computes(bundle: Path, tmp_path: Path) -> None:
    runner = emulator_program(PI)
    if runner is None:
        pytest.skip("qemu-aarch64-static (Debian's qemu-user-static) is not installed")
    if shutil.which(f"{PI}-gcc") is None and importlib.util.find_spec("ziglang") is None:
        pytest.skip(f"neither {PI}-gcc nor the wheel ziglang is installed")
    done = export(bundle, tmp_path / "pi", target="raspberry-pi-4")
    assert isinstance(done.check, Check)
    assert done.check.under == Path(runner).name
    program = build(done.folder, tmp_path / "program" / "pi", line_of_the_readme(done.folder))
    program.chmod(0o755)
    assert program.read_bytes()[18] == 183  # e_machine of AArch64
    check_program([runner, str(program)], bundle, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("target", [None, "raspberry-pi-4"])
def test_the_ziglang_wheel_is_enough(bundle: Path, target: str | None, tmp_path: Path) -> None:
    if importlib.util.find_spec("ziglang") is None:
        pytest.skip("the wheel ziglang (extra `cross`) is not installed")
    done = export(bundle, tmp_path / "net", target=target, tools=Tools(which=lambda _name: None))
    assert "-m ziglang cc" in done.build_line
    if target is None or emulator_program(PI):
        assert isinstance(done.check, Check)


def test_without_a_compiler_nothing_is_written(bundle: Path, tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="install gcc"):
        export(bundle, tmp_path / "net", tools=Tools(which=lambda _name: None, zig=lambda: None))
    assert not (tmp_path / "net").exists()


# ---- what is refused ------------------------------------------------------------------------------------------------
@needs_compiler
def test_a_program_that_computes_something_else_is_not_written(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = folding.packed_parameters
    monkeypatch.setattr(
        c_export, "packed_parameters", lambda *arguments: [part * np.float32(1.5) for part in packed(*arguments)]
    )
    with pytest.raises(MeasureError, match=r"logits are .* away from PyTorch's; nothing was written"):
        export(bundle, tmp_path / "net")
    assert list(tmp_path.iterdir()) == []


@needs_compiler
def test_an_example_that_must_not_be_run_is_written_all_the_same(bundle: Path, tmp_path: Path) -> None:
    def forbidden(*_arguments: object) -> bytes:
        raise PermissionError(13, "Permission denied")

    done = export(bundle, tmp_path / "net", run=forbidden)
    assert str(done.check).startswith("Permission denied: ")
    assert "It was not run: Permission denied" in (done.folder / "README").read_text()


def no_weights(folder: Path) -> None:
    hashes = json.loads((folder / DOCUMENT).read_text())["hashes"]
    del hashes[WEIGHTS]
    (folder / WEIGHTS).unlink()
    edit(folder, hashes=hashes, preprocess=None)


REFUSED = {
    "no weights": (no_weights, None, CheckpointError, "has no weights .* nothing to classify with"),
    "no schedules": (functools.partial(edit_target, schedules=[]), None, CheckpointError, "lacks schedules .* for cpu"),
    "other schedules": (
        functools.partial(edit_target, schedules=[{"block": "b", "operators": [["o", [1]]]}]),
        None,
        CheckpointError,
        "lacks schedules .* for cpu .*KeyError",
    ),
    "schedules in words": (functools.partial(edit_target, schedules="fast"), None, CheckpointError, "lacks schedules"),
    "another machine": (
        functools.partial(edit_target, target=HOST.to_json() | {"fingerprint": "0123456789ab", "device": "Pi"}),
        None,
        TargetError,
        r"are those of Pi \(0123456789ab\), this is .*; export it there, or name a target",
    ),
    "an unknown target": (edit, "toaster", TargetError, "unknown target 'toaster'; known: .*raspberry-pi-4"),
    "a GPU": (edit, "h100", TargetError, "expected a processor, got target 'h100' .*: C code runs on processors"),
    "no such file": (edit, "nowhere.yaml", TargetError, "nowhere.yaml does not exist"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_exported_is_one_line(bundle: Path, case: str, tmp_path: Path) -> None:
    change, target, error, says = REFUSED[case]
    copy = shutil.copytree(bundle, tmp_path / "bundle")
    change(copy)
    with pytest.raises(error, match=says) as raised:
        export(copy, tmp_path / "net", target=target)
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "net").exists()


@pytest.mark.parametrize("there", ["a file", "another folder", "the bundle"])
def test_nothing_else_is_replaced(bundle: Path, there: str, tmp_path: Path) -> None:
    out = bundle if there == "the bundle" else tmp_path / "out"
    if there == "a file":
        out.write_text("mine")
    elif there == "another folder":
        out.mkdir()
        (out / "README").write_text("my own")
    with pytest.raises(ConfigError, match="another folder"):
        export(bundle, out)


@pytest.mark.parametrize("name", ["", "Net", "1st", "a-b", "é"])
def test_a_name_that_c_does_not_take_is_refused(bundle: Path, name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="name"):
        export(bundle, tmp_path / "net", name=name)


def test_the_command_prints_what_was_made(exported: Exported, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(c_export, "export", lambda *_arguments: exported)
    done = CliRunner().invoke(app, ["export", "bundle", "out"])
    assert done.exit_code == 0, done.output
    lines = dict(line.split(maxsplit=1) for line in done.output.splitlines())
    assert list(lines) == ["library", "target", "schedules", "latency", "checked", "build"]
    assert lines["library"].startswith(f"{exported.library}: ")
    assert lines["checked"].startswith("4 random images on this machine: logits within ")
    assert lines["build"] == f"cd {exported.folder} && {exported.build_line}"
    assert shlex.split(exported.build_line)[-4:] == ["first_net", "main.c", "libfirst_net.a", "-lm"]
