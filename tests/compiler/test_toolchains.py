"""chanas/compiler/toolchains.py: what links and compiles for which processor, and what to install for the others."""

from __future__ import annotations

import importlib.util
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from chanas.compiler import toolchains as cross
from chanas.compiler.toolchains import (
    TOOLS,
    CrossLinker,
    CToolchain,
    Platform,
    Tools,
    failure,
    find_c_toolchain,
    is_native,
    required_linker,
    zig_command,
)
from chanas.errors import TargetError

AARCH64 = "aarch64-linux-gnu"
ANDROID = "aarch64-linux-android"
AARCH64_ELF = 183
needs_zig = pytest.mark.skipif(importlib.util.find_spec("ziglang") is None, reason="ziglang is not installed")


def having(*programs: str, zig: tuple[str, ...] | None = None, **environment: str) -> Tools:
    """A machine of x86-64 with these programs and no others."""
    return Tools(
        which=lambda name: f"/usr/bin/{name}" if name in programs else None,
        zig=lambda: zig,
        machine=lambda: "x86_64",
        environment=environment,
    )


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Object files of one function, by their platform."""
    from tvm import te, tirx
    from tvm.target import Target

    x = te.placeholder((4,), name="x")
    function = te.create_prim_func([x, te.compute((4,), lambda i: x[i] + 1.0)])
    made = {}
    for triple in (AARCH64, f"{ANDROID}29"):
        made[triple] = tmp_path_factory.mktemp("objects") / f"{triple}.o"
        target = Target({"kind": "llvm", "mtriple": triple, "mcpu": "cortex-a72"})
        module = function.with_attr("global_symbol", "main")
        tirx.build(module, target).write_to_file(str(made[triple]))
    return made


def elf_machine(path: Path) -> int:
    number: int = struct.unpack_from("<H", path.read_bytes(), 18)[0]
    return number


# ---- who links ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("triple", "platform"),
    [
        ("aarch64-linux-gnu", Platform("aarch64", "linux-gnu")),
        ("aarch64-unknown-linux-gnu", Platform("aarch64", "linux-gnu")),
        ("aarch64-linux-android", Platform("aarch64", "linux-android", 21)),
        ("aarch64-linux-android29", Platform("aarch64", "linux-android", 29)),
        ("thumbv7m-none-eabi", Platform("thumbv7m", "none-eabi")),
    ],
)
def test_a_triple_names_a_platform(triple: str, platform: Platform) -> None:
    assert Platform.of(triple) == platform


def test_a_machine_links_for_itself() -> None:
    tools = having("ld", "gcc", "aarch64-linux-gnu-ld")
    for triple in ("", "x86_64-linux-gnu", "x86_64-pc-linux-gnu"):
        assert is_native(triple, tools)
        assert required_linker(triple, tools).command == ("ld",)
    for triple in (AARCH64, "x86_64-linux-android", "x86_64-apple-darwin"):
        assert not is_native(triple, tools)


def test_the_systems_linker_goes_before_the_systems_gcc_and_that_before_zig() -> None:
    def command(*programs: str) -> tuple[str, ...]:
        return required_linker("aarch64-unknown-linux-gnu", having(*programs, zig=("zig",))).command

    assert command("aarch64-linux-gnu-ld", "aarch64-linux-gnu-gcc") == ("aarch64-linux-gnu-ld",)
    assert command("aarch64-linux-gnu-gcc") == ("aarch64-linux-gnu-gcc",)
    assert command("ld", "gcc") == ("zig", "ld.lld")


# ---- what to install ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("triple", "tools", "telling"),
    [
        (AARCH64, having("ld", "gcc"), "pip install ziglang.*binutils-aarch64-linux-gnu"),
        (ANDROID, having("ld", "gcc"), "NDK"),
        (ANDROID, having(ANDROID_NDK="/nowhere"), "ANDROID_NDK=/nowhere"),
        ("riscv64-none-elf", having("ld", "gcc"), "riscv64-none-elf was found$"),
        ("", having(), "binutils or gcc"),
    ],
)
def test_without_a_linker_the_error_says_what_to_install(triple: str, tools: Tools, telling: str) -> None:
    with pytest.raises(TargetError, match=telling):
        required_linker(triple, tools)


def test_a_linker_that_refuses_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "a.o").write_text("no object")
    with pytest.raises(TargetError, match=r"^it cannot link a\.o: code 1, no message$"):
        CrossLinker("it", ("false",)).link([tmp_path / "a.o"], tmp_path / "a.so")


def test_a_linker_that_does_not_end_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cross, "_TIMEOUT_S", 0.1)
    with pytest.raises(TargetError, match=r"^it took over 0 s to link a\.o$"):
        CrossLinker("it", ("sh", "-c", "exec sleep 5")).link([tmp_path / "a.o"], tmp_path / "a.so")


# ---- libraries ------------------------------------------------------------------------------------------------------
needs_ld = pytest.mark.skipif(shutil.which(f"{AARCH64}-ld") is None, reason=f"{AARCH64}-ld is not installed")


@pytest.mark.parametrize(
    "tools",
    [pytest.param(having(zig=zig_command()), marks=needs_zig), pytest.param(TOOLS, marks=needs_ld)],
    ids=["zig", "system"],
)
def test_a_linker_links_for_another_processor(objects: dict[str, Path], tools: Tools, tmp_path: Path) -> None:
    required_linker(AARCH64, tools).link([objects[AARCH64]], tmp_path / "a.so")
    assert elf_machine(tmp_path / "a.so") == AARCH64_ELF


def fake_ndk(folder: Path, script: str) -> dict[str, str]:
    clang = folder / "toolchains" / "llvm" / "prebuilt" / "linux-x86_64" / "bin" / "clang"
    clang.parent.mkdir(parents=True)
    clang.write_text(f"#!/bin/sh\n{script}\n")
    clang.chmod(0o755)
    return {"ANDROID_NDK": str(folder)}


@pytest.mark.parametrize(("triple", "level"), [(ANDROID, 21), (f"{ANDROID}29", 29)])
def test_the_ndks_clang_is_told_platform_and_api_level(tmp_path: Path, triple: str, level: int) -> None:
    environment = fake_ndk(tmp_path, f'echo "$@" > {tmp_path}/said')
    required_linker(triple, having(**environment)).link([tmp_path / "a.o"], tmp_path / "a.so")
    assert (tmp_path / "said").read_text().split() == [
        f"--target=aarch64-linux-android{level}",
        "-shared",
        "-s",
        "-nostdlib",
        "-Wl,-z,max-page-size=16384",
        "-o",
        str(tmp_path / "a.so"),
        str(tmp_path / "a.o"),
    ]


@needs_zig
def test_an_object_for_android_links(objects: dict[str, Path], tmp_path: Path) -> None:
    """By LLVM's linker, as in the NDK; whether a phone loads it, nobody has tried."""
    zig = zig_command()
    assert zig is not None
    arguments = ["-shared", "-s", "-z", "max-page-size=16384", "-o", str(tmp_path / "a.so")]
    subprocess.run([*zig, "ld.lld", *arguments, str(objects[f"{ANDROID}29"])], check=True)
    assert elf_machine(tmp_path / "a.so") == AARCH64_ELF


