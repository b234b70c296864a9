"""chanas/export/tuned_library.py: a tuned network's C library gives what its compiled program gives."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from fast_cases import fast
from networks import NUM_CLASSES, change_document, save_untuned, untuned_program
from torch import Tensor, nn
from typer.testing import CliRunner

from chanas.bundle.tuned import DOCUMENT, RANDOM_WEIGHTS, SOURCE, TunedNetwork
from chanas.commands.main import app
from chanas.compiler.toolchains import Tools
from chanas.core.arrays import Float32Array
from chanas.core.target import HardwareTarget
from chanas.errors import ChanasError, CheckpointError, ConfigError, MeasureError, TargetError
from chanas.export import folders
from chanas.export.folders import Exported
from chanas.export.trials import Check, run_example
from chanas.export.tuned_library import check_size, export_tuned
from chanas.models.sources.opening import open_model

from .test_c_library import HAS_COMPILER, PI, build, line_of_the_readme, needs_compiler
from .test_c_library import narrow as narrow

pytestmark = pytest.mark.usefixtures("one_compiler")
NUM_TOKENS, WIDTH = 6, 16


class Attention(nn.Module):
    """Two inputs, one of whole numbers; outputs of three types, one of which is an input in another shape."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(9, WIDTH)
        self.product = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, int: Tensor, gate: Tensor) -> tuple[Tensor, ...]:
        query, key, value = self.product(self.table(int)).chunk(3, -1)
        shares = torch.softmax(query @ key.transpose(1, 2) / 4, -1)
        rows = self.out(shares @ value) * gate
        return rows, rows.mean(1), rows > 0, int.flatten()


