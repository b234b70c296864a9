"""chanas/prescheduler/codegen/c_toolchain.py: which compiler is taken, and what is said where there is none or it
refuses."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from chanas.errors import TargetError
from chanas.prescheduler.codegen import c_toolchain
from chanas.prescheduler.codegen import linkers as cross
from chanas.prescheduler.codegen.c_toolchain import CToolchain, find_c_toolchain

PI = "aarch64-linux-gnu"


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Programs that are there, and `ziglang` for the wheel."""
    there: set[str] = set()
    for module in (c_toolchain, cross):
        monkeypatch.setattr(module, "this_machine", lambda: "x86_64")
    monkeypatch.delenv("ANDROID_NDK", raising=False)
    monkeypatch.setattr(shutil, "which", lambda name: name if name in there else None)
    monkeypatch.setattr(c_toolchain, "zig_command", lambda: ("zig",) if "ziglang" in there else None)
    return there


@pytest.mark.parametrize(
    ("there", "triple", "compiler", "static"),
    [
        ({"cc", "gcc", "ar", "ziglang"}, "", "cc", False),
        ({"cc", "ar"}, "x86_64-linux-gnu", "cc", False),
        ({"clang", "llvm-ar"}, "", "clang", False),
        ({"gcc", "ziglang"}, "", "python -m ziglang cc -target x86_64-linux-musl", True),
        ({"cc", "ar", f"{PI}-gcc", f"{PI}-ar", "ziglang"}, PI, f"{PI}-gcc", True),
        ({"cc", "ar", "ziglang"}, PI, f"python -m ziglang cc -target {PI.replace('gnu', 'musl')}", True),
        ({"cc", "ar"}, "x86_64-unknown-linux-gnu", "cc", False),
        ({f"{PI}-gcc", f"{PI}-ar"}, "aarch64-unknown-linux-gnu", f"{PI}-gcc", True),
        ({"cc", "ar", "ziglang"}, "riscv64-linux-musl", "python -m ziglang cc -target riscv64-linux-musl", True),
    ],
)
def test_a_compiler_is_found(installed: set[str], there: set[str], triple: str, compiler: str, static: bool) -> None:
    installed |= there
    found = find_c_toolchain(triple)
    assert (" ".join(found.compiler), found.static) == (compiler, static)
    assert ("-static" in found.program_arguments(["main.c"], "program")) == static


@pytest.mark.parametrize(
    ("triple", "says"),
    [
        ("", "no C compiler for this machine was found; install gcc and binutils, or `pip install ziglang`"),
        (
            PI,
            rf"no C compiler for {PI} was found; install gcc for {PI} .* gcc-{PI}\), or `pip install zig",
        ),
        ("thumbv7m-none-eabi", r"install gcc for thumbv7m-none-eabi \(thumbv7m-none-eabi-gcc and .*-ar\)$"),
        ("aarch64-linux-android", "for aarch64-linux-android was found; install the Android NDK and .* ANDROID_NDK"),
    ],
)
def test_without_a_compiler_the_error_says_what_to_install(installed: set[str], triple: str, says: str) -> None:
    installed |= {"cc", "ar"} if triple else set()
    with pytest.raises(TargetError, match=says):
        find_c_toolchain(triple)


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler (cc) is installed")
def test_what_a_compiler_refuses_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "bad.c").write_text("int f(void) { return x; }\nint g(void) { return y; }\n")
    toolchain = CToolchain("cc", ("cc",), ("ar",), static=False)
    with pytest.raises(TargetError, match=r"^cc failed at `cc .* -c bad.c -o bad.o`: bad.c:1:.*error: .*x") as error:
        toolchain.compile("bad.c", "bad.o", tmp_path)
    assert "\n" not in str(error.value)


def test_androids_compiler_is_that_of_the_ndk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "toolchains/llvm/prebuilt/linux-x86_64/bin"
    folder.mkdir(parents=True)
    (folder / "clang").touch()
    monkeypatch.setenv("ANDROID_NDK", str(tmp_path))
    found = find_c_toolchain("aarch64-linux-android34")
    assert found.compiler == (str(folder / "clang"), "--target=aarch64-linux-android34")
    assert found.archiver == (str(folder / "llvm-ar"),)
    assert found.static
