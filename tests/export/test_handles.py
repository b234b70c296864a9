"""Exported networks in several threads, and in programs that CMake, pkg-config, C++, Rust and Java compilers build:
what they offer these programs, and nothing else."""

from __future__ import annotations

import math
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from chanas.bundle.codesign import CoDesign
from chanas.core.arch import SearchSpace
from chanas.export.c_library import export
from chanas.export.folders import Exported
from chanas.export.tuned_library import export_tuned
from chanas.measuring.worker.compiler import Compiler

from ..bundle.test_codesign import HOST, logits_of_torch
from .test_c_library import make_bundle, needs_compiler

pytestmark = [pytest.mark.usefixtures("one_compiler"), needs_compiler]
ALIKE = "4 threads: all alike\n"


@pytest.fixture(scope="module")
def classifier(tiny_space: SearchSpace, tmp_path_factory: pytest.TempPathFactory, compiler: Compiler) -> Exported:
    place = tmp_path_factory.mktemp("handles")
    return export(make_bundle(tiny_space, place, HOST, compiler), place / "net")


@pytest.fixture(scope="module", params=["classifier", "tuned"])
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """A classifier, and a network that was tuned."""
    if request.param == "classifier":
        found: Exported = request.getfixturevalue("classifier")
        return found
    return export_tuned(request.getfixturevalue("tuned_folder"), tmp_path_factory.mktemp("handles") / "net")


def needs(*programs: str) -> None:
    for program in programs:
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")