@pytest.fixture(scope="module")
def attention(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its folder, with the program of PyTorch beside it."""
    torch.manual_seed(0)
    given = (torch.zeros(1, NUM_TOKENS, dtype=torch.int64), torch.ones(1, NUM_TOKENS, WIDTH))
    place = tmp_path_factory.mktemp("attention")
    return untuned_program(Attention(), given, place)


def tokens(seed: int) -> list[Float32Array]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 9, (1, NUM_TOKENS)), rng.standard_normal((1, NUM_TOKENS, WIDTH), dtype=np.float32)]


@pytest.fixture(scope="module")
def exported(tuned_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    if not HAS_COMPILER:
        pytest.skip("no C compiler (cc, ar) is installed")
    return export_tuned(tuned_folder, tmp_path_factory.mktemp("exported") / "First-net")


@pytest.fixture(scope="module")
def second(attention: Path, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    if not HAS_COMPILER:
        pytest.skip("no C compiler (cc, ar) is installed")
    return export_tuned(attention, tmp_path_factory.mktemp("second") / "second")


def answers(done: Exported, network: TunedNetwork, inputs: Sequence[Float32Array], folder: Path) -> list[Float32Array]:
    """Outputs that the example writes, built by the line of the README."""
    program = build(done.folder, folder / done.name, line_of_the_readme(done.folder))
    program.chmod(0o755)
    for i, given in enumerate(inputs):
        given.tofile(folder / f"{i}.bin")
    files = [f"{i}.bin" for i in range(len(inputs))]
    subprocess.run([program, "-o", "out.bin", *files], cwd=folder, check=True, capture_output=True)
    content, found = (folder / "out.bin").read_bytes(), []
    for entry in network.document["outputs"]:
        size = int(np.prod(entry["shape"]))
        found.append(np.frombuffer(content, entry["dtype"], size).reshape(entry["shape"]))
        content = content[found[-1].nbytes :]
    assert content == b""
    return found


def check_same(found: Sequence[Float32Array], expected: Sequence[Float32Array]) -> None:
    assert [f.shape for f in found] == [e.shape for e in expected]
    for f, e in zip(found, expected, strict=True):
        np.testing.assert_allclose(f, e, rtol=1e-5, atol=1e-5)
    assert np.ptp(expected[0]) > 0.01  # or anything would be equal


@pytest.fixture(scope="module")
def program(exported: Exported, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example, built by the line of the README."""
    built = build(
        exported.folder, tmp_path_factory.mktemp("program") / "first_net", line_of_the_readme(exported.folder)
    )
    built.chmod(0o755)
    return built


# ---- the example ----------------------------------------------------------------------------------------------------
def test_the_example_gives_what_the_program_gives(exported: Exported, tuned_folder: Path, tmp_path: Path) -> None:
    network = TunedNetwork.open(tuned_folder)
    inputs = open_model(tuned_folder.parent / "net.pt2").random_inputs(1)
    check_same(answers(exported, network, inputs, tmp_path), network.run(*inputs))


class Depths(nn.Module):
    """Activations of every kind around convolutions, shares of a softmax, and what is made of a mean."""

    def __init__(self) -> None:
        super().__init__()
        functions = (nn.ReLU(), nn.Hardswish(), nn.SiLU(), nn.GELU(), nn.Tanh(), nn.ReLU6(), nn.LeakyReLU(0.1))
        self.first = nn.Conv2d(1, WIDTH, 3, padding=1)
        self.each = nn.Sequential(*(m for f in functions for m in (f, nn.Conv2d(WIDTH, WIDTH, 1))))
        self.gate = nn.Sequential(nn.Conv2d(WIDTH, WIDTH, 1), nn.Hardsigmoid(), nn.Conv2d(WIDTH, 4, 1), nn.Sigmoid())
        self.last = nn.Conv2d(WIDTH, 4, 1)

    def forward(self, depth: Tensor) -> tuple[Tensor, ...]:
        values = self.each(self.first(depth))
        maps = self.last(values)
        return maps, maps.flatten(2).transpose(1, 2).softmax(-1), self.gate(values.mean((2, 3), keepdim=True))


@pytest.fixture(scope="module", params=fast([1, 2], [1]), ids=["one image", "two images"])
def depths(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Exported]:
    """Its folder, with the program of PyTorch beside it, and its C library."""
    if not HAS_COMPILER:
        pytest.skip("no C compiler (cc, ar) is installed")
    torch.manual_seed(0)
    place = tmp_path_factory.mktemp("depths")
    folder = untuned_program(Depths(), [torch.rand(request.param, 1, 8, 8)], place)
    return folder, export_tuned(folder, place / "exported" / "depths")


@pytest.mark.parametrize("odd", [np.nan, np.inf])
def test_nan_and_infinity_go_through_as_in_pytorch(odd: float, depths: tuple[Path, Exported], tmp_path: Path) -> None:
    folder, done = depths
    network = TunedNetwork.open(folder)
    given = torch.rand(network.document["inputs"][0]["shape"])
    given[0, 0, 5, 2] = odd
    with torch.no_grad():
        expected = [v.numpy() for v in torch.export.load(folder.parent / "net.pt2").module()(given)]
    for found in (network.run(given.numpy()), answers(done, network, [given.numpy()], tmp_path)):
        for f, e in zip(found, expected, strict=True):
            np.testing.assert_allclose(f, e, rtol=1e-5, atol=1e-5)
    assert np.isnan(expected[0]).all(axis=1).sum() == 9
    assert [bool(np.isnan(gate).all()) for gate in expected[2]] == [True, False][: len(given)]


@needs_compiler
def test_a_network_from_an_onnx_file(tuned_onnx_folder: Path, tmp_path: Path) -> None:
    network, opened = TunedNetwork.open(tuned_onnx_folder), open_model(tuned_onnx_folder.parent / "other.onnx")
    inputs = opened.random_inputs(1)
    done = export_tuned(tuned_onnx_folder, tmp_path / "exported" / "onnx")
    assert "int onnx_run(const float *in_x, float *out_y);" in (done.folder / "onnx.h").read_text()
    check_same(answers(done, network, inputs, tmp_path), network.run(*inputs))


def test_several_inputs_and_outputs_of_different_types(second: Exported, attention: Path, tmp_path: Path) -> None:
    network, opened = TunedNetwork.open(attention), open_model(attention.parent / "net.pt2")
    inputs = tokens(1)
    found = answers(second, network, inputs, tmp_path)
    assert [str(f.dtype) for f in found] == ["float32", "float32", "bool", "int64"]
    check_same(found, network.run(*inputs))
    check_same(found, opened.answer(inputs))


def test_the_example_prints_the_ends_of_each_output(exported: Exported, tuned_folder: Path, tmp_path: Path) -> None:
    (x,) = open_model(tuned_folder.parent / "net.pt2").random_inputs(1)
    (y,) = TunedNetwork.open(tuned_folder).run(x)
    program = build(exported.folder, tmp_path / "first_net", line_of_the_readme(exported.folder))
    program.chmod(0o755)
    x.tofile(tmp_path / "x.bin")
    done = subprocess.run([program, "-t", "x.bin"], cwd=tmp_path, capture_output=True, text=True, check=True)
    ends, seconds = done.stdout.splitlines()
    name, low, high = ends.split("\t")
    assert (name, low.split(" at ")[1], high.split(" at ")[1]) == ("output0", str(y.argmin()), str(y.argmax()))
    np.testing.assert_allclose([float(low.split()[0]), float(high.split()[0])], [y.min(), y.max()], rtol=1e-5)
    assert re.fullmatch(r"\d+\.\d{4} ms", seconds)


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        ([], 2, r"usage: .* \[-t\] \[-o FILE\] input\.bin"),
        (["-x"], 2, "usage: "),
        (["short.bin", "short.bin"], 2, "usage: "),
        (["nowhere.bin"], 1, "nowhere.bin: No such file"),
        (["short.bin"], 1, r"short\.bin: expected 3072 bytes of input, got 10"),
        (["long.bin"], 1, r"long\.bin: expected 3072 bytes of input, got more than 3072"),
        (["-o", "no/where", "right.bin"], 1, "no/where: No such file"),
    ],
)
def test_the_example_refuses_bad_input(
    program: Path, arguments: list[str], code: int, says: str, tmp_path: Path
) -> None:
    for name, size in (("short", 10), ("right", 3072), ("long", 3073)):
        (tmp_path / f"{name}.bin").write_bytes(bytes(size))
    done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == code
    assert re.search(says, done.stderr)


