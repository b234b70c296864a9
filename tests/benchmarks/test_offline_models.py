"""benchmarks/offline_models.py: each device is left out once."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from chanas.errors import DataError
from chanas.prescheduler.tuning.offline.dataset import Dataset
from chanas.prescheduler.tuning.offline.models import Kind, train

from ..prescheduler.tuning.offline.records import ONE, TWO, dataset


@pytest.fixture
def script(load: Any) -> ModuleType:
    module: ModuleType = load("offline_models")
    return module


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return dataset(tmp_path_factory.mktemp("runs"), (ONE, TWO))


def test_each_device_is_judged_by_models_of_the_others(script: ModuleType, data: Dataset) -> None:
    device = [data.tasks[task].device for task in data.task]
    found = script.splits_of(data, "each_target", 0)
    assert list(found) == ["without cpu of 16 lanes", "without cpu-2t of 16 lanes"]
    for left_out, parts in enumerate(found.values()):
        assert {device[i] for i in parts.test} == {left_out}
        assert sorted([*parts.train, *parts.test]) == list(range(len(data)))
        assert left_out not in {device[i] for i in parts.train}


def test_models_go_on_with_tasks_that_do_not_judge_them(script: ModuleType, data: Dataset) -> None:
    pytest.importorskip("xgboost")
    parts = script.splits_of(data, "each_target", 0)["without cpu-2t of 16 lanes"]
    model = train(data, parts.train, Kind(model="xgb"), progress=False)
    sizes = data.counts()[np.unique(data.task[parts.test])]
    assert len(sizes) > 1
    num = int(sizes.sum() - sizes.min())
    further = script.go_further(data, parts.test, model, num, 0)
    assert 0 < further["num_records"] <= num
    judged = {further[when]["num_records"] for when in ("before", "after", "alone")}
    assert judged <= {len(parts.test) - further["num_records"]}
    assert script.go_further(data, parts.test, model, len(parts.test), 0) is None  # none is left to judge


def test_other_splits_are_themselves(script: ModuleType, data: Dataset) -> None:
    assert list(script.splits_of(data, "by_task", 0)) == ["by_task"]


def test_a_single_device_has_no_others(script: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="needs records of two devices, got 1"):
        script.splits_of(dataset(tmp_path), "each_target", 0)
