"""chanas/compiler/c_toolchain.py: which compiler is taken, and what is said where there is none or it
refuses."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from chanas.compiler.c_toolchain import CToolchain, find_c_toolchain
from chanas.errors import TargetError

from .test_linkers import having

PI = "aarch64-linux-gnu"


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
def test_a_compiler_is_found(there: set[str], triple: str, compiler: str, static: bool) -> None:
    found = find_c_toolchain(triple, having(*there, zig=("zig",) if "ziglang" in there else None))
    assert (" ".join(found.compiler), found.static) == (compiler, static)
    assert ("-static" in found.program_arguments(["main.c"], "program")) == static


@pytest.mark.parametrize(
    ("triple", "there", "telling"),
    [
        ("", (), "gcc and binutils, or `pip install ziglang`"),
        (PI, ("cc", "ar"), rf"gcc-{PI}\), or `pip install ziglang`"),
        ("thumbv7m-none-eabi", ("cc", "ar"), "thumbv7m-none-eabi-gcc"),
        ("aarch64-linux-android", ("cc", "ar"), "ANDROID_NDK"),
    ],
)
def test_without_a_compiler_the_error_says_what_to_install(triple: str, there: tuple[str, ...], telling: str) -> None:
    with pytest.raises(TargetError, match=telling):
        find_c_toolchain(triple, having(*there))


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler (cc) is installed")
def test_what_a_compiler_refuses_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "bad.c").write_text("int f(void) { return x; }\nint g(void) { return y; }\n")
    toolchain = CToolchain("cc", ("cc",), ("ar",), static=False)
    with pytest.raises(TargetError, match=r"^cc failed at `cc .* -c bad.c -o bad.o`: bad.c:1:.*error: .*x") as error:
        toolchain.compile("bad.c", "bad.o", tmp_path)
    assert "\n" not in str(error.value)


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler (cc) is installed")
def test_what_a_linker_misses_is_told(tmp_path: Path) -> None:
    (tmp_path / "main.c").write_text("int missing(void);\nint main(void) { return missing(); }\n")
    toolchain = CToolchain("cc", ("cc",), ("ar",), static=False)
    with pytest.raises(TargetError, match=r"undefined (reference|symbol).*missing") as error:
        toolchain.build_program(["main.c"], "program", tmp_path)
    assert "\n" not in str(error.value)
    (tmp_path / "main.c").write_text("int main(void) { return 0; }\n")
    with pytest.raises(TargetError, match="no_such_library"):
        toolchain.build_program(["main.c", "-lno_such_library"], "program", tmp_path)


def test_androids_compiler_is_that_of_the_ndk(tmp_path: Path) -> None:
    folder = tmp_path / "toolchains/llvm/prebuilt/linux-x86_64/bin"
    folder.mkdir(parents=True)
    (folder / "clang").touch()
    found = find_c_toolchain("aarch64-linux-android34", having(ANDROID_NDK=str(tmp_path)))
    assert found.compiler == (str(folder / "clang"), "--target=aarch64-linux-android34")
    assert found.archiver == (str(folder / "llvm-ar"),)
    assert found.static
