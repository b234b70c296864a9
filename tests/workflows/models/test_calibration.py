"""chanas/workflows/models/calibration.py: a network in int8 is calibrated with pictures, computes what its emulation
does, and is near the one in float32; what it cannot be calibrated with is told in one line."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from networks import save_program
from PIL import Image
from torch import nn
from typer.testing import CliRunner

import chanas.models.calibration.calibrate as calibrate_module
import chanas.models.calibration.check as checking
from chanas.bundle.tuned import DOCUMENT
from chanas.commands.main import app
from chanas.compiler.program import Form, MapView, Program
from chanas.core.effort import NetworkEffort
from chanas.core.processor import host_processor
from chanas.core.usage import Usage
from chanas.devices.host import load_target
from chanas.errors import ChanasError, ConfigError, MeasureError
from chanas.prescheduler.layouts import LayoutGraph
from chanas.workflows.models.chain import LoadedModel, Model, TunedModel

pytestmark = pytest.mark.skipif("avx2" not in host_processor().used_flags, reason="int8 needs AVX2")
SIZE, INT8 = 12, Usage(dtype="int8")
LANES = load_target("cpu", 1).vector_lanes


class Gated(nn.Module):
    """A block with squeeze-excite and a residual between two convolutions, and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU())
        self.aside = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU(), nn.MaxPool2d(3, 1, 1))
        self.expand = nn.Sequential(nn.Conv2d(16, 32, 1), nn.Hardswish())
        self.spatial = nn.Sequential(nn.Conv2d(32, 32, 3, 1, 1, groups=32), nn.Hardswish())
        self.squeeze = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(32, 8, 1), nn.ReLU(), nn.Conv2d(8, 32, 1))
        self.project = nn.Conv2d(32, 16, 1)
        self.last = nn.Sequential(nn.Conv2d(16, 24, 3, 2, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.classes = nn.Linear(24, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x) + self.aside(x)
        inner = self.spatial(self.expand(x))
        inner = inner * nn.functional.hardsigmoid(self.squeeze(inner))
        found: torch.Tensor = self.classes(self.last(x + self.project(inner)))
        return found


class Moving(nn.Module):
    """Maps that are joined, taken apart, pooled, made larger and shuffled between convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 2 * LANES, 3, 1, 1), nn.ReLU())
        self.left, self.right, self.small = (nn.Conv2d(LANES, LANES, size, 1, size // 2) for size in (1, 3, 1))
        self.both = nn.Sequential(nn.Conv2d(2 * LANES, 2 * LANES, 1), nn.LeakyReLU(0.1))
        self.last = nn.Sequential(nn.Conv2d(5 * LANES, 24, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.classes = nn.Linear(24, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        half = torch.relu(self.left(x[:, LANES:]))
        joined = torch.cat((torch.relu(self.right(half)), half), 1)
        whole = torch.cat((x, self.both(nn.functional.channel_shuffle(joined, 2))), 1)
        small = torch.relu(self.small(nn.functional.max_pool2d(half, 2, 2)))
        large = nn.functional.interpolate(small, scale_factor=2.0)
        found: torch.Tensor = self.classes(self.last(torch.cat((nn.functional.max_pool2d(whole, 3, 1, 1), large), 1)))
        return found


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("int8")


@pytest.fixture(scope="module")
def pictures(place: Path) -> Path:
    folder, rng = place / "pictures", np.random.default_rng(0)
    folder.mkdir()
    for number in range(16):
        small = rng.integers(0, 256, (4, 4, 3), dtype=np.uint8)
        Image.fromarray(small).resize((SIZE, SIZE), Image.Resampling.BICUBIC).save(folder / f"{number}.png")
    return folder


@pytest.fixture(scope="module")
def source(place: Path) -> Path:
    torch.manual_seed(0)
    return save_program(Gated(), [torch.zeros(1, 3, SIZE, SIZE)], place / "net.pt2")


@pytest.fixture(scope="module")
def loaded(source: Path) -> LoadedModel:
    return Model.load(source).for_pictures({"preset": "unit"})


def effort(pictures: Path) -> NetworkEffort:
    return NetworkEffort(trials=1, calibration=str(pictures))


def in_int8(graph: LayoutGraph) -> dict[int, Form]:
    """All operators in int8 that can be, whatever their time is."""
    pairs = zip(graph.numbers, graph.nodes, strict=False)
    return {number: max(node, key=lambda form: form.dtype == "int8") for number, node in pairs}


@pytest.fixture(scope="module")
def tuned(place: Path, loaded: LoadedModel, pictures: Path) -> TunedModel:
    with pytest.MonkeyPatch.context() as patch:
        chosen = LayoutGraph.chosen
        patch.setattr(LayoutGraph, "chosen", lambda graph, *_limits: (in_int8(graph), chosen(graph)[1]))
        return loaded.tune(INT8, effort=effort(pictures), run=place / "run", progress=False)


def test_operators_in_int8_are_near_float32(tuned: TunedModel) -> None:
    assert tuned.agreement is not None
    assert tuned.agreement.num_int8 >= 6
    assert tuned.agreement.error < 1e-3
    assert tuned.agreement.num_pictures == 16


def test_operators_are_tried_in_int8_however_little_time_there_is(
    place: Path, loaded: LoadedModel, pictures: Path, tmp_path: Path
) -> None:
    hasty = NetworkEffort(minutes=1e-3, calibration=str(pictures))
    made = loaded.tune(INT8, effort=hasty, run=tmp_path / "run", progress=False)
    assert made.layouts is not None
    assert sum(any("int8" in form for form in choice.seconds) for choice in made.layouts.choices) >= 6


def test_what_only_moves_numbers_moves_those_of_int8(place: Path, pictures: Path) -> None:
    torch.manual_seed(0)
    source = save_program(Moving(), [torch.zeros(1, 3, SIZE, SIZE)], place / "moving.pt2")
    loaded = Model.load(source).for_pictures({"preset": "unit"})
    with pytest.MonkeyPatch.context() as patch:
        chosen = LayoutGraph.chosen
        patch.setattr(LayoutGraph, "chosen", lambda graph, *_limits: (in_int8(graph), chosen(graph)[1]))
        made = loaded.tune(INT8, effort=effort(pictures), run=place / "run", progress=False)
    assert made.layouts is not None
    program, agreement = made.layouts.joint.program, made.layouts.joint.agreement
    assert agreement is not None
    assert agreement.error < 1e-2
    assert {o.name: o.value.dtype for o in program.others if o.keeps_form} == {
        "max_pool2d": "uint8",
        "repeat": "uint8",
        "channels moved": "uint8",
    }
    views = [o for o in program.operations if isinstance(o, MapView)]
    assert len(views) == 2
    assert {view.value.dtype for view in views} == {"uint8"}
    folder = place / "moved"
    made.build().save(folder)
    x = [np.random.default_rng(0).random((1, 3, SIZE, SIZE), dtype=np.float32)]  # in the range of pictures
    np.testing.assert_allclose(Model.open(folder).run(*x)[0], loaded.opened.answer(x)[0], atol=0.1)


def test_a_calibration_has_the_best_of_its_methods(tuned: TunedModel) -> None:
    found = tuned.calibration
    assert found is not None
    assert found.errors[found.method] == min(found.errors.values()) >= found.error > 0
    assert len(found.errors) == 4


def test_operators_share_the_error_of_the_network(tuned: TunedModel) -> None:
    found = tuned.calibration
    assert found is not None
    assert sum(found.losses.values()) == pytest.approx(found.error)
    assert all(loss >= 0 for loss in found.losses.values())


def test_operators_that_lose_too_much_stay_in_float32(place: Path, loaded: LoadedModel, pictures: Path) -> None:
    """Whatever their time: in int8 they would all be far faster here."""
    strict = dataclasses.replace(effort(pictures), max_error=1e-12)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LayoutGraph, "of", faster_in_int8(LayoutGraph.of))
        made = loaded.tune(INT8, effort=strict, run=place / "run", progress=False)
    assert made.agreement is None or made.agreement.num_int8 < 3  # those that lose nothing
    assert made.layouts is not None
    assert len(made.layouts.sensitive) >= 4
    assert any("not in int8 for accuracy" in line for line in made.layouts.lines(made.program))


@pytest.mark.skipif("avx512_bf16" not in host_processor().used_flags, reason="the processor has no AVX512_BF16")
def test_operators_in_bfloat16_and_in_int8_are_neighbours(place: Path, loaded: LoadedModel, pictures: Path) -> None:
    def by_turns(graph: LayoutGraph, *limits: object) -> object:
        nodes = zip(itertools.cycle(("int8", "bfloat16")), graph.numbers, graph.nodes)
        return {n: max(node, key=lambda form: form.dtype == dtype) for dtype, n, node in nodes}, chosen(graph)[1]

    chosen = LayoutGraph.chosen
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LayoutGraph, "chosen", by_turns)
        made = loaded.tune(INT8, effort=effort(pictures), run=place / "run", progress=False)
    assert made.layouts is not None
    assert any(re.search(r"bfloat16to\d+-int8-", key) for key, _ in made.layouts.copies)
    assert any(re.search(r"int8to\d+-bfloat16-", key) for key, _ in made.layouts.copies)
    assert made.agreement is not None
    assert made.agreement.error < 1e-3
    assert {o.form.dtype for o in made.layouts.joint.program.tuned} >= {"int8", "bfloat16"}


def test_losses_that_were_taken_for_too_small_are_measured_and_chosen_by_again(
    place: Path, loaded: LoadedModel, pictures: Path, tuned: TunedModel
) -> None:
    """A hundredth of each loss is expected, and less is allowed than all operators in int8 lose."""
    assert tuned.agreement is not None
    strict = dataclasses.replace(effort(pictures), max_error=tuned.agreement.error / 3)
    losses = calibrate_module._losses
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LayoutGraph, "of", faster_in_int8(LayoutGraph.of))
        patch.setattr(calibrate_module, "_losses", lambda *given: {n: x / 100 for n, x in losses(*given).items()})
        made = loaded.tune(INT8, effort=strict, run=place / "run", progress=False)
    assert made.agreement is not None
    assert made.agreement.error <= strict.max_error
    assert 0 < made.agreement.num_int8 < tuned.agreement.num_int8


def faster_in_int8(of: Callable[..., LayoutGraph]) -> Callable[..., LayoutGraph]:
    """The graph of measured seconds, a thousandth of them in int8."""

    def other(program: Program, seconds: Mapping[int, Mapping[Form, float]], changes: object) -> LayoutGraph:
        made = {n: {f: s / 1000 if f.dtype == "int8" else s for f, s in own.items()} for n, own in seconds.items()}
        return of(program, made, changes)

    return other


def test_gates_and_logits_stay_in_float32(tuned: TunedModel) -> None:
    keys = [choice.workload.key for choice in tuned.tuned.choices.values()]
    assert any(re.search(r"-scaled.*-int8", key) for key in keys)
    assert any(key.startswith("pool") and key.endswith("wide-int8") for key in keys)
    assert tuned.program.value(tuned.program.outputs[0]).dtype == "float32"


def test_an_operator_that_computes_other_numbers_is_an_error(
    place: Path, loaded: LoadedModel, pictures: Path, tuned: TunedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed, chosen = checking.computed, LayoutGraph.chosen

    def other(*given: object, **more: object) -> object:
        found = computed(*given, **more)  # type: ignore[arg-type]
        return found + found.dtype.type(2)

    monkeypatch.setattr(checking, "computed", other)
    monkeypatch.setattr(LayoutGraph, "chosen", lambda graph, *_limits: (in_int8(graph), chosen(graph)[1]))
    with pytest.raises(MeasureError, match=r"operator \S+-int8 in int8 computes other numbers than its emulation"):
        loaded.tune(INT8, effort=effort(pictures), run=place / "run", progress=False)


def test_a_command_tunes_and_tells(source: Path, pictures: Path, tmp_path: Path) -> None:
    options = ["--dtype", "int8", "--calibration", str(pictures), "--preprocess", "unit", "--trials", "1"]
    line = ["tune", str(source), *options]
    result = CliRunner().invoke(app, [*line, "--run", str(tmp_path), "--out", str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    assert re.search(r"int8 +ranges by .*, of 16 inputs", result.output)
    document = json.loads((tmp_path / "out" / DOCUMENT).read_text())
    assert document["target"]["dtype"] == "int8"
    assert document["int8"]["num_inputs"] == 16
    assert document["int8"]["method"] in document["int8"]["errors"]


REFUSED = {
    "int8 without pictures": (Usage(dtype="int8"), None, "--dtype int8 and --calibration FOLDER go together"),
    "pictures without int8": (Usage(), "PICTURES", "--dtype int8 and --calibration FOLDER go together"),
    "no folder": (INT8, "nowhere", "expected a folder of pictures to calibrate with, got nowhere"),
    "too few": (INT8, "FEW", "at least 8 pictures to calibrate with"),
    "one colour": (INT8, "FLAT", "has one colour"),
    "damaged": (INT8, "DAMAGED", "0.png"),
}


@pytest.mark.parametrize(("usage", "folder", "message"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_calibrate_is_refused_in_one_line(
    usage: Usage, folder: str | None, message: str, loaded: LoadedModel, pictures: Path, tmp_path: Path
) -> None:
    named = {"PICTURES": pictures, **{name: tmp_path / name for name in ("FEW", "FLAT", "DAMAGED")}}
    for name, number in (("FEW", 7), ("FLAT", 8), ("DAMAGED", 8)):
        named[name].mkdir()
        for i in range(number):
            Image.new("RGB", (SIZE, SIZE), (10, 200, 30)).save(named[name] / f"{i}.png")
    (named["DAMAGED"] / "0.png").write_bytes((named["DAMAGED"] / "0.png").read_bytes()[:40])
    given = None if folder is None else str(named.get(folder, folder))
    with pytest.raises(ChanasError, match=re.escape(message)) as error:
        loaded.tune(usage, effort=NetworkEffort(trials=1, calibration=given), run=tmp_path / "run", progress=False)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()


def test_a_network_that_is_no_classifier_can_be_calibrated_with_pictures(place: Path) -> None:
    """Its output is a map."""
    source = save_program(nn.Conv2d(3, 8, 3), [torch.zeros(1, 3, SIZE, SIZE)], place / "map.pt2")
    loaded = Model.load(source)
    with pytest.raises(ConfigError, match="map is no classifier of pictures"):
        loaded.for_pictures({"preset": "unit"})
    assert loaded.for_pictures({"preset": "unit"}, to_calibrate=True).pictures["preprocess"]["resolution"] == SIZE
    with pytest.raises(ConfigError, match="map is no classifier of pictures"):
        loaded.for_pictures({"preset": "unit"}, labels=place / "labels.txt", to_calibrate=True)


def test_pictures_that_nobody_prepares_are_refused(loaded: LoadedModel, pictures: Path, tmp_path: Path) -> None:
    unprepared = dataclasses.replace(loaded, pictures={"preprocess": None, "class_names": None})
    with pytest.raises(ConfigError, match="not known how pictures are prepared for net; give --preprocess imagenet"):
        unprepared.tune(INT8, effort=effort(pictures), run=tmp_path / "run", progress=False)