# ---- the library ----------------------------------------------------------------------------------------------------
TWO_NETWORKS = """
#include <stdio.h>
#include <string.h>
#include "first_net.h"
#include "second.h"

static unsigned char memory[sizeof(float) * SECOND_GATE_SIZE + 128];

int main(void) {
    unsigned char *start = memory + (64 - (size_t)memory % 64) % 64;
    int64_t ids[SECOND_INT_SIZE], copy[SECOND_OUTPUT3_SIZE];
    float gate[SECOND_GATE_SIZE], rows[SECOND_OUTPUT0_SIZE], mean[SECOND_OUTPUT1_SIZE + 1];
    uint8_t above[SECOND_OUTPUT2_SIZE];
    static float image[FIRST_NET_INPUT_SIZE], scores[FIRST_NET_OUTPUT0_SIZE];
    if (fread(ids, sizeof *ids, SECOND_INT_SIZE, stdin) != SECOND_INT_SIZE) return 1;
    if (fread(gate, sizeof *gate, SECOND_GATE_SIZE, stdin) != SECOND_GATE_SIZE) return 1;
    mean[SECOND_OUTPUT1_SIZE] = 42;
    for (int offset = 0; offset <= 4; offset += 4) { /* an input that is aligned, and one that is not */
        memcpy(start + offset, gate, sizeof gate);
        if (first_net_run(image, scores) != FIRST_NET_OK) return 2;
        if (second_run(ids, (float *)(start + offset), rows, mean, above, copy) != SECOND_OK) return 3;
        if (memcmp(start + offset, gate, sizeof gate) != 0) return 4;
        for (int i = 0; i < SECOND_OUTPUT1_SIZE; ++i) printf("%.9g ", mean[i]);
        putchar('\\n');
    }
    if (mean[SECOND_OUTPUT1_SIZE] != 42) return 5;
    if (second_run(NULL, gate, rows, mean, above, copy) != SECOND_NULL_POINTER) return 6;
    return second_run(ids, gate, rows, mean, above, NULL) == SECOND_NULL_POINTER ? 0 : 7;
}
"""


