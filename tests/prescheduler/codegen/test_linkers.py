"""chanas/prescheduler/codegen/linkers.py: who links for which processor, and what to install where nobody does."""

from __future__ import annotations

import importlib.util
import shutil
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from chanas.errors import TargetError
from chanas.prescheduler.codegen import linkers as cross
from chanas.prescheduler.codegen.linkers import (
    CrossLinker,
    Platform,
    find_cross_linker,
    find_linker,
    is_native,
    no_cross_linker,
    required_linker,
)

AARCH64 = "aarch64-linux-gnu"
ANDROID = "aarch64-linux-android"
AARCH64_ELF = 183
needs_zig = pytest.mark.skipif(importlib.util.find_spec("ziglang") is None, reason="ziglang is not installed")

Has = Callable[..., None]


@pytest.fixture
def system_has(monkeypatch: pytest.MonkeyPatch) -> Has:
    """A machine of x86-64 with these programs and no others."""

    def has(*programs: str, zig: bool = False) -> None:
        monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}" if name in programs else None)
        monkeypatch.setattr(cross, "zig_command", lambda: ("zig",) if zig else None)
        monkeypatch.setattr(cross, "this_machine", lambda: "x86_64")

    return has


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


def test_this_machine_links_for_itself(system_has: Has) -> None:
    system_has("ld", "gcc", "aarch64-linux-gnu-ld")
    for triple in ("", "x86_64-linux-gnu", "x86_64-pc-linux-gnu"):
        assert is_native(triple)
        found = find_linker(triple)
        assert found is not None
        assert found.command == ("ld",)
    assert not is_native(AARCH64)
    assert not is_native("x86_64-linux-android")
    assert not is_native("x86_64-apple-darwin")


def test_the_systems_linker_goes_before_the_systems_gcc_and_that_before_zig(system_has: Has) -> None:
    def command(*programs: str) -> tuple[str, ...]:
        system_has(*programs, zig=True)
        found = find_cross_linker("aarch64-unknown-linux-gnu")
        assert found is not None
        return found.command

    assert command("aarch64-linux-gnu-ld", "aarch64-linux-gnu-gcc") == ("aarch64-linux-gnu-ld",)
    assert command("aarch64-linux-gnu-gcc") == ("aarch64-linux-gnu-gcc",)
    assert command("ld", "gcc") == ("zig", "ld.lld")


# ---- what to install ------------------------------------------------------------------------------------------------
def test_without_a_cross_linker_the_error_says_what_to_install(
    system_has: Has, monkeypatch: pytest.MonkeyPatch
) -> None:
    system_has("ld", "gcc")
    monkeypatch.delenv("ANDROID_NDK", raising=False)
    with pytest.raises(TargetError, match=r"^no cross linker for aarch64-linux-gnu was found; `pip install ziglang`"):
        required_linker(AARCH64)
    assert no_cross_linker(AARCH64).endswith("package binutils-aarch64-linux-gnu")
    with pytest.raises(TargetError, match=r"install the Android NDK and let the variable ANDROID_NDK name its folder$"):
        required_linker(ANDROID)
    with pytest.raises(TargetError, match=r"^no cross linker for riscv64-none-elf was found$"):
        required_linker("riscv64-none-elf")


def test_without_any_linker_the_error_says_what_to_install(system_has: Has) -> None:
    system_has()
    with pytest.raises(TargetError, match="expected ld, cc or gcc on the path; install binutils or gcc"):
        required_linker("")


def test_a_folder_that_is_no_ndk_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ANDROID_NDK", str(tmp_path))
    with pytest.raises(TargetError, match=rf"no toolchains/llvm/prebuilt/\*/bin/clang in ANDROID_NDK={tmp_path}; "):
        required_linker(ANDROID)


def test_a_linker_that_refuses_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "a.o").write_text("no object")
    with pytest.raises(TargetError, match=r"^it cannot link a\.o: no message$"):
        CrossLinker("it", ("false",)).link(tmp_path / "a.o", tmp_path / "a.so")


def test_a_linker_that_does_not_end_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cross, "_TIMEOUT_S", 0.1)
    with pytest.raises(TargetError, match=r"^it took over 0 s to link a\.o$"):
        CrossLinker("it", ("sh", "-c", "exec sleep 5")).link(tmp_path / "a.o", tmp_path / "a.so")


# ---- libraries ------------------------------------------------------------------------------------------------------
@needs_zig
def test_zig_links_for_another_processor(
    objects: dict[str, Path], tmp_path: Path, system_has: Has, monkeypatch: pytest.MonkeyPatch
) -> None:
    zig = cross.zig_command()
    system_has()
    monkeypatch.setattr(cross, "zig_command", lambda: zig)
    required_linker(AARCH64).link(objects[AARCH64], tmp_path / "a.so")
    assert elf_machine(tmp_path / "a.so") == AARCH64_ELF


@pytest.mark.skipif(shutil.which("aarch64-linux-gnu-ld") is None, reason="aarch64-linux-gnu-ld is not installed")
def test_the_systems_cross_linker_links_for_another_processor(objects: dict[str, Path], tmp_path: Path) -> None:
    required_linker(AARCH64).link(objects[AARCH64], tmp_path / "a.so")
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
    linker = find_cross_linker(triple, environment)
    assert linker is not None
    linker.link(tmp_path / "a.o", tmp_path / "a.so")
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
    zig = cross.zig_command()
    assert zig is not None
    arguments = ["-shared", "-s", "-z", "max-page-size=16384", "-o", str(tmp_path / "a.so")]
    subprocess.run([*zig, "ld.lld", *arguments, str(objects[f"{ANDROID}29"])], check=True)
    assert elf_machine(tmp_path / "a.so") == AARCH64_ELF
