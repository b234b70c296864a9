"""The networks that benchmarks export themselves."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


@pytest.fixture
def exported_networks(load: Any) -> ModuleType:
    module: ModuleType = load("exported_networks")
    return module


@pytest.mark.slow
def test_a_network_is_exported_once_with_the_same_weights_every_time(
    exported_networks: ModuleType, tmp_path: Path
) -> None:
    import torch

    networks = {"small": lambda: (torch.nn.Linear(4, 2), torch.ones(1, 4))}
    path = exported_networks.export_network("small", tmp_path / "run", networks)
    written = path.stat().st_mtime_ns
    assert exported_networks.export_network("small", tmp_path / "run", networks) == path
    assert path.stat().st_mtime_ns == written
    first, again = (
        torch.export.load(p).state_dict["weight"]
        for p in (path, exported_networks.export_network("small", tmp_path / "again", networks))
    )
    assert torch.equal(first, again)


def test_the_transformer_reads_token_ids(exported_networks: ModuleType) -> None:
    import torch

    network, ids = exported_networks.bert_tiny()
    assert (tuple(ids.shape), ids.dtype) == ((1, 128), torch.int64)
    with torch.inference_mode():
        zeros, ones = (network.eval()(ids + token) for token in (0, 1))
    assert tuple(zeros.shape) == (1, 128, 128)
    assert not torch.allclose(zeros, ones)


def test_the_detector_gives_two_maps_of_the_objects_of_coco(exported_networks: ModuleType) -> None:
    import torch

    network, image = exported_networks.detector(64)
    with torch.inference_mode():
        coarse, fine = network.eval()(image)
    assert (tuple(coarse.shape), tuple(fine.shape)) == ((1, 255, 2, 2), (1, 255, 4, 4))
    assert float(coarse.std()) > 0
