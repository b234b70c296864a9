"""chanas/commands/records: what `chanas records propose` prints and writes."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from chanas.commands.main import app

TRUTH = {
    (tile, layout): 3.0 * abs(tile - 5) + (layout == "NHWC") + 1.0 for tile in range(8) for layout in ("NCHW", "NHWC")
}


def invoke(*arguments: str | Path) -> Any:
    return CliRunner().invoke(app, ["records", *map(str, arguments)])


@pytest.fixture
def kernels(tmp_path: Path) -> Path:
    """Sixteen configurations that took twice as long on an old device as on the new one, where none was measured."""
    rows = [f"{tile},{layout},{2.0 * ms}," for (tile, layout), ms in TRUTH.items()]
    path = tmp_path / "kernels.csv"
    path.write_text("\n".join(["tile,layout,old_ms,new_ms", *rows]) + "\n", encoding="utf-8")
    return path


def fill_in(path: Path) -> list[tuple[int, str]]:
    """Measure what a file proposes, and write it; what was measured."""
    rows = list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))
    done = []
    for row in rows:
        if row["new_proposed"]:
            done.append((int(row["tile"]), row["layout"]))
            row["new_ms"] = str(TRUTH[done[-1]])
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return done


def test_what_is_measured_and_given_again_leads_to_other_configurations(kernels: Path) -> None:
    out = kernels.parent / "next.csv"
    first = invoke("propose", kernels, "--device", "new", "--num", "1", "--out", out)
    assert first.output.splitlines()[-2:] == ["next       tile 5, layout NCHW", f"file       {out}"]
    tried = fill_in(out)
    assert tried == [(5, "NCHW")]
    for _ in range(3):
        done = invoke("propose", out, "--device", "new", "--num", "5", "--out", out)
        assert "best       1 ms: tile 5, layout NCHW" in done.output
        tried += fill_in(out)
    assert sorted(tried) == sorted(TRUTH)


def test_a_proposal_and_a_played_search_are_one_line_of_json(kernels: Path) -> None:
    (line,) = invoke("propose", kernels, "--device", "new", "--json").output.splitlines()
    proposed = json.loads(line)
    assert proposed["next"][0] == {"configuration": {"tile": "5", "layout": "NCHW"}, "predicted_ms": None}
    assert len(proposed["next"]) == 8
    options = ("--simulate", "--seeds", "2", "--trials", "3", "--json")
    kernels.write_text(kernels.read_text(encoding="utf-8").replace(",\n", ",7\n"), encoding="utf-8")
    (line,) = invoke("propose", kernels, "--device", "old", *options).output.splitlines()
    played = json.loads(line)
    assert (played["num_trials"], played["num_seeds"], played["num_configurations"]) == (3, 2, 16)
    assert played["within_5_percent"]["helped"] <= 4.0
