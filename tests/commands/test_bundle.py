"""`chanas bench` of a tuned network, and `chanas tune` of names that differ from machine to machine."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from chanas.commands.process import main


def run(capfd: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as end:
        main(list(arguments))
    out, err = capfd.readouterr()
    return int(end.value.code or 0), out, err


def test_a_tuned_network_is_timed_beside_what_is_there(tuned_folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capfd, "bench", str(tuned_folder), "--no-compile", "--no-untuned")
    first, head, *rows = out.splitlines()
    assert code == 0
    assert first.startswith("net, 1 thread(s), ")
    assert head.split() == ["median", "ratio"]
    assert [row[:16].strip() for row in rows] == ["chanas", "module alone", "PyTorch eager", "ONNX Runtime", "OpenVINO"]
    assert rows[0].endswith("1.00x")


def test_without_its_source_a_line_says_why(
    tuned_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    copy = shutil.copytree(tuned_folder, tmp_path / "net")
    document = copy / "tuned.json"
    source = str(tuned_folder.parent / "net.pt2")
    document.write_text(document.read_text(encoding="utf-8").replace(source, "net.pt2"), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    code, out, _ = run(capfd, "bench", "net")
    assert code == 0
    assert [line[:16].strip() for line in out.splitlines()[2:4]] == ["chanas", "module alone"]
    assert out.splitlines()[4:] == [
        "Only chanas is timed: net.pt2, which net was tuned from, is not there; give it as --model FILE"
    ]


def test_a_model_that_is_another_ends_in_one_line(tuned_onnx_folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder, other = tuned_onnx_folder.parent / "net", tuned_onnx_folder.parent / "other.onnx"
    code, out, err = run(capfd, "bench", str(folder), "--model", str(other))
    assert (code, out) == (1, "")
    assert err.startswith(f"chanas: error: {other} is not the network that")
    assert err.count("\n") == 1


def test_a_tuned_network_has_one_target(tuned_folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capfd, "bench", str(tuned_folder), "--target", "cpu")
    assert (code, err) == (1, "chanas: error: --target goes with bundles; a tuned network has one target\n")


def test_an_unknown_network_of_torchvision_is_one_line_that_names_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, err = run(capfd, "tune", "torchvision:resnet19")
    assert code == 1
    assert err.startswith("chanas: error: unknown network of torchvision 'resnet19'; known: ")
    assert "resnet18" in err
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
