"""workflows/models/layouts.py: a network tuned in several layouts is right, says what it chose, and is never the slower
one."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from networks import save_program
from torch import nn
from typer.testing import CliRunner

from chanas.bundle.tuned import DOCUMENT
from chanas.commands.main import app
from chanas.compiler.program import Form
from chanas.core.effort import NetworkEffort
from chanas.core.processor import host_processor
from chanas.core.target import HardwareTarget
from chanas.core.usage import Usage
from chanas.devices.host import load_target
from chanas.errors import TargetError
from chanas.models.proof import proving
from chanas.prescheduler import program
from chanas.prescheduler.layouts import LayoutGraph
from chanas.workflows.models.chain import LoadedModel, Model, TunedModel
from chanas.workflows.models.layouts import forms_of
from chanas.workflows.models.operators import operator_places

LANES = load_target("cpu").vector_lanes
OWN, OTHER = Form(LANES), Form(8 if LANES != 8 else 16)
EFFORT = NetworkEffort(trials=1, layouts=f"{OWN},{OTHER}")
SHAPE = (1, 3, 10, 10)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("layouts")


@pytest.fixture(scope="module")
def source(place: Path) -> Path:
    torch.manual_seed(0)
    first = nn.Conv2d(3, 2 * LANES, 3, padding=1), nn.ReLU(), nn.MaxPool2d(3, 1, 1)
    middle = nn.Conv2d(2 * LANES, 2 * LANES, 3, padding=1), nn.ReLU(), nn.Conv2d(2 * LANES, 40, 1), nn.ReLU()
    layers = *first, *middle, nn.AdaptiveAvgPool2d(1), nn.Flatten()
    return save_program(nn.Sequential(*layers, nn.Linear(40, 5)), [torch.zeros(SHAPE)], place / "net.pt2")


@pytest.fixture(scope="module")
def loaded(source: Path) -> LoadedModel:
    return Model.load(source)


@pytest.fixture(scope="module")
def tuned(place: Path, loaded: LoadedModel) -> TunedModel:
    return loaded.tune(effort=EFFORT, run=place / "run", progress=False)


@pytest.fixture(scope="module")
def in_the_other(place: Path, loaded: LoadedModel) -> TunedModel:
    """The same with a choice that has all operators but the first in the other layout."""
    with pytest.MonkeyPatch.context() as patch:
        chosen = LayoutGraph.chosen

        def planted(graph: LayoutGraph, *_limits: object) -> object:
            _, proof = chosen(graph)
            forms = graph.single(OTHER)
            return {**forms, min(forms): OWN}, proof

        patch.setattr(LayoutGraph, "chosen", planted)
        made = loaded.tune(effort=EFFORT, run=place / "run", progress=False)
    return dataclasses.replace(made, best=None)


def test_the_joint_choice_takes_no_more_measured_time_than_any_single_layout(tuned: TunedModel) -> None:
    search = tuned.layouts
    assert search is not None
    assert search.own == OWN
    assert set(search.singles) == {OWN, OTHER}
    assert search.left_out == {}
    assert all(search.joint.seconds <= single.seconds * (1 + 1e-9) for single in search.singles.values())
    assert search.singles[OWN].num_changes == 0
    assert math.isfinite(search.singles[OTHER].seconds)
    assert search.proof.gap < 1e-6
    said = "\n".join(search.lines(search.joint.program))
    assert "optimal: no choice takes less than" in said
    assert f"{OTHER}: " in said


def test_operators_of_which_the_own_layout_is_a_guess_may_have_another_that_was_measured(
    place: Path, loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    tune_program = program.tune_program

    def without_time(*given: Any, **named: Any) -> program.TunedOperators:
        found = tune_program(*given, **named)
        if named.get("keep_best") is None:  # not in the own layout
            return found
        guessed = {k: dataclasses.replace(c, seconds=1.0, taken_from="elsewhere") for k, c in found.choices.items()}
        return dataclasses.replace(found, choices=guessed)

    monkeypatch.setattr(program, "tune_program", without_time)
    search = loaded.tune(effort=EFFORT, run=place / "run", progress=False).layouts
    assert search is not None
    assert all(choice.chosen == str(OTHER) for choice in search.choices if str(OTHER) in choice.seconds)
    assert any(choice.chosen == str(OTHER) for choice in search.choices)


def test_records_of_a_layout_are_used_again(tuned: TunedModel, place: Path, loaded: LoadedModel) -> None:
    again = loaded.tune(effort=EFFORT, run=place / "run", progress=False)
    assert tuned.tuned.num_new_trials > 0
    assert again.tuned.num_new_trials == 0
    assert again.layouts is not None
    assert tuned.layouts is not None
    assert again.layouts.operators == tuned.layouts.operators


def test_a_network_in_mixed_layouts_is_right_and_says_which_they_are(in_the_other: TunedModel, tmp_path: Path) -> None:
    folder = in_the_other.build().save(tmp_path / "net").folder
    document = json.loads((folder / DOCUMENT).read_text(encoding="utf-8"))
    assert {entry.get("lanes", LANES) for entry in document["operators"]} == {LANES, OTHER.lanes}
    assert document["layouts"]["changes"] > 0
    assert document["layouts"]["joint_is_kept"]
    assert set(document["layouts"]["single_s"]) == {str(OWN), str(OTHER)}
    network, opened = Model.open(folder), in_the_other.loaded.opened
    inputs = opened.random_inputs(seed=3)
    np.testing.assert_allclose(network.run(*inputs)[0], opened.answer(inputs)[0], atol=1e-4)
    places = operator_places(network)
    assert any(row.name == "form_change" for row in places)
    assert [o.value.form for o in in_the_other.program.others if o.name == "max_pool2d"] == [OTHER]
    assert sum(not row.is_unscheduled for row in places) == sum(e["count"] for e in document["operators"])


def test_the_faster_of_the_joint_choice_and_one_layout_is_kept(
    in_the_other: TunedModel, tuned: TunedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    prove = proving.prove

    def prove_steadily(*given: Any, **named: Any) -> proving.Proof:
        return dataclasses.replace(prove(*given, **named), spread_s=0.0)  # a busy machine's can exceed the seconds

    monkeypatch.setattr(proving, "prove", prove_steadily)
    assert tuned.best is not None
    instant = dataclasses.replace(tuned.best, proof=dataclasses.replace(tuned.best.proof, seconds=1e-9, spread_s=0.0))
    kept = dataclasses.replace(in_the_other, best=instant).build()
    assert kept.library == tuned.best.library
    assert {o.form for o in kept.tuned.program.tuned} <= {OWN, OTHER}
    assert kept.tuned.program is instant.tuned.program
    assert kept.tuned.layouts is in_the_other.layouts
    assert "the network in one form is kept" in "\n".join(kept.tuned.layouts.lines(kept.tuned.program))


def test_without_layouts_nothing_is_said_of_them(place: Path, loaded: LoadedModel, tmp_path: Path) -> None:
    folder = loaded.tune(trials=1, run=place / "run", progress=False).build().save(tmp_path / "net").folder
    document = json.loads((folder / DOCUMENT).read_text(encoding="utf-8"))
    assert "layouts" not in document
    assert all("lanes" not in entry for entry in document["operators"])


@pytest.mark.slow
def test_the_command_prints_the_choice_and_its_proof(place: Path, source: Path, tmp_path: Path) -> None:
    arguments = ["tune", str(source), "--layouts", str(OTHER), "--trials", "1", "--run", str(place / "run")]
    done = CliRunner().invoke(app, [*arguments, "--out", str(tmp_path / "net")])
    assert done.exit_code == 0, done.output
    assert "\nlayouts    " in done.stdout
    assert "nodes, " in done.stdout
    done = CliRunner().invoke(app, [*arguments, "--out", str(tmp_path / "net"), "--json"])
    assert json.loads(done.stdout.splitlines()[-1])["layouts"]["joint_s"] > 0


def test_a_layout_that_the_device_lacks_is_refused_before_anything_is_tuned(
    loaded: LoadedModel, tmp_path: Path
) -> None:
    few = dataclasses.replace(load_target("cpu"), vector_lanes=4, num_vector_registers=16)
    with pytest.raises(TargetError, match=r"unknown layout of .* '32'; known: 4, 8$"):
        loaded.tune(
            effort=NetworkEffort(layouts="32"),
            run=tmp_path,
            progress=False,
            hold=lambda _usage: contextlib.nullcontext((few, None)),
        )
    assert not (tmp_path / "records.sqlite").exists()


def test_what_may_be_in_int8_may_be_in_bfloat16_too_where_the_processor_has_it() -> None:
    own = dataclasses.replace(load_target("cpu"), mtriple="x86_64-linux-gnu", mattr=())
    zen4 = dataclasses.replace(own, mcpu="znver4", vector_lanes=16)
    haswell = dataclasses.replace(own, mcpu="haswell", vector_lanes=8)
    assert forms(zen4, "int8") == ["16", "16-bfloat16", "16-int8"]
    assert forms(haswell, "int8") == ["8", "8-int8"]
    assert forms(zen4, "bfloat16") == ["16", "16-bfloat16"]
    assert forms(zen4, "float32") == ["16"]


def forms(target: HardwareTarget, dtype: str) -> list[str]:
    return [str(form) for form in forms_of(dataclasses.replace(target, dtype=dtype), NetworkEffort())]


@pytest.mark.skipif("avx512_bf16" not in host_processor().used_flags, reason="the processor has no AVX512_BF16")
@pytest.mark.parametrize("threads", [1, 2])
def test_bfloat16_is_chosen_operator_by_operator_and_is_never_slower(
    loaded: LoadedModel, tmp_path: Path, threads: int
) -> None:
    """A dtype permits: what takes longer in bfloat16, with the copies around it, stays in float32."""
    made = loaded.tune(Usage(dtype="bf16", threads=threads), effort=NetworkEffort(trials=2), run=tmp_path / "run")
    search, halves = made.layouts, Form(LANES, "bfloat16")
    assert search is not None
    assert set(search.singles) == {OWN, halves}
    assert search.left_out == {}
    assert all(search.joint.seconds <= single.seconds * (1 + 1e-9) for single in search.singles.values())
    built = made.build()
    assert built.proof.relative_error < 5e-2
    folder = built.save(tmp_path / "net").folder
    document = json.loads((folder / DOCUMENT).read_text(encoding="utf-8"))
    assert document["target"]["name"] == ("cpu-bf16" if threads == 1 else "cpu-2t-bf16")
    assert set(document["layouts"]["single_s"]) == {f"{LANES}", f"{LANES}-bfloat16"}
    network, opened = Model.open(folder), made.loaded.opened
    inputs = opened.random_inputs(seed=3)
    np.testing.assert_allclose(network.run(*inputs)[0], opened.answer(inputs)[0], atol=3e-2)