def test_two_networks_in_one_program(exported: Exported, second: Exported, attention: Path, tmp_path: Path) -> None:
    (tmp_path / "main.c").write_text(TWO_NETWORKS)
    command = ["cc", "-Wall", "-Werror", "main.c", f"-I{exported.folder}", f"-I{second.folder}"]
    subprocess.run([*command, exported.library, second.library, "-o", "both", "-lm"], cwd=tmp_path, check=True)
    inputs = tokens(2)
    given = b"".join(i.tobytes() for i in inputs)
    done = subprocess.run([tmp_path / "both"], input=given, capture_output=True, check=True)
    rows = np.array([line.split() for line in done.stdout.decode().splitlines()], dtype=np.float32)
    expected = TunedNetwork.open(attention).run(*inputs)[1]
    np.testing.assert_allclose(rows, np.repeat(expected, 2, axis=0), rtol=1e-5, atol=1e-5)


@needs_compiler
def test_networks_whose_names_run_into_each_other(tuned_folder: Path, tmp_path: Path) -> None:
    """`x` with a tensor `a_b`, and `x_a` with a tensor `b`."""
    (entry,) = TunedNetwork.open(tuned_folder).document["inputs"]
    libraries = []
    for name, tensor in (("x", "a_b"), ("x_a", "b")):
        folder = Path(shutil.copytree(tuned_folder, tmp_path / name))
        change_document(folder, inputs=[entry | {"name": tensor}])
        libraries.append(export_tuned(folder, tmp_path / f"{name}-c", name=name))
    main = "int main(void) { return x_run(0, 0) - X_NULL_POINTER + x_a_run(0, 0) - X_A_NULL_POINTER; }"
    sizes = '_Static_assert(X_a_b_SIZE == 768 && X_A_B_SIZE == 768, "sizes");'
    (tmp_path / "main.c").write_text(f'#include "x.h"\n#include "x_a.h"\n{sizes}\n{main}\n')
    flags = ["-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", *(f"-I{done.folder}" for done in libraries)]
    command = ["cc", *flags, "main.c", *(done.library for done in libraries), "-o", "main", "-lm"]
    subprocess.run(command, cwd=tmp_path, check=True)
    subprocess.run([tmp_path / "main"], check=True)


def test_a_library_asks_for_nothing_but_the_c_library(second: Exported) -> None:
    listed = subprocess.run(["nm", "-g", second.library], capture_output=True, text=True, check=True).stdout
    rows = [line.split()[-2:] for line in listed.splitlines() if re.search(r" [A-Za-z] ", line)]
    defined = {name for kind, name in rows if kind != "U"}
    wanted = {name for kind, name in rows if kind == "U"} - defined
    of_handles = {"malloc", "free", "__tls_get_addr"}
    assert wanted <= {"memcpy", "memset", "memmove", "_GLOBAL_OFFSET_TABLE_", "expf", "erff", "tanhf"} | of_handles
    assert all(name.startswith("second_") for kind, name in rows if kind in "TDBRC")


