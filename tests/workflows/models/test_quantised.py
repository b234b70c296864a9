"""chanas/workflows/models/calibration.py: a network that is quantised already is tuned in int8 with the numbers of its
file and no pictures, computes what its emulation does, and is near what its framework gives."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from networks import save_onnx
from quantised_networks import SIZE, QuantisedNetwork, save_gated
from typer.testing import CliRunner

import chanas.models.calibration.check as checking
from chanas.bundle.tuned import DOCUMENT
from chanas.commands.main import app
from chanas.compiler.program import Form, MapView
from chanas.core.effort import NetworkEffort
from chanas.core.processor import host_processor
from chanas.core.usage import Usage
from chanas.errors import ChanasError, MeasureError
from chanas.prescheduler.layouts import LayoutGraph
from chanas.workflows.models.chain import LoadedModel, Model, TunedModel

pytestmark = pytest.mark.skipif("avx2" not in host_processor().used_flags, reason="int8 needs AVX2")
INT8, EFFORT = Usage(dtype="int8"), NetworkEffort(trials=1)


def all_in_int8(patch: pytest.MonkeyPatch) -> None:
    """All operators in int8 that can be, whatever their time is."""
    chosen = LayoutGraph.chosen

    def other(graph: LayoutGraph, *limits: object) -> object:
        pairs = zip(graph.numbers, graph.nodes, strict=False)
        forms: dict[int, Form] = {n: max(node, key=lambda form: form.dtype == "int8") for n, node in pairs}
        return forms, chosen(graph)[1]

    patch.setattr(LayoutGraph, "chosen", other)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("quantised")


@pytest.fixture(scope="module")
def source(place: Path) -> Path:
    return save_gated(place / "net.onnx", "int8")


@pytest.fixture(scope="module")
def loaded(source: Path) -> LoadedModel:
    return Model.load(source)


@pytest.fixture(scope="module")
def tuned(place: Path, loaded: LoadedModel) -> TunedModel:
    with pytest.MonkeyPatch.context() as patch:
        all_in_int8(patch)
        return loaded.tune(INT8, effort=EFFORT, run=place / "run", progress=False)


def test_operators_in_int8_are_near_the_file(tuned: TunedModel) -> None:
    assert tuned.agreement is not None
    assert tuned.agreement.num_int8 == tuned.agreement.num_operators == 10
    assert tuned.agreement.error < 1e-2
    assert tuned.agreement.allowed is None
    assert "the framework's outputs of the file" in tuned.agreement.line()


def test_operators_in_int8_have_the_whole_weights_of_the_file(tuned: TunedModel) -> None:
    found = [o.numbers for o in tuned.program.tuned if o.numbers is not None and o.numbers.steps is not None]
    assert len(found) == 7
    for numbers in found:
        assert numbers.numbers is not None
        assert np.abs(numbers.numbers).max() == 60


def test_outputs_are_rounded_as_in_the_file(tuned: TunedModel, place: Path) -> None:
    """They are whole numbers of its last step."""
    folder = place / "out"
    tuned.build().save(folder)
    x = np.random.default_rng(0).standard_normal((1, 3, SIZE, SIZE), dtype=np.float32)
    numbers = Model.open(folder).run(x)[0] / np.float32(0.01)
    np.testing.assert_allclose(numbers, np.rint(numbers), atol=1e-3)
    expected = tuned.loaded.opened.answer([x])[0] / np.float32(0.01)
    assert np.abs(numbers - expected).max() <= 3


def test_an_operator_that_computes_other_numbers_is_an_error(
    place: Path, loaded: LoadedModel, tuned: TunedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed = checking.computed

    def other(*given: object, **more: object) -> object:
        found = computed(*given, **more)  # type: ignore[arg-type]
        return found + found.dtype.type(2)

    monkeypatch.setattr(checking, "computed", other)
    all_in_int8(monkeypatch)
    with pytest.raises(MeasureError, match=r"operator \S+-int8 in int8 computes other numbers than its emulation"):
        loaded.tune(INT8, effort=EFFORT, run=place / "run", progress=False)


def test_a_command_tunes_and_tells(source: Path, place: Path) -> None:
    out = place / "told"
    line = ["tune", str(source), "--dtype", "int8", "--trials", "1", "--run", str(place / "run"), "--out", str(out)]
    result = CliRunner().invoke(app, line)
    assert result.exit_code == 0, result.output
    assert re.search(r"int8 +ranges and weights of the file; 10 of 10 operators can be in int8", result.output)
    document = json.loads((out / DOCUMENT).read_text())
    assert document["int8"]["method"] == "file"
    assert document["int8"]["num_able"] == 10


@pytest.mark.parametrize(("step", "is_whole"), [(0.03, True), (0.05, False)], ids=["same grid", "other grid"])
def test_joined_maps_are_joined_in_int8_where_they_have_one_grid(
    step: float, is_whole: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = QuantisedNetwork()
    x = net.rounded(net.conv(net.rounded("x", 0.04, 128), 0.04, (16, 3, 3, 3), "first"), 0.03, 0)
    one = net.rounded(net.conv(x, 0.03, (16, 16, 1, 1), "one"), 0.03, 0)
    other = net.rounded(net.conv(x, 0.03, (32, 16, 1, 1), "other"), 0.03, 0)
    joined = net.rounded(net.add("Concat", [one, other], "joined", axis=1), step, 0)
    net.rounded(net.conv(joined, step, (5, 48, 10, 10), "last"), 0.01, 128, "y")
    loaded = Model.load(net.save(tmp_path / "net.onnx", (1, 3, SIZE, SIZE), ["y"]))
    all_in_int8(monkeypatch)
    made = loaded.tune(INT8, effort=EFFORT, run=tmp_path / "run", progress=False)
    assert made.agreement is not None
    assert made.agreement.num_int8 == 4
    assert made.agreement.error < 1e-2
    assert made.layouts is not None
    [view] = (o for o in made.layouts.joint.program.operations if isinstance(o, MapView))
    assert (view.value.dtype == "uint8") == is_whole


def test_without_int8_its_roundings_are_computed_and_compared_as_exactly_as_the_framework_is(tmp_path: Path) -> None:
    net = QuantisedNetwork()
    net.rounded(net.conv(net.rounded("x", 0.04, 128), 0.04, (4, 3, 3, 3), "conv"), 0.03, 0, "y")
    loaded = Model.load(net.save(tmp_path / "net.onnx", (1, 3, SIZE, SIZE), ["y"]))
    made = loaded.tune(Usage(), effort=NetworkEffort(trials=0), run=tmp_path / "run", progress=False)
    assert made.calibration is None
    assert "round" in {operation.name for operation in made.program.others}
    assert all(draw.allowed[0].max() < 1.0 for draw in made.reference.draws)


REFUSED = {
    "a quantised one and pictures": (save_gated, "pictures", "is quantised already, and has its ranges in the file"),
    "another one without pictures": (save_onnx, None, "--dtype int8 and --calibration FOLDER go together"),
}


@pytest.mark.parametrize(("save", "pictures", "message"), REFUSED.values(), ids=REFUSED)
def test_what_says_twice_or_nowhere_what_numbers_stand_for_is_refused_in_one_line(
    save: object, pictures: str | None, message: str, tmp_path: Path
) -> None:
    assert callable(save)
    made = Model.load(save(tmp_path / "net.onnx"))
    with pytest.raises(ChanasError, match=re.escape(message)) as error:
        made.tune(INT8, effort=NetworkEffort(trials=1, calibration=pictures), run=tmp_path / "run", progress=False)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()
