"""chanas/compiler/cuda/nvrtc.py: the newest copy of NVRTC that knows an architecture compiles for
it; where none does, one line says what each has and what to install."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from chanas.compiler.cuda import nvrtc as module
from chanas.compiler.cuda.nvrtc import OLDER, OLDER_ARCHS, NVRTCError, NVRTCLibrary, library_for, newest_first
from chanas.errors import TargetError

ROOT = Path(__file__).resolve().parents[3]
NEW = NVRTCLibrary("new", (13, 2), ("sm_75", "sm_90"), None)
OLD = NVRTCLibrary("old", (12, 9), ("sm_60", "sm_75", "sm_90"), None)


def installed(monkeypatch: pytest.MonkeyPatch, *libraries: NVRTCLibrary) -> None:
    monkeypatch.setattr(module, "installed", lambda: libraries)


@pytest.mark.parametrize(("arch", "library"), [("sm_90", NEW), ("sm_75", NEW), ("sm_60", OLD)])
def test_the_newest_that_knows_the_architecture_is_taken(
    monkeypatch: pytest.MonkeyPatch, arch: str, library: NVRTCLibrary
) -> None:
    installed(monkeypatch, NEW, OLD)
    assert library_for(arch) == library


def test_what_none_has_is_one_line_with_what_each_has(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, NEW, OLD)
    with pytest.raises(TargetError) as caught:
        library_for("sm_20")
    assert str(caught.value) == (
        "no compiler here has architecture 'sm_20': NVRTC 13.2 has sm_75, sm_90; NVRTC 12.9 has sm_60, sm_75, sm_90"
    )


@pytest.mark.parametrize("arch", OLDER_ARCHS)
def test_what_an_older_copy_has_names_the_package_that_brings_it(monkeypatch: pytest.MonkeyPatch, arch: str) -> None:
    installed(monkeypatch, NEW)
    with pytest.raises(TargetError, match=rf"13\.2 has sm_75, sm_90; `pip install '{OLDER}'` brings one that has it$"):
        library_for(arch)


def test_the_extra_brings_that_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["optional-dependencies"]["pascal"] == [OLDER]


def test_without_any_copy_the_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch)
    with pytest.raises(TargetError, match=r"^NVRTC, NVIDIA's compiler, is not there; `pip install nvidia-cuda-nvrtc`"):
        library_for("sm_90")


def test_newer_versions_come_first_and_each_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "open_library", {"old": OLD, "new": NEW}.__getitem__)
    assert newest_first(["old", "new", "old"]) == (NEW, OLD)


def test_what_is_no_such_library_is_left_out(tmp_path: Path) -> None:
    broken = tmp_path / "libnvrtc.so.12"
    broken.write_bytes(b"no library")
    assert newest_first([str(broken), str(tmp_path / "missing.so"), "libc.so.6"]) == ()


@pytest.mark.skipif(not module.installed(), reason=module.NO_NVRTC)
def test_installed_copies_come_newest_first_and_refuse_bad_options() -> None:
    libraries = module.installed()
    assert sorted((library.version for library in libraries), reverse=True) == [lib.version for lib in libraries]
    with pytest.raises(NVRTCError, match="INVALID_OPTION"):
        libraries[0].compile("", ["--no-such-option"])