def test_header_and_example_are_c99_without_warnings(second: Exported, tmp_path: Path) -> None:
    (tmp_path / "twice.c").write_text('#include "second.h"\n#include "second.h"\nint main(void) { return 0; }\n')
    for source in (tmp_path / "twice.c", second.folder / "main.c"):
        flags = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", f"-I{second.folder}"]
        subprocess.run(["cc", *flags, "-c", str(source), "-o", str(tmp_path / "out.o")], check=True)


@pytest.mark.parametrize(
    ("source", "command"),
    [
        ("threads.cpp", ["c++", "-std=c++11", "-Wall", "-Wextra", "-Werror", "-pthread", "libsecond.a", "-lm"]),
        ("main.rs", ["rustc", "--edition", "2024", "-D", "warnings", "-L", ".", "-l", "static=second", "-l", "m"]),
    ],
)
def test_threads_run_it_whatever_its_inputs_and_outputs_are(
    second: Exported, tmp_path: Path, source: str, command: list[str]
) -> None:
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    program = tmp_path / "program"
    command = [command[0], "-o", str(program), source, *command[1:]]
    subprocess.run(command, cwd=second.folder, check=True)
    assert subprocess.run([program], capture_output=True, check=True).stdout == b"4 threads: all alike\n"


def test_the_header_says_what_a_caller_must_know(second: Exported, attention: Path) -> None:
    text = (second.folder / "second.h").read_text()
    sizes = dict(re.findall(r"#define SECOND_(\w+)_SIZE (\d+)\n", text))
    assert sizes == {"INT": "6", "GATE": "96", "OUTPUT0": "96", "OUTPUT1": "16", "OUTPUT2": "96", "OUTPUT3": "6"}
    parameters = (
        "const int64_t *in_int, const float *in_gate, "
        "float *out_output0, float *out_output1, uint8_t *out_output2, int64_t *out_output3"
    )
    assert f"\nint second_run({parameters});\n" in text
    assert "      in_int   int64_t [1][6]\n" in text
    assert "      out_output2   uint8_t [1][6][16], 0 or 1\n" in text
    assert f"{second.static_bytes} of activations" in text
    assert str(attention) not in text


def test_the_folder_tells_what_was_exported(exported: Exported, tuned_folder: Path) -> None:
    assert exported.name == "first_net"
    assert {p.name for p in exported.folder.iterdir()} >= {"libfirst_net.a", "first_net.h", "main.c", "Makefile"}
    assert exported.schedules.is_tuned
    assert exported.schedules.measured_s == TunedNetwork.open(tuned_folder).document["measured"]["latency_s"]
    assert isinstance(exported.check, Check)
    assert exported.check.max_error < 1e-5
    assert exported.library_bytes > exported.weight_bytes > 4 * 8 * NUM_CLASSES
    assert "It was tried: 2 sets of random inputs on this machine" in (exported.folder / "README").read_text()