@pytest.mark.parametrize(
    ("lines", "code", "reason"),
    [
        (
            [
                "ld: a.o: in function `main':",
                "a.c:(.text+0x5): undefined reference to `f'",
                "ld returned 1 exit status",
            ],
            1,
            "a.c:(.text+0x5): undefined reference to `f'",
        ),
        (
            ["/usr/bin/ld: cannot find -lf: No such file or directory", "collect2: error: ld returned 1 exit status"],
            1,
            "/usr/bin/ld: cannot find -lf: No such file or directory",
        ),
        (
            [
                "ld.lld: error: undefined symbol: f",
                ">>> referenced by a.c",
                "clang: error: linker command failed with ",
            ],
            1,
            "ld.lld: error: undefined symbol: f",
        ),
        (["/usr/bin/ld: final link failed: No space left on device"], 1, "No space left on device"),
        (["a.c:1:9: warning: odd", "a.c:2:9: error: worse", "1 error generated."], 1, "a.c:2:9: error: worse"),
        (["collect2: error: ld returned 1 exit status"], 1, "collect2: error: ld returned 1 exit status"),
        ([], 1, "code 1, no message"),
        ([], -9, "signal 9 ended it"),
    ],
)
def test_the_reason_of_a_failure_is_its_line(lines: list[str], code: int, reason: str) -> None:
    found = failure("\n".join(lines), code)
    assert found.endswith(reason)