def run(command: Sequence[str | Path], folder: Path, environment: Mapping[str, str] | None = None) -> str:
    merged = {**os.environ, **(environment or {})}
    done = subprocess.run(command, cwd=folder, env=merged, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_threads_with_handles_of_their_own_get_what_one_call_at_a_time_gets(exported: Exported, tmp_path: Path) -> None:
    needs("c++")
    flags = ["-std=c++11", "-O2", "-Wall", "-Wextra", "-Werror", "-pedantic", "-pthread", f"-I{exported.folder}"]
    source = exported.folder / "threads.cpp"
    run(["c++", *flags, "-o", "threads", source, exported.library, "-lm"], tmp_path)
    assert run([tmp_path / "threads"], tmp_path) == ALIKE


def test_the_same_in_rust(exported: Exported, tmp_path: Path) -> None:
    needs("rustc")
    libraries = ["-L", exported.folder, "-l", "static=net", "-l", "m"]
    run(
        ["rustc", "--edition", "2024", "-D", "warnings", *libraries, "-o", "rust_example", exported.folder / "main.rs"],
        tmp_path,
    )
    assert run([tmp_path / "rust_example"], tmp_path) == ALIKE


FUNCTIONS = {"net_supported", "net_run", "net_run_with", "net_create", "net_destroy"}
OF_CLASSIFIERS = {"net_class_names", "net_mean", "net_std"}


def offered_to_all(exported: Exported) -> set[str]:
    return FUNCTIONS | (OF_CLASSIFIERS if "CLASSES" in (exported.folder / "net.h").read_text() else set())


def test_a_library_offers_its_own_functions_and_names_all_else_after_itself(exported: Exported) -> None:
    needs("readelf")
    table = run(["readelf", "-sW", exported.library], exported.folder)
    rows = [fields for line in table.splitlines() if len(fields := line.split()) == 8 and fields[6] != "Ndx"]
    defined = [(name, seen) for *_, bound, seen, place, name in rows if bound in ("GLOBAL", "WEAK") and place != "UND"]
    assert all(name.startswith("net_") for name, _ in defined)
    assert {name for name, seen in defined if seen == "DEFAULT"} == offered_to_all(exported)


def test_a_shared_library_of_it_offers_the_same(exported: Exported, tmp_path: Path) -> None:
    whole = ["-Wl,--whole-archive", exported.library, "-Wl,--no-whole-archive"]
    run(["cc", "-shared", "-o", "libshared.so", *whole, "-lm"], tmp_path)
    assert dynamic_names(tmp_path / "libshared.so") == offered_to_all(exported)


def dynamic_names(library: Path) -> set[str]:
    needs("nm")
    listed = run(["nm", "-D", "--defined-only", library], library.parent)
    return {line.split()[-1] for line in listed.splitlines()}


@pytest.mark.parametrize("module", ["bundle", "tuned"])
def test_a_module_offers_what_tvm_looks_up(module: str, request: pytest.FixtureRequest) -> None:
    if module == "bundle":
        (library,) = (request.getfixturevalue("classifier").folder.parent / "bundle").rglob("*.so")
    else:
        library = request.getfixturevalue("tuned_folder") / "module.so"
    names = dynamic_names(library)
    assert "__tvm_ffi__library_ctx" in names
    assert [name for name in names if not name.startswith(("__tvm_ffi_", "__TVM"))] == []


def test_a_program_that_takes_handles_has_no_other_memory(exported: Exported, tmp_path: Path) -> None:
    needs("nm")
    main = "int main(void) { return net_run_with(net_create(), 0, 0, 0); }"
    (tmp_path / "main.c").write_text(f'#include "net.h"\n{main}\n')
    run(["cc", "main.c", f"-I{exported.folder}", exported.library, "-o", "main", "-lm"], tmp_path)
    names = {line.split()[-1] for line in run(["nm", "main"], tmp_path).splitlines()}
    assert "net_run_with" in names
    assert not names & {"net_run", "own"}


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_an_example_that_cannot_print_fails(exported: Exported, tmp_path: Path) -> None:
    needs("make")
    copy = shutil.copytree(exported.folder, tmp_path / "copy")
    run(["make", "-s"], copy)
    sizes = dict(re.findall(r"#define NET_(\w+) (\d+)", (copy / "net.h").read_text()))
    image = [sizes[n] for n in ("CHANNELS", "HEIGHT", "WIDTH") if n in sizes] or [sizes["INPUT_SIZE"]]
    (copy / "input.bin").write_bytes(bytes(4 * math.prod(map(int, image))))
    with open("/dev/full", "wb") as full:
        done = subprocess.run([copy / "net", copy / "input.bin"], stdout=full, stderr=subprocess.PIPE, check=False)
    assert done.returncode == 1
    assert b"standard output" in done.stderr


PROJECT = """
cmake_minimum_required(VERSION 3.13)
project(app C CXX)
find_package(net 99.0 CONFIG QUIET)
if(net_FOUND)
  message(FATAL_ERROR "a newer version than there is was found")
endif()
find_package(net 0.1 CONFIG REQUIRED)
find_package(net CONFIG REQUIRED)
find_package(Threads REQUIRED)
set(CMAKE_CXX_STANDARD 11)
add_executable(app ${net_DIR}/threads.cpp)
target_link_libraries(app PRIVATE net::net Threads::Threads)
add_library(shared SHARED use.c)
target_link_libraries(shared PRIVATE net::net)
"""


def test_cmake_finds_it_for_programs_and_shared_libraries(classifier: Exported, tmp_path: Path) -> None:
    needs("cmake", "c++")
    (tmp_path / "CMakeLists.txt").write_text(PROJECT)
    (tmp_path / "use.c").write_text('#include "net.h"\nnet_handle *use(void) { return net_create(); }\n')
    run(["cmake", "-S", ".", "-B", "build", f"-DCMAKE_PREFIX_PATH={classifier.folder}"], tmp_path)
    run(["cmake", "--build", "build"], tmp_path)
    assert run([tmp_path / "build" / "app"], tmp_path) == ALIKE


LIMITS = """
#include "net.h"

static float image[2 * NET_CHANNELS * NET_HEIGHT * NET_WIDTH + 1], logits[2 * NET_CLASSES + 1];

int main(void) {
    net_handle *handle = net_create();
    if (!handle) return 1;
    logits[2 * NET_CLASSES] = 42;
    if (net_run_with(handle, 0, image, logits) != NET_OK || logits[0] != 0) return 2;
    if (net_run_with(NULL, 1, image, logits) != NET_NULL_POINTER) return 3;
    if (net_run_with(handle, 1, image, NULL) != NET_NULL_POINTER) return 4;
    if (net_run_with(handle, 2, image + 1, logits) != NET_OK) return 5;
    for (int i = 0; i < NET_CLASSES; ++i)
        if (logits[i] != logits[NET_CLASSES + i]) return 6;
    net_destroy(handle);
    net_destroy(NULL);
    return logits[2 * NET_CLASSES] == 42 ? 0 : 7;
}
"""


def test_pkg_config_finds_it_and_a_batch_writes_no_further_than_its_end(classifier: Exported, tmp_path: Path) -> None:
    needs("pkg-config")
    (tmp_path / "limits.c").write_text(LIMITS)
    path = {"PKG_CONFIG_PATH": str(classifier.folder)}
    flags = run(["pkg-config", "--cflags", "--libs", "net"], tmp_path, path).split()
    run(["cc", "-std=c99", "-Wall", "-Werror", "limits.c", *flags, "-o", "limits"], tmp_path)
    run([tmp_path / "limits"], tmp_path)


# ---- the native side of examples/android, on a desktop --------------------------------------------------------------
ANDROID = Path(__file__).parents[2] / "examples" / "android" / "app" / "src" / "main"
TRY = """
import org.example.classifier.Network;

public class Try {
    public static void main(String[] arguments) throws Exception {
        int[] pixels = new int[Network.size() * Network.size()];
        for (int i = 0; i < pixels.length; ++i) pixels[i] = 0xff000000 | i * 1234567;
        Thread[] threads = new Thread[4];
        for (int t = 0; t < threads.length; ++t) {
            threads[t] = new Thread(() -> {
                try (Network network = new Network()) {
                    StringBuilder line = new StringBuilder();
                    for (float logit : network.logits(pixels)) line.append(logit).append(' ');
                    System.out.println(line);
                }
            });
            threads[t].start();
        }
        for (Thread thread : threads) thread.join();
        try (Network network = new Network()) {
            network.classify(new int[1]);
        } catch (IllegalArgumentException expected) {
            System.out.println("refused");
        }
    }
}
"""


@pytest.mark.slow
def test_java_classifies_by_the_native_side_of_the_android_example(classifier: Exported, tmp_path: Path) -> None:
    needs("cmake", "javac", "java")
    home = Path(str(shutil.which("javac"))).resolve().parents[1]
    environment = {"JAVA_HOME": str(home)}
    run(["cmake", "-S", ANDROID / "cpp", "-B", "build", f"-Dnet_DIR={classifier.folder}"], tmp_path, environment)
    run(["cmake", "--build", "build"], tmp_path)
    (tmp_path / "Try.java").write_text(TRY)
    network = ANDROID / "java" / "org" / "example" / "classifier" / "Network.java"
    run(["javac", "-d", "classes", "Try.java", network], tmp_path)
    java = [home / "bin" / "java", "--enable-native-access=ALL-UNNAMED", "-Djava.library.path=build"]
    *rows, last = run([*java, "-cp", "classes", "Try"], tmp_path).splitlines()
    assert last == "refused"
    bundle = classifier.folder.parent / "bundle"
    preprocess = CoDesign.load(bundle).preprocess
    assert preprocess is not None
    size = preprocess.resolution
    argb = (np.arange(size * size) * 1234567).reshape(size, size)
    colours = np.stack([argb >> shift & 255 for shift in (16, 8, 0)]) / 255
    image = (colours - np.reshape(preprocess.mean, (3, 1, 1))) / np.reshape(preprocess.std, (3, 1, 1))
    (expected,) = logits_of_torch(bundle, image[None].astype(np.float32))
    found = np.array([row.split() for row in rows], dtype=np.float32)
    np.testing.assert_allclose(found, np.tile(expected, (4, 1)), rtol=1e-4, atol=1e-4)