class Shuffled(nn.Module):
    """What torchvision's classifiers are made of: maps that meet again, shuffled channels, several kinds of layers."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.one = nn.Conv2d(3, 32, 3, 2, 1), nn.Conv2d(32, 32, 3, padding=1)
        self.two, self.last = nn.Conv2d(16, 16, 5, padding=2, groups=16), nn.Linear(32, 7)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.stem(x))
        kept, changed = (torch.relu(self.one(x)) + x).chunk(2, 1)
        x = nn.functional.channel_shuffle(torch.cat((kept, nn.functional.silu(self.two(changed))), 1), 2)
        return self.last(nn.functional.max_pool2d(x, 3, 2, 1).mean((2, 3)))


@needs_compiler
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="two threads take two cores")
def test_a_network_for_two_threads_runs_on_one(tmp_path: Path) -> None:
    torch.manual_seed(0)
    folder = untuned_program(Shuffled(), [torch.zeros(1, 3, 64, 64)], tmp_path, num_threads=2, choice=1)
    done = export_tuned(folder, tmp_path / "exported" / "two")
    assert isinstance(done.check, Check)
    assert "on 2 threads (the C function uses one)" in (done.folder / "two.h").read_text()
    listed = subprocess.run(["nm", done.library], capture_output=True, text=True, check=True).stdout
    assert " V two_launch\n" in listed  # there are loops that would be shared out
    network, opened = TunedNetwork.open(folder), open_model(tmp_path / "net.pt2")
    assert any(o["key"].startswith("winograd") for o in network.document["operators"])
    inputs = opened.random_inputs(3)
    check_same(answers(done, network, inputs, tmp_path), opened.answer(inputs))


@needs_compiler
@pytest.mark.slow
def test_a_network_of_torchvision(tmp_path: Path) -> None:
    source = "torchvision:shufflenet_v2_x1_0"
    done = export_tuned(save_untuned(source, tmp_path / "net"), tmp_path / "exported" / "out")
    assert isinstance(done.check, Check)
    assert all(RANDOM_WEIGHTS in (done.folder / name).read_text() for name in ("out.h", "README"))
    network, opened = TunedNetwork.open(tmp_path / "net"), open_model(source)
    inputs = opened.random_inputs(1)
    check_same(answers(done, network, inputs, tmp_path), opened.answer(inputs))


class Joined(nn.Module):
    """Two convolutions and a pooling that write one map, and a layer of a slice of it."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.last = nn.Conv2d(3, 64, 3), nn.Conv2d(64, 64, 1), nn.Conv2d(128, 5, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        one = self.one(x)
        joined = torch.cat((one, self.two(one), nn.functional.max_pool2d(one, 3, 1, 1)), 1)
        return self.last(joined[:, 64:]), joined


@needs_compiler
def test_kernels_that_write_parts_of_a_map(tmp_path: Path) -> None:
    torch.manual_seed(0)
    done = export_tuned(untuned_program(Joined(), [torch.zeros(1, 3, 9, 8)], tmp_path), tmp_path / "exported" / "out")
    network, opened = TunedNetwork.open(tmp_path / "net"), open_model(tmp_path / "net.pt2")
    inputs = opened.random_inputs(1)
    check_same(answers(done, network, inputs, tmp_path), opened.answer(inputs))


WORDS = ("int64_t", "constexpr", "errno", "NAN", "handle", "a.b", "a_b", "größe:0")


@needs_compiler
def test_tensors_may_be_called_anything(tuned_folder: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tuned_folder, tmp_path / "net"))
    (image,), (scores,) = (TunedNetwork.open(folder).document[kind] for kind in ("inputs", "outputs"))
    for i in range(0, len(WORDS), 2):
        change_document(folder, inputs=[image | {"name": WORDS[i]}], outputs=[scores | {"name": WORDS[i + 1]}])
        done = export_tuned(folder, tmp_path / "out", name="words")
        (tmp_path / "main.c").write_text('#include <errno.h>\n#include <math.h>\n#include "words.h"\n')
        shutil.copyfile(tmp_path / "main.c", tmp_path / "main.cpp")
        for command in (["cc", "-std=c99"], ["cc", "-std=gnu2x"], ["c++", "-std=c++11"], ["c++", "-std=c++20"]):
            source = "main.c" if command[0] == "cc" else "main.cpp"
            flags = ["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only", f"-I{done.folder}"]
            if shutil.which(command[0]):
                subprocess.run([*command, *flags, source], cwd=tmp_path, check=True)


