"""chanas/prescheduler/c_toolchain.py: which compiler is taken, and what is said where there is none or it refuses."""

from __future__ import annotations

import importlib.util
import platform
import shutil
from pathlib import Path

import pytest

from chanas.errors import TargetError
from chanas.prescheduler.c_toolchain import CToolchain, emulator, find_c_toolchain, is_native

PI = "aarch64-linux-gnu"


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Programs that are there, and `ziglang` for the wheel."""
    there: set[str] = set()
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(shutil, "which", lambda name: name if name in there else None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name if name in there else None)
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
        (
            {"aarch64-linux-android34-clang", "llvm-ar"},
            "aarch64-linux-android34",
            "aarch64-linux-android34-clang",
            True,
        ),
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
        ("", "no C compiler for this machine was found; install gcc, or `pip install ziglang`"),
        (PI, rf"no C compiler for {PI} was found; install gcc for {PI} \({PI}-gcc, .* gcc-{PI}\), or `pip install zig"),
        ("riscv64-unknown-elf", r"install gcc for riscv64-unknown-elf \(.*\)$"),
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


def test_an_emulator_is_one_of_the_processor(installed: set[str]) -> None:
    installed |= {"qemu-aarch64-static", "qemu-arm"}
    assert emulator(PI) == "qemu-aarch64-static"
    assert emulator("arm-linux-gnueabihf") == "qemu-arm"
    assert emulator("riscv64-linux-gnu") is None
    assert emulator("aarch64-apple-darwin") is None


def test_a_platform_is_native_or_not(installed: set[str]) -> None:
    assert [is_native(t) for t in ("", "x86_64-linux-gnu", PI, "x86_64-apple-darwin")] == [True, True, False, False]
