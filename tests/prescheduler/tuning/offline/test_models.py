"""chanas/prescheduler/tuning/offline/models.py: models that learn the order of records, and their files."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from chanas.errors import CheckpointError, ConfigError
from chanas.prescheduler.tuning.offline import boosters
from chanas.prescheduler.tuning.offline.boosters import PACKAGES
from chanas.prescheduler.tuning.offline.dataset import Dataset
from chanas.prescheduler.tuning.offline.judging import Metrics, judge, split
from chanas.prescheduler.tuning.offline.models import (
    MODELS,
    Kind,
    OfflineModel,
    load_model,
    save_model,
    train,
    train_further,
)

from .records import ONE, TWO, dataset

KINDS = [Kind(model=model) for model in MODELS] + [Kind(model="attention", loss="lambdarank")]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return dataset(tmp_path_factory.mktemp("runs"), (ONE, TWO))


def taught(data: Dataset, kind: Kind, seed: int = 0) -> OfflineModel:
    if kind.is_booster and importlib.util.find_spec(PACKAGES[kind.model]) is None:
        pytest.skip(f"needs {PACKAGES[kind.model]}")
    return train(data, split(data, "within_task", share=0.7).train, kind, seed, progress=False)


def judged(model: OfflineModel, data: Dataset) -> Metrics:
    part = data.of(split(data, "within_task", share=0.7).test)
    return judge(model.scores(part.primitives), part.label, part.task)


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: f"{k.model}-{k.loss}")
def test_a_model_orders_records_it_did_not_see_and_is_the_same_from_its_file(
    data: Dataset, kind: Kind, tmp_path: Path
) -> None:
    model, file = taught(data, kind), tmp_path / "model.safetensors"
    assert judged(model, data).pairwise_accuracy > 0.7
    assert model.slope > 0.0
    save_model(model, file)
    read = load_model(file)
    assert (read.kind, read.slope, read.facts) == (model.kind, model.slope, model.facts)
    np.testing.assert_allclose(read.scores(data.primitives), model.scores(data.primitives), atol=1e-6)


def test_a_model_is_the_same_for_the_same_seed(data: Dataset) -> None:
    scores = [taught(data, Kind(model="mlp"), seed).scores(data.primitives) for seed in (0, 0, 1)]
    assert np.array_equal(scores[0], scores[1])
    assert not np.array_equal(scores[0], scores[2])


@pytest.mark.parametrize("name", ["mlp", "xgb", "lgbm"])
def test_a_model_goes_on_learning_from_another_devices_records(data: Dataset, name: str) -> None:
    one = np.flatnonzero([data.tasks[t].device == 0 for t in data.task]).astype(np.int64)
    new = np.setdiff1d(np.arange(len(data)), one)
    upside_down = data.of(new)
    upside_down.label[:] = (0.1 / upside_down.label).clip(max=1.0)
    model = taught(data.of(one), Kind(model=name))
    further = train_further(model, upside_down, np.arange(len(new), dtype=np.int64))
    errors = [np.square(m.scores(upside_down.primitives) - upside_down.label).mean() for m in (model, further)]
    assert errors[1] < 0.9 * errors[0]
    assert further.facts["started_from"] == model.facts


def test_models_that_do_not_go_together_are_refused() -> None:
    with pytest.raises(ConfigError, match="unknown cost model 'tree'"):
        Kind(model="tree")
    with pytest.raises(ConfigError, match="--loss rmse alone"):
        Kind(model="xgb", loss="lambdarank")


def test_a_library_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch, data: Dataset) -> None:
    monkeypatch.setitem(boosters.PACKAGES, "xgb", "there_is_no_such_module")
    with pytest.raises(ConfigError, match="chanas\\[boost\\]"):
        train(data, np.arange(8), Kind(model="xgb"))


@pytest.mark.parametrize("damage", ["missing", "cut", "weights", "text", "segments"])
def test_a_damaged_file_is_refused(data: Dataset, tmp_path: Path, damage: str) -> None:
    file = tmp_path / "model.safetensors"
    model = OfflineModel(Kind(model="mlp"), *np.ones((2, 4), dtype=np.float32), {"x": np.ones(3, dtype=np.float32)})
    if damage != "missing":
        save_model(model, file)
    if damage == "cut":
        file.write_bytes(file.read_bytes()[:-8])
    if damage == "text":
        save_file(load_file(file), file)  # without its header
    if damage == "segments":  # features of stores, which models could read once
        header = {"schema": 1, "width": 172, "model": "mlp", "loss": "rmse", "features": "segments", "slope": 1.0}
        save_file(load_file(file), file, {"chanas": json.dumps(header | {"facts": {}})})
    with pytest.raises(CheckpointError, match="segments" if damage == "segments" else "cost model"):
        load_model(file)