class Reshaped(nn.Module):
    """Nothing is computed."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x.flatten(1), x


@needs_compiler
def test_a_network_without_a_computation(tmp_path: Path) -> None:
    folder = untuned_program(Reshaped(), [torch.zeros(1, 2, 3)], tmp_path)
    done = export_tuned(folder, tmp_path / "exported" / "reshaped")
    x = np.arange(6, dtype=np.float32).reshape(1, 2, 3)
    check_same(answers(done, TunedNetwork.open(folder), [x], tmp_path), [x.reshape(1, 6), x])


@needs_compiler
@pytest.mark.skipif(platform.machine() != "x86_64", reason="the instruction sets are those of x86-64")
def test_a_processor_without_the_instructions_gets_a_code(
    tuned_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folders, "needed_flags", lambda *_: ["xop", "avx512_fp16"])  # no processor has both
    with pytest.raises(MeasureError, match="net_run returned 3"):
        export_tuned(tuned_folder, tmp_path / "net")


def test_header_and_readme_say_what_a_processor_needs(exported: Exported) -> None:
    needs = re.findall(r"^   needs +(.*)$", (exported.folder / "first_net.h").read_text(), re.MULTILINE)
    assert needs[0].startswith(platform.machine())
    assert f"It needs {needs[0]}; first_net_supported() says" in (exported.folder / "README").read_text()


@needs_compiler
def test_kernels_are_compiled_in_another_process(no_build_here: None, tuned_folder: Path, tmp_path: Path) -> None:
    assert export_tuned(tuned_folder, tmp_path / "net").library.is_file()


ALONE = """
import sys

class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "torchvision", "onnx", "onnxruntime"):
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Block())
from pathlib import Path
from chanas.export.tuned_library import export_tuned

