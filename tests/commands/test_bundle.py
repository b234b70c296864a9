"""`chanas bench` of a tuned network, and `chanas tune` of names that differ from machine to machine."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from chanas.commands import prescheduler
from chanas.commands.prescheduler import _timed_operators
from chanas.commands.process import main
from chanas.workflows.models.operators import OperatorRow
from chanas.workflows.models.saving import SavedModel


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
    assert head.split() == ["median", "spread", "ratio"]
    names = ["chanas", "module alone", "PyTorch eager", "ONNX Runtime", "OpenVINO", "LiteRT"]
    assert [row[:16].strip() for row in rows[:6]] == names
    assert rows[0].endswith("1.00x")
    told, columns, *operators = rows[6:]
    assert told.endswith("operators; the most expensive:")
    heads = ["time", "share", "count", "GFLOP/s", "of", "peak", "trials", "mean", "best", "operator"]
    assert columns.split() == heads
    assert 2 <= len(operators) <= 8
    assert any("conv: conv-16px-3x8-k3s1-relu-float32" in line for line in operators)


def test_a_profile_has_the_operators_in_the_order_of_the_network(
    tuned_folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    options = ["--no-compile", "--no-untuned", "--profile"]
    code, out, _ = run(capfd, "bench", str(tuned_folder), *options)
    table = out.splitlines()[8:]
    assert code == 0
    assert table[0].split()[:3] == ["time", "share", "count"]
    assert "conv: conv-16px-3x8-k3s1-relu-float32" in table[1]
    code, out, _ = run(capfd, "bench", str(tuned_folder), *options, "--json")
    facts = json.loads(out)
    assert code == 0
    assert facts["profile"][0]["name"] == "conv-16px-3x8-k3s1-relu-float32"
    assert sum(row["count"] for row in facts["operators"]) == len(facts["profile"])
    assert [row["name"] for row in facts["rows"]][:2] == ["chanas", "module alone"]
    assert facts["rows"][0]["spread_s"] >= 0.0


def test_the_report_of_a_tuned_network_lies_in_its_folder(
    tuned_folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    copy = Path(shutil.copytree(tuned_folder, tmp_path / "net"))
    code, out, _ = run(capfd, "report", str(copy))
    assert (code, out) == (0, f"{copy / 'report.html'}\n")
    assert "conv-16px-3x8-k3s1-relu-float32" in (copy / "report.html").read_text(encoding="utf-8")


def test_what_tune_prints_ends_with_the_operators(
    tuned_folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    source, records = str(tuned_folder.parent / "net.pt2"), str(tuned_folder.parent)
    options = ["--trials", "1", "--run", records, "--out", str(tmp_path / "net")]
    code, out, _ = run(capfd, "tune", source, *options)
    lines = out.splitlines()
    assert code == 0
    begin = next(i for i, line in enumerate(lines) if line.startswith("operators  "))
    assert any("conv: conv-16px-3x8-k3s1-relu-float32" in line for line in lines[begin:])
    code, out, _ = run(capfd, "tune", source, *options, "--json")
    facts = json.loads(out)
    assert (code, facts["folder"]) == (0, str(tmp_path / "net"))
    (conv,) = (row for row in facts["operators"] if row["name"] == "conv-16px-3x8-k3s1-relu-float32")
    assert conv["trials"] >= 1
    assert conv["best_gflops"] > 0.0
    assert facts["operators_timed"] == "in place"


def test_the_share_of_what_is_not_tuned_is_that_of_the_operators_where_they_stand(
    tuned_folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [OperatorRow("no schedule", "softmax", 1, 1e-3), OperatorRow("conv", "conv-16px", 1, 3e-3)]
    options = ["--trials", "1", "--run", str(tuned_folder.parent), "--out", str(tmp_path / "net")]
    for places, said in ((rows, r"untuned    \D+: 25% of the time"), ([], r"untuned    [^%]+")):
        monkeypatch.setattr(prescheduler, "_timed_operators", lambda _, p=places: (p, "" if p else "elsewhere"))
        code, out, _ = run(capfd, "tune", str(tuned_folder.parent / "net.pt2"), *options)
        assert code == 0
        assert [line for line in out.splitlines() if re.fullmatch(said, line)] != []


def test_what_runs_on_another_device_is_not_timed_after_tuning(tuned_folder: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(tuned_folder, tmp_path / "net"))
    document = json.loads((copy / "tuned.json").read_text(encoding="utf-8"))
    document["target"] |= {"fingerprint": "0123456789ab", "device": "6502"}
    (copy / "tuned.json").write_text(json.dumps(document), encoding="utf-8")
    places, why = _timed_operators(SavedModel(copy))
    assert places == []
    assert "compiled for 6502" in why


def test_a_folder_of_an_older_version_is_timed_without_its_operators(
    tuned_folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    copy = shutil.copytree(tuned_folder, tmp_path / "net")
    document = json.loads((copy / "tuned.json").read_text(encoding="utf-8"))
    del document["hashes"]["module.json"]
    (copy / "tuned.json").write_text(json.dumps(document), encoding="utf-8")
    code, out, _ = run(capfd, "bench", str(copy), "--no-compile", "--no-untuned")
    assert code == 0
    assert out.splitlines()[-1].startswith(f"Operators are not timed: {copy} has no module.json")
    code, _, err = run(capfd, "bench", str(copy), "--no-compile", "--no-untuned", "--profile")
    assert (code, err.splitlines()[-1][:14]) == (1, "chanas: error:")


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
    assert out.splitlines()[4] == (
        "Only chanas is timed: net.pt2, which net was tuned from, is not there; give it as --model FILE"
    )


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
