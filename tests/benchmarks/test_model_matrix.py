"""The matrix of published networks: what counts as right, what is kept, what the page says; and twenty networks."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

ONES = np.ones(4, np.float32)


@pytest.fixture
def matrix(load: Any) -> ModuleType:
    module: ModuleType = load("model_matrix")
    return module


def row(matrix: ModuleType, stage: str = "right", line: str = "", road: str = "pt2", **facts: Any) -> Any:
    facts = {"without": {"operators": 0.5, "products": 0.25}, "error": 1e-6, "seconds": {"open": 2.0}} | facts
    return matrix.Row(facts.pop("network", "torchvision:some"), road, stage, line, **facts)


@pytest.mark.parametrize(
    ("outputs", "said"),
    [
        ([ONES, ONES * 10.005], ""),
        ([ONES * 1.01, ONES * 10], "output 0 differs by 0.01"),
        ([ONES, ONES * 10.05], "output 1 differs by 0.005"),
        ([ONES, ONES * np.nan], "output 1 differs by nan"),
        ([ONES], "instead of"),
        ([ONES, ONES[:1]], "instead of"),
    ],
)
def test_each_output_is_compared_by_itself(matrix: ModuleType, outputs: list[Any], said: str) -> None:
    line, _ = matrix.difference(outputs, [ONES, ONES * 10])
    assert line.startswith(said) if said.startswith("output") else said in line
    assert bool(line) == bool(said)


def test_outputs_may_be_as_far_from_the_framework_as_it_is_from_float64(matrix: ModuleType) -> None:
    assert not matrix.difference([ONES * 1.005], [ONES], lambda: [ONES * 1.002])[0]
    assert matrix.difference([ONES * 1.05], [ONES], lambda: [ONES * 1.002])[0]


@pytest.mark.parametrize(
    ("stage", "line", "verdict"),
    [
        ("right", "", "right"),
        ("read", "refused: Loop is not there", "refused"),
        ("make", "refused: looks again", "refused"),
        ("export", "TypeError: no", "unexported"),
        ("compare", "output 0 differs", "wrong"),
        ("lower", "ZeroDivisionError", "crash"),
        ("process", "the process took more than 9 s", "crash"),
    ],
)
def test_a_row_has_a_verdict(matrix: ModuleType, stage: str, line: str, verdict: str) -> None:
    assert row(matrix, stage, line).verdict == verdict


def test_a_change_in_either_direction_is_a_surprise(matrix: ModuleType) -> None:
    expected = [{"network": "torchvision:some", "road": "pt2", "stage": "read", "line": "Loop", "cause": "loops"}]
    surprises = matrix.surprises
    assert surprises([row(matrix, "read", "refused: Loop is not there")], expected) == []
    assert len(surprises([row(matrix)], expected)) == 1
    assert len(surprises([row(matrix, "read", "refused: If is not there")], expected)) == 1
    assert len(surprises([row(matrix, "build", "refused: Loop is not there")], expected)) == 1
    assert len(surprises([row(matrix, "read", "Loop")], [])) == 1
    assert surprises([row(matrix)], []) == []


def test_rows_are_kept_and_the_last_of_each_counts(matrix: ModuleType, tmp_path: Path) -> None:
    path, rows = tmp_path / "rows.jsonl", [row(matrix, "build", "no"), row(matrix), row(matrix, road="dynamo")]
    path.write_text("".join(json.dumps(asdict(r)) + "\n" for r in rows) + '{"network": "cut sh')
    assert matrix.kept_rows(path) == rows[1:]
    assert matrix.kept_rows(tmp_path / "none") == []


def test_the_page_gets_the_tables_between_its_markers(
    matrix: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failure = {"network": "timm:other", "road": "dynamo", "stage": "lower", "line": "Zero", "cause": "no | heads"}
    monkeypatch.setattr(matrix, "expected_failures", lambda: [failure])
    rows = [row(matrix), row(matrix, "lower", "ZeroDivisionError", "dynamo", network="timm:other")]
    content = {
        "machine": {"cpu": "Some (family 6)"},
        "date": "2026-11-26T00:00:00+00:00",
        "num_networks": 3,
        "libraries": {"torch": "2.15.0"},
        "rows": [asdict(r) for r in rows],
    }
    page, (begin, end) = tmp_path / "page.md", ("<!-- model_matrix begins -->", "<!-- model_matrix ends -->")
    page.write_text(f"before\n{begin}\nold\n{end}\nafter\n")
    for _ in range(2):
        matrix.write_page(page, {"kind": content})
    text = page.read_text()
    assert text.startswith(f"before\n{begin}\nOn Some, 2026-11-26: 2 of 3 networks")
    assert text.endswith(f"{end}\nafter\n")
    assert "old" not in text
    assert "| torchvision | pt2 | 1 | 1 | 0 | 0 | 0 | 0 | 2 |" in text
    assert "| timm:other | dynamo | lower | no / heads |" in text
    assert "torchvision:some 25%" in text
    with pytest.raises(SystemExit, match="model_matrix begins"):
        page.write_text("")
        matrix.write_page(page, {"kind": content})


def test_a_network_that_ends_its_process_is_a_row_and_the_next_one_is_tried(matrix: ModuleType, tmp_path: Path) -> None:
    server, script = matrix.Server(), tmp_path / "server.py"
    script.write_text(
        "import json, sys\n"
        "for line in sys.stdin:\n"
        "    name, size, roads = json.loads(line)\n"
        "    if name == 'dies': break\n"
        "    for road in roads:\n"
        "        if name == 'ends' and road == 'dynamo': break\n"
        "        row = {'network': name, 'road': road, 'stage': 'right', 'size': size}\n"
        "        print('ROW ' + json.dumps(row), flush=True)\n"
        "    print('END ' + json.dumps('it ended'), flush=True)\n"
    )
    server.command = [*server.command[:1], str(script)]
    found = [r for name in ("some", "ends", "dies", "some") for r in server.tried(matrix.Subject(name), matrix.ROADS)]
    server.close()
    assert [r.stage for r in found] == [*["right"] * 3, "right", "process", "right", *["process"] * 3, *["right"] * 3]
    assert found[4].line == "it ended"


def test_the_networks_are_known_by_their_libraries(matrix: ModuleType) -> None:
    names = [s.name for s in matrix.subjects()]
    assert len(set(matrix.TIMM)) == len(matrix.TIMM) >= 60
    assert len(set(names)) == len(names)
    assert {e["network"] for e in matrix.expected_failures()} <= set(names)


TWENTY = (
    ("torchvision:squeezenet1_1", 64, "torchscript"),
    ("torchvision:mobilenet_v2", 64, "dynamo"),
    ("torchvision:mobilenet_v3_small", 64, "pt2"),
    ("torchvision:mnasnet0_5", 64, "torchscript"),
    ("torchvision:shufflenet_v2_x0_5", 64, "torchscript"),
    ("torchvision:resnet18", 64, "pt2"),
    ("torchvision:regnet_y_400mf", 64, "torchscript"),
    ("torchvision:googlenet", 64, "torchscript"),
    ("torchvision:densenet121", 64, "torchscript"),
    ("torchvision:efficientnet_b0", 64, "torchscript"),
    ("torchvision:convnext_tiny", 64, "torchscript"),
    ("torchvision:vit_b_32", 0, "torchscript"),
    ("torchvision:lraspp_mobilenet_v3_large", 64, "pt2"),
    ("torchvision:fasterrcnn_mobilenet_v3_large_320_fpn", 0, "pt2"),
    ("timm:lcnet_050", 64, "dynamo"),
    ("timm:ghostnet_100", 64, "torchscript"),
    ("timm:nfnet_l0", 64, "torchscript"),
    ("timm:visformer_tiny", 0, "torchscript"),
    ("timm:levit_128s", 0, "pt2"),
    ("timm:mobilevitv2_050", 64, "torchscript"),
)


@pytest.fixture(scope="module")
def servers() -> Iterator[list[Any]]:
    """A server for all networks, as soon as there is one."""
    found: list[Any] = []
    yield found
    for server in found:
        server.close()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "size", "road"), TWENTY)
def test_a_published_network_is_right_or_fails_as_expected(
    matrix: ModuleType, servers: list[Any], name: str, size: int, road: str
) -> None:
    if importlib.util.find_spec(name.partition(":")[0]) is None:
        pytest.skip(f"needs {name.partition(':')[0]}")
    servers[:] = servers or [matrix.Server()]
    (found,) = servers[0].tried(matrix.Subject(name, size), [road])
    assert matrix.surprises([found], matrix.expected_failures()) == []