print(export_tuned(Path(sys.argv[1]), Path(sys.argv[2])).check.max_error)
"""


@needs_compiler
def test_it_takes_neither_torch_nor_onnx(tuned_folder: Path, tmp_path: Path) -> None:
    moved = shutil.copytree(tuned_folder, tmp_path / "net")
    command = [sys.executable, "-c", ALONE, moved, tmp_path / "out"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 1e-5


# ---- other processors -----------------------------------------------------------------------------------------------
@needs_compiler
def test_another_processor_gets_schedules_of_the_first(attention: Path, narrow: Path, tmp_path: Path) -> None:
    done = export_tuned(attention, tmp_path / "net", target=str(narrow))
    assert isinstance(done.check, Check)
    assert not done.schedules.is_tuned
    own = TunedNetwork.open(attention).target.device
    assert f"those tuned on {own}: nothing was tuned or measured on this target" in (done.folder / "net.h").read_text()


@needs_compiler
def test_a_network_of_another_machine_is_compiled_and_not_run(copied: Path, narrow: Path, tmp_path: Path) -> None:
    target = json.loads((copied / DOCUMENT).read_text())["target"]
    change_document(copied, target={**target, "fingerprint": "0123456789ab", "device": "6502"})
    done = export_tuned(copied, tmp_path / "out", target=str(narrow))
    assert str(done.check).startswith("there is nothing to compare with: ")
    assert "compiled for 6502" in str(done.check)


@pytest.mark.qemu
def test_an_aarch64_program_gives_what_the_program_gives(attention: Path, tmp_path: Path) -> None:
    from chanas.measuring.checks.qemu import emulator_program

    if emulator_program(PI) is None:
        pytest.skip("qemu-aarch64-static (Debian's qemu-user-static) is not installed")
    done = export_tuned(attention, tmp_path / "pi", target="raspberry-pi-4")
    assert isinstance(done.check, Check)
    assert done.check.under.startswith("qemu")


# ---- what is refused ------------------------------------------------------------------------------------------------
def without_source(folder: Path) -> None:
    hashes = json.loads((folder / DOCUMENT).read_text())["hashes"]
    (folder / SOURCE).unlink()
    del hashes[SOURCE]
    change_document(folder, hashes=hashes)


def of_another_machine(folder: Path) -> None:
    target: HardwareTarget = TunedNetwork.open(folder).target
    change_document(folder, target=target.to_json() | {"fingerprint": "0123456789ab", "device": "6502"})


def of_bfloat16(folder: Path) -> None:
    change_document(folder, outputs=[{"name": "y", "shape": [1, NUM_CLASSES], "dtype": "bfloat16"}])


def of_other_outputs(folder: Path) -> None:
    change_document(folder, outputs=[{"name": "y", "shape": [1, NUM_CLASSES + 1], "dtype": "float32"}])


REFUSED: dict[str, tuple[Callable[[Path], object], str | None, type[ChanasError], str]] = {
    "an older folder": (without_source, None, CheckpointError, "tune the network again to export it"),
    "no source": (lambda f: (f / SOURCE).unlink(), None, CheckpointError, f"lacks {SOURCE}"),
    "damaged source": (lambda f: (f / SOURCE).write_text("{"), None, CheckpointError, f"{SOURCE} is cut short"),
    "other outputs": (of_other_outputs, None, CheckpointError, "other outputs"),
    "a type": (of_bfloat16, None, TargetError, "y of net is bfloat16, for which C has no type"),
    "another machine": (of_another_machine, None, TargetError, r"6502 \(0123456789ab\), .* export it there"),
    "an unknown target": (lambda f: None, "toaster", TargetError, "unknown target 'toaster'"),
    "a GPU": (lambda f: None, "h100", TargetError, "C code runs on processors"),
    "no folder": (shutil.rmtree, None, CheckpointError, "does not exist"),
}


@needs_compiler
@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_exported_is_one_line(copied: Path, case: str, tmp_path: Path) -> None:
    change, target, error, says = REFUSED[case]
    change(copied)
    with pytest.raises(error, match=says) as raised:
        export_tuned(copied, tmp_path / "out", target=target)
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "out").exists()


def test_a_network_that_no_linker_takes_is_refused() -> None:
    check_size(2_000_000_000)
    with pytest.raises(TargetError, match=r"weights and activations, .* got 2\.\d+ GB; export a smaller network"):
        check_size(2_500_000_000)


def test_without_a_compiler_nothing_is_written(tuned_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="install gcc"):
        export_tuned(tuned_folder, tmp_path / "net", tools=Tools(which=lambda _name: None, zig=lambda: None))
    assert list(tmp_path.iterdir()) == []


@needs_compiler
def test_a_program_that_computes_something_else_is_not_written(tuned_folder: Path, tmp_path: Path) -> None:
    def wrong(command: Sequence[str], what: str) -> bytes:
        printed = run_example(command, what)
        written = Path(command[command.index("-o") + 1])
        (np.fromfile(written, np.float32) + np.float32(0.01)).tofile(written)
        return printed

    with pytest.raises(MeasureError, match=r"outputs are 0\.\d+ away from module\.so's; nothing was written"):
        export_tuned(tuned_folder, tmp_path / "net", run=wrong)
    assert list(tmp_path.iterdir()) == []


@needs_compiler
def test_an_example_that_must_not_be_run_is_written_all_the_same(tuned_folder: Path, tmp_path: Path) -> None:
    def forbidden(*_arguments: object) -> bytes:
        raise PermissionError(13, "Permission denied")

    done = export_tuned(tuned_folder, tmp_path / "net", run=forbidden)
    assert str(done.check).startswith("Permission denied: ")


@pytest.mark.parametrize("there", ["a file", "the network"])
def test_nothing_else_is_replaced(tuned_folder: Path, there: str, tmp_path: Path) -> None:
    out = tuned_folder if there == "the network" else tmp_path / "out"
    if there == "a file":
        out.write_text("mine")
    with pytest.raises(ConfigError, match="another folder"):
        export_tuned(tuned_folder, out)


@needs_compiler
def test_the_command_exports_a_tuned_network(tuned_folder: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["export", str(tuned_folder), str(tmp_path / "net"), "--name", "other"])
    assert done.exit_code == 0, done.output
    lines = dict(line.split(maxsplit=1) for line in done.output.splitlines())
    assert list(lines) == ["library", "target", "schedules", "latency", "checked", "build"]
    assert lines["checked"].startswith("2 sets of random inputs on this machine: outputs within ")
    assert "measured through module.so" in lines["latency"]
    assert (tmp_path / "net" / "libother.a").is_file()
