"""Archives of torch.export: a copy of a stranger's opens, computes the same, and has nothing in it that runs."""

from __future__ import annotations

import io
import json
import math
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from chanas.errors import ModelError
from chanas.models.sources.program_archive import copy_program

CODE = "__import__('os').system('true')"
GRAPH, SAMPLES = "models/model.json", "sample_inputs/model.pt"


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleDict({"conv-1": nn.Conv2d(3, 4, 3)})
        self.register_buffer("scale", torch.ones(1))

    def forward(self, maps: dict[str, torch.Tensor], *, z: torch.Tensor) -> dict[str, torch.Tensor]:
        first = torch.nn.functional.gelu(self.layers["conv-1"](maps["a"]), approximate="tanh") * self.scale
        first = torch.where(first > 0.1, first, -math.inf).masked_fill(first > 2, math.inf)
        return {"first": first, "second": torch.split(z, 2)[1]}


@pytest.fixture(scope="module")
def program() -> Any:
    torch.manual_seed(0)
    return torch.export.export(Net().eval(), ({"a": torch.zeros(1, 3, 8, 8)},), {"z": torch.zeros(4)})


@pytest.fixture(scope="module")
def saved(program: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("programs") / "net.pt2"
    torch.export.save(program, path, extra_files={"note.txt": CODE})
    return path


def rewritten(saved: Path, path: Path, change: Callable[[str, bytes], bytes], **options: Any) -> Path:
    """An archive in which each part is what `change` makes of its name and content."""
    with zipfile.ZipFile(saved) as old, zipfile.ZipFile(path, "w", **options) as new:
        for name in old.namelist():
            new.writestr(name, change(name, old.read(name)))
    return path


def with_graph(saved: Path, path: Path, change: Callable[[Any], object]) -> Path:
    """An archive whose graph was changed in place."""

    def changed(name: str, content: bytes) -> bytes:
        if not name.endswith(GRAPH):
            return content
        graph = json.loads(content)
        change(graph)
        return json.dumps(graph).encode()

    return rewritten(saved, path, changed)


def test_a_copy_computes_the_same(saved: Path, program: Any, tmp_path: Path) -> None:
    copy_program(saved, tmp_path / "copy.pt2")
    given = ({"a": torch.randn(1, 3, 8, 8)},), {"z": torch.randn(4)}
    found = torch.export.load(tmp_path / "copy.pt2").module()(*given[0], **given[1])
    expected = program.module()(*given[0], **given[1])
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[key], expected[key]) for key in expected)


