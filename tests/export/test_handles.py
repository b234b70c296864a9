"""Exported networks in several threads, and in programs that CMake, pkg-config, C++ and Rust compilers build."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from chanas.core.arch import SearchSpace
from chanas.export.c_library import export
from chanas.export.folders import Exported
from chanas.export.tuned_library import export_tuned
from chanas.prescheduler.measuring.local.compiler import Compiler

from ..bundle.test_codesign import HOST
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
    run(["rustc", "-D", "warnings", *libraries, "-o", "rust_example", exported.folder / "main.rs"], tmp_path)
    assert run([tmp_path / "rust_example"], tmp_path) == ALIKE


PROJECT = """
cmake_minimum_required(VERSION 3.13)
project(app C CXX)
find_package(net CONFIG REQUIRED)
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
