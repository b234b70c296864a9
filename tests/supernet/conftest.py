"""Small images and short configs, so that a whole training run takes a second."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from chanas.files.run import RunDirectory
from chanas.supernet.training.phases import TrainConfig

ALL = dict.fromkeys(("kernel_sizes", "expand_ratios", "depths", "width_multipliers", "resolutions"), "all")


@pytest.fixture(scope="session")
def make_config() -> Callable[..., TrainConfig]:
    """A config of six sandwich steps on the digits; keyword arguments replace top-level keys."""

    def make(**changes: Any) -> TrainConfig:
        data: dict[str, Any] = {
            "data": {"dataset": "digits", "augment": {"rotation_deg": 10, "shift": 0.1, "scale": 0.1}},
            "strategy": "sandwich",
            "phases": [{"name": "all", "steps": 6, "base_lr": 0.05, "warmup_steps": 2, "num_subnets": 3, **ALL}],
            "batch_size": 8,
            "gap_batch_size": 4,
            "recalibration_images": 32,
            "checkpoint_every": 4,
            "evaluate_every": 100,
            "log_every": 1,
        }
        return TrainConfig.from_json({**data, **changes})

    return make


@pytest.fixture(scope="session")
def progressive(make_config: Callable[..., TrainConfig]) -> TrainConfig:
    """Largest network, then elastic kernels, then expand ratios too: two steps each."""
    common = {"steps": 2, "base_lr": 0.02}
    phases = [
        {"name": "largest", **common},
        {"name": "kernel", "kernel_sizes": "all", **common},
        {"name": "expand", "kernel_sizes": "all", "expand_ratios": [2, 3], "num_subnets": 2, **common},
    ]
    return make_config(strategy="progressive", phases=phases, checkpoint_every=1)


@pytest.fixture
def default_signals() -> Iterator[None]:
    """Signals as in a terminal: a shell in the background has Ctrl-C ignored, `nohup` the end of the terminal."""
    before = [signal.signal(signal.SIGINT, signal.default_int_handler), signal.signal(signal.SIGHUP, signal.SIG_DFL)]
    yield
    for number, handler in zip((signal.SIGINT, signal.SIGHUP), before, strict=True):
        signal.signal(number, handler)


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory(tmp_path / "run")


@pytest.fixture
def image_folder(tmp_path: Path) -> Path:
    """Two classes of eight images of several sizes: `dark` and `light`."""
    root = tmp_path / "images"
    rng = np.random.default_rng(0)
    for name, low in (("dark", 0), ("light", 128)):
        (root / name).mkdir(parents=True)
        for index in range(8):
            pixels = rng.integers(low, low + 128, size=(20 + index, 24, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(root / name / f"{index}.png")
    return root
