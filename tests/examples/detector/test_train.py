"""Training the detector: its batches, its learning rate, and that a few seconds of it help."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from deploy import INT8, LIBRARY, TUNED, UNTUNED
from network import Detector
from shapes import CLASSES, draw
from train import (
    LEARNING_RATE,
    PHASES,
    WARM_UP,
    Phase,
    batches,
    draw_batch,
    faster_in_bfloat16,
    learning_rate,
    train,
)

from chanas.core.processor import host_processor

SCRIPTS = Path(__file__).resolve().parents[3] / "examples" / "detector"
SMALL = Phase(until=1.0, size=96, batch_size=3)


def test_a_batch_has_the_objects_of_its_images() -> None:
    images, truth = draw_batch(0, 5, SMALL)
    assert images.shape == (3, 3, 96, 96)
    for i in range(3):
        scene = draw("train", 0, 5 + i, 96)
        np.testing.assert_allclose(images[i].permute(1, 2, 0).numpy() * 255.0, scene.pixels, atol=1e-3)
        mine = truth[truth[:, 0] == i]
        assert mine[:, 1].tolist() == scene.labels.tolist()
        np.testing.assert_array_equal(mine[:, 2:].numpy(), scene.boxes)


def test_no_image_is_seen_twice() -> None:
    stream = batches(0, SMALL, 0)
    seen = torch.cat([next(stream)[0] for _ in range(4)])
    stream.close()
    assert len(torch.unique(seen.flatten(1), dim=0)) == 12


def test_the_learning_rate_rises_and_falls_to_zero() -> None:
    rates = [learning_rate(progress) for progress in np.linspace(0.0, 1.0, 101)]
    assert 0.0 < rates[0] < 0.1 * LEARNING_RATE
    highest = int(np.argmax(rates))
    assert highest == round(100 * WARM_UP)
    assert (np.diff(rates[highest:]) < 0.0).all()
    assert learning_rate(1.5) == pytest.approx(0.0)


def test_phases_follow_each_other_to_the_end() -> None:
    ends = [phase.until for phase in PHASES]
    assert ends == sorted(set(ends))
    assert ends[-1] == 1.0


def test_asking_which_type_is_faster_leaves_the_network_as_it_is() -> None:
    network = Detector(len(CLASSES), width=0.125).train()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    faster_in_bfloat16(network)
    for name, value in network.state_dict().items():
        torch.testing.assert_close(value, before[name], rtol=0.0, atol=0.0)
    assert all(parameter.grad is None for parameter in network.parameters())


@pytest.mark.slow
def test_some_hundred_steps_lower_the_loss() -> None:
    torch.manual_seed(0)
    phases = (Phase(until=0.5, size=96, batch_size=8), Phase(until=1.0, size=128, batch_size=8))
    ticks = itertools.count()
    network = Detector(len(CLASSES), width=0.25)
    _, losses = train(network, 302.0, 0, phases, clock=lambda: float(next(ticks)))
    assert len(losses) == 300  # a tick for each step, one to start, and one to find that the first phase is over
    assert np.mean(losses[-20:]) < 0.85 * np.mean(losses[:20])


def printed(folder: Path, script: str, *options: str) -> str:
    done = subprocess.run(
        [sys.executable, str(SCRIPTS / script), *options], cwd=folder, capture_output=True, text=True, timeout=850
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A folder that a small network was trained in, and what was printed."""
    folder = tmp_path_factory.mktemp("detector")
    options = ["--minutes", "0.1", "--width", "0.125", "--num-images", "4", "--out", "out"]
    return folder, printed(folder, "train.py", *options)


@pytest.mark.slow
def test_training_leaves_networks_that_are_evaluated_alike(trained: tuple[Path, str]) -> None:
    folder, told = trained
    again = printed(folder, "evaluate.py", "--model", "out/detector.pt2", "--data", "out/val")
    assert again.startswith("mAP50 ")
    assert again in told
    assert (folder / "out" / "detector.onnx").stat().st_size > 100_000


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif("avx2" not in host_processor().used_flags, reason="int8 needs AVX2")
def test_a_detector_goes_from_its_file_to_a_c_library(trained: tuple[Path, str]) -> None:
    data = ["--data", "out/val", "--calibration", "out/calibration", "--num-images", "2"]
    table = printed(trained[0], "deploy.py", "--model", "out/detector.pt2", *data, "--minutes", "0.1")
    rows = [(line[:24].strip(), line.split()[-3:]) for line in table.splitlines()[-4:]]
    assert [name for name, _ in rows] == [UNTUNED, TUNED, INT8, LIBRARY]
    assert rows[2][1][1:] == rows[3][1][1:]  # the library has the accuracy of what it was made from