def test_a_copy_is_a_graph_and_raw_tensors(saved: Path, tmp_path: Path) -> None:
    copy_program(saved, tmp_path / "copy.pt2")
    with zipfile.ZipFile(tmp_path / "copy.pt2") as copy:
        assert not any("extra" in name for name in copy.namelist())
        assert copy.read(f"program/data/{SAMPLES}") == b""


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Dictionaries with the keys of all texts in a graph, those of literals left out."""
    entries = value.items() if isinstance(value, dict) else enumerate(value)
    for key, entry in entries:
        if isinstance(entry, dict | list):
            yield from places(entry)
        elif isinstance(entry, str) and isinstance(value, dict) and key != "as_string":
            yield value, key


@pytest.mark.parametrize("is_key", [False, True], ids=["values", "keys"])
def test_no_text_of_a_graph_may_be_code(saved: Path, tmp_path: Path, is_key: bool) -> None:
    with zipfile.ZipFile(saved) as archive:
        (name,) = [n for n in archive.namelist() if n.endswith(GRAPH)]
        text = json.loads(archive.read(name))
    num = len(list(places(text)))
    assert num > 50
    for i in range(num):
        graph = json.loads(json.dumps(text))
        container, key = list(places(graph))[i]
        container[CODE if is_key else key] = container.pop(key) if is_key else CODE
        path = rewritten(saved, tmp_path / "net.pt2", lambda n, c: json.dumps(graph).encode() if n == name else c)  # noqa: B023
        try:
            copy_program(path, tmp_path / "copy.pt2")
        except ModelError:
            continue
        with zipfile.ZipFile(tmp_path / "copy.pt2") as copy:
            assert CODE.encode() not in copy.read(f"program/{GRAPH}")


def nodes(graph: Any) -> Any:
    return graph["graph_module"]["graph"]["nodes"]


@pytest.mark.parametrize(
    "target",
    [
        "torch.os.system",
        "torch.load",
        "torch.ops.aten.from_file.default",
        "torch.ops.load_library",
        "torch.ops.image.write_file.default",
        "torch.ops.aten.__class__",
        "_operator.methodcaller",
        "math.__loader__.load_module",
        "#namespace:operator",
    ],
)
def test_a_program_calls_operators_of_aten_alone(saved: Path, tmp_path: Path, target: str) -> None:
    path = with_graph(saved, tmp_path / "net.pt2", lambda graph: nodes(graph)[0].update(target=target))
    with pytest.raises(ModelError, match=target):
        copy_program(path, tmp_path / "copy.pt2")


def test_sizes_and_guards_that_would_be_evaluated_are_refused_or_left_out(saved: Path, tmp_path: Path) -> None:
    size = {"as_expr": {"expr_str": CODE, "hint": {"as_int": 8}}}
    path = with_graph(saved, tmp_path / "a.pt2", lambda g: nodes(g)[0]["inputs"][0]["arg"].update(as_sym_int=size))
    with pytest.raises(ModelError, match="dynamic_shapes"):
        copy_program(path, tmp_path / "copy.pt2")
    path = with_graph(saved, tmp_path / "b.pt2", lambda graph: graph.update(guards_code=[CODE]))
    copy_program(path, tmp_path / "copy.pt2")
    assert CODE.encode() not in (tmp_path / "copy.pt2").read_bytes()


def test_inputs_in_objects_of_other_classes_are_refused(saved: Path, tmp_path: Path) -> None:
    def change(graph: Any) -> None:
        signature = graph["graph_module"]["module_call_graph"][0]["signature"]
        signature["in_spec"] = signature["in_spec"].replace("builtins.dict", "os.path")

    with pytest.raises(ModelError, match=r"takes or gives a os\.path"):
        copy_program(with_graph(saved, tmp_path / "net.pt2", change), tmp_path / "copy.pt2")


@pytest.mark.parametrize("kind", ["weights", "constants"])
def test_pickled_tensors_and_objects_are_refused(saved: Path, tmp_path: Path, kind: str) -> None:
    entry = {"path_name": "custom_obj_0", "is_param": False, "use_pickle": False, "tensor_meta": None}

    def change(name: str, content: bytes) -> bytes:
        if not name.endswith(f"model_{kind}_config.json"):
            return content
        return json.dumps({"config": {"w": entry}}).encode()

    with pytest.raises(ModelError, match="pickle"):
        copy_program(rewritten(saved, tmp_path / "net.pt2", change), tmp_path / "copy.pt2")


# ---- bombs ----------------------------------------------------------------------------------------------------------
def test_a_compressed_part_is_refused_before_it_is_inflated(saved: Path, tmp_path: Path) -> None:
    path = rewritten(
        saved,
        tmp_path / "net.pt2",
        lambda name, content: bytes(1 << 24) if name.endswith("weight_0") else content,
        compression=zipfile.ZIP_DEFLATED,
    )
    assert path.stat().st_size < 1 << 18
    with pytest.raises(ModelError, match="compressed part"):
        copy_program(path, tmp_path / "copy.pt2")
    assert not (tmp_path / "copy.pt2").exists()


def test_parts_that_lie_over_each_other_are_refused(saved: Path, tmp_path: Path) -> None:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("net/data/weights/weight_0", bytes(1 << 16))
        (first,) = archive.infolist()
        for i in range(100):
            again = zipfile.ZipInfo(f"net/data/weights/weight_{i + 1}")
            again.file_size = again.compress_size = first.file_size
            again.CRC, again.header_offset = first.CRC, first.header_offset
            archive.filelist.append(again)
        archive._didModify = True  # type: ignore[attr-defined]
    (tmp_path / "net.pt2").write_bytes(content.getvalue())
    with pytest.raises(ModelError, match="larger than the file"):
        copy_program(tmp_path / "net.pt2", tmp_path / "copy.pt2")


def test_too_many_parts_are_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "net.pt2", "w") as archive:
        for i in range(10_001):
            archive.writestr(f"net/{i}", b"")
    with pytest.raises(ModelError, match="10001 parts"):
        copy_program(tmp_path / "net.pt2", tmp_path / "copy.pt2")