# ---- compilers of C -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("there", "triple", "compiler", "static"),
    [
        ({"cc", "gcc", "ar", "ziglang"}, "", "cc", False),
        ({"cc", "ar"}, "x86_64-linux-gnu", "cc", False),
        ({"clang", "llvm-ar"}, "", "clang", False),
        ({"gcc", "ziglang"}, "", "python -m ziglang cc -target x86_64-linux-musl", True),
        ({"cc", "ar", f"{AARCH64}-gcc", f"{AARCH64}-ar", "ziglang"}, AARCH64, f"{AARCH64}-gcc", True),
        ({"cc", "ar", "ziglang"}, AARCH64, f"python -m ziglang cc -target {AARCH64.replace('gnu', 'musl')}", True),
        ({"cc", "ar"}, "x86_64-unknown-linux-gnu", "cc", False),
        ({f"{AARCH64}-gcc", f"{AARCH64}-ar"}, "aarch64-unknown-linux-gnu", f"{AARCH64}-gcc", True),
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
        (AARCH64, ("cc", "ar"), rf"gcc-{AARCH64}\), or `pip install ziglang`"),
        ("thumbv7m-none-eabi", ("cc", "ar"), "thumbv7m-none-eabi-gcc"),
        ("aarch64-linux-android", ("cc", "ar"), "ANDROID_NDK"),
    ],
)
def test_without_a_compiler_the_error_says_what_to_install(triple: str, there: tuple[str, ...], telling: str) -> None:
    with pytest.raises(TargetError, match=telling):
        find_c_toolchain(triple, having(*there))


needs_cc = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler (cc) is installed")
CC = CToolchain("cc", ("cc",), ("ar",), static=False)


@needs_cc
def test_what_a_compiler_refuses_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "bad.c").write_text("int f(void) { return x; }\nint g(void) { return y; }\n")
    with pytest.raises(TargetError, match=r"^cc failed at `cc .* -c bad.c -o bad.o`: bad.c:1:.*error: .*x") as error:
        CC.compile("bad.c", "bad.o", tmp_path)
    assert "\n" not in str(error.value)


@needs_cc
def test_what_a_linker_misses_is_told(tmp_path: Path) -> None:
    (tmp_path / "main.c").write_text("int missing(void);\nint main(void) { return missing(); }\n")
    with pytest.raises(TargetError, match=r"undefined (reference|symbol).*missing") as error:
        CC.build_program(["main.c"], "program", tmp_path)
    assert "\n" not in str(error.value)
    (tmp_path / "main.c").write_text("int main(void) { return 0; }\n")
    with pytest.raises(TargetError, match="no_such_library"):
        CC.build_program(["main.c", "-lno_such_library"], "program", tmp_path)


def test_androids_compiler_is_that_of_the_ndk(tmp_path: Path) -> None:
    found = find_c_toolchain("aarch64-linux-android34", having(**fake_ndk(tmp_path, "true")))
    folder = tmp_path / "toolchains/llvm/prebuilt/linux-x86_64/bin"
    assert found.compiler == (str(folder / "clang"), "--target=aarch64-linux-android34")
    assert found.archiver == (str(folder / "llvm-ar"),)
    assert found.static
