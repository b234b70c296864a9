"""chanas/compiler/elf.py: renamed symbols are found under their new names, and only by the linker."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from chanas.compiler.elf import rename_symbols
from chanas.errors import TargetError

needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler (cc) is installed")
KERNEL = """
int outside(int);
__attribute__((weak)) int (*hook)(int) = 0;
int kernel(int x) { return outside(x) + hook(x); }
"""
CALLER = """
int first_kernel(int);
int first_outside(int x) { return 10 * x; }
static int hooked(int x) { return x + 1; }
int (*first_hook)(int) = hooked;
int main(void) { return first_kernel(4) == 45 ? 0 : 1; }
"""


def compile_object(source: str, folder: Path, name: str) -> Path:
    (folder / f"{name}.c").write_text(source)
    subprocess.run(["cc", "-c", f"{name}.c", "-o", f"{name}.o"], cwd=folder, check=True)
    return folder / f"{name}.o"


@needs_compiler
def test_callers_and_what_is_called_meet_under_the_new_names(tmp_path: Path) -> None:
    kernel = compile_object(KERNEL, tmp_path, "kernel")
    caller = compile_object(CALLER, tmp_path, "caller")
    names = ("kernel", "outside", "hook")
    kernel.write_bytes(rename_symbols(kernel.read_bytes(), lambda name, _: f"first_{name}" if name in names else name))
    subprocess.run(["cc", "-o", str(tmp_path / "program"), str(caller), str(kernel)], check=True)
    assert subprocess.run([tmp_path / "program"], check=False).returncode == 0


@needs_compiler
def test_two_renamed_copies_stand_in_one_library_and_export_nothing(tmp_path: Path) -> None:
    kernel = compile_object("int kernel(int x) { return x + 1; }", tmp_path, "kernel").read_bytes()
    copies = []
    for name in ("a", "b"):
        copies.append(tmp_path / f"{name}.o")
        copies[-1].write_bytes(rename_symbols(kernel, lambda s, _, name=name: f"{name}_{s}" if s == "kernel" else s))
    user = compile_object(
        "int a_kernel(int); int b_kernel(int); int both(int x) { return a_kernel(x) * b_kernel(x); }", tmp_path, "user"
    )
    library = tmp_path / "both.so"
    subprocess.run(["cc", "-shared", "-o", str(library), str(user), *map(str, copies)], check=True)
    exported = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True)
    names = {line.split()[-1] for line in exported.stdout.splitlines()}
    assert "both" in names
    assert not names & {"a_kernel", "b_kernel", "kernel"}


@needs_compiler
def test_without_new_names_the_code_is_the_same(tmp_path: Path) -> None:
    content = compile_object(KERNEL, tmp_path, "kernel").read_bytes()
    renamed = tmp_path / "renamed.o"
    renamed.write_bytes(rename_symbols(content, lambda name, _: name))
    sections = [
        subprocess.run(["nm", path], capture_output=True, text=True, check=True).stdout
        for path in (tmp_path / "kernel.o", renamed)
    ]
    assert sections[0] == sections[1]


@pytest.mark.parametrize("content", [b"", b"\xcf\xfa\xed\xfe" + bytes(60), b"\x7fELF\x01\x01" + bytes(60)])
def test_other_formats_are_refused(content: bytes) -> None:
    with pytest.raises(TargetError, match="expected object code in ELF format of 64 bits"):
        rename_symbols(content, lambda name, _: name.upper())
