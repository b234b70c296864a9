"""docs/scaling.md: every figure is what the result files say, or follows from them by the formula beside it."""

from __future__ import annotations

import ast
import json
import operator
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chanas.core.arch import SearchSpace
from chanas.supernet.training.phases import Schedule, TrainConfig

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "scaling.md"
RESULTS = ROOT / "benchmarks" / "results"
IMAGENET_TRAIN = 1_281_167
_SAMPLED_STEPS = 200
_OPERATORS: dict[type, Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def rows(kind: str) -> dict[str, tuple[str, str]]:
    """Name -> value and source (or formula), of the table rows whose source begins with `kind`."""
    found = {}
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        match = re.fullmatch(r"\| `(\w+)` \| ([^|]+) \| ([^|]+) \| `(\w+): ([^`]+)` \|", line)
        if match and match[4] == kind:
            assert match[1] not in found, f"{match[1]} is there twice"
            found[match[1]] = match[2].strip(), match[5]
    return found


def number(text: str) -> float:
    return float(text.replace(",", ""))


def same(shown: str, value: float) -> bool:
    """Whether `shown` is `value`, rounded to the digits that it has."""
    plain = shown.replace(",", "")
    digits = len(plain.partition(".")[2])
    if digits:
        return abs(float(plain) - value) <= 0.5000001 * 10**-digits
    zeros = len(plain) - len(plain.rstrip("0"))
    return abs(float(plain) - value) <= 0.5000001 * 10**zeros


def in_result(path: str) -> float:
    """`lut_build-amd-zen4.build.wall_s`: the file, then the keys."""
    name, *keys = path.split(".")
    value: Any = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    for key in keys:
        value = value[key]
    return float(value)


def evaluated(formula: str, names: dict[str, float]) -> float:
    """Sums, products and names."""

    def walk(node: ast.expr) -> float:
        if isinstance(node, ast.BinOp):
            return _OPERATORS[type(node.op)](walk(node.left), walk(node.right))
        if isinstance(node, ast.Name):
            return names[node.id]
        assert isinstance(node, ast.Constant), ast.dump(node)
        return float(node.value)  # type: ignore[arg-type]

    return walk(ast.parse(formula, mode="eval").body)


def recipe() -> dict[str, float]:
    """What the ImageNet preset asks for, counted by the trainer's own schedule; MACs from every 4,400th step."""
    config, space = TrainConfig.load("imagenet-mbv3"), SearchSpace.load("mbv3")
    splits = config.data.splits
    schedule = Schedule(config, space, round(IMAGENET_TRAIN * (1.0 - splits.gap - splits.holdout)))
    images = config.batch_size + config.gap_batch_size
    teacher, macs = space.largest.num_macs(space), []
    for step in np.linspace(0, schedule.num_steps - 1, _SAMPLED_STEPS).astype(np.int64):
        plan = schedule.plan(int(step))
        passes = sum(a.num_macs(space) for _, a in plan.subnets)
        macs.append(3 * passes * images + (teacher * config.batch_size if plan.phase else 0))
    return {
        "steps": schedule.num_steps,
        "images": images,
        "step_macs": float(np.mean(macs)) / 1e12,
        "params": space.largest.num_params(space) / 1e6,
    }


MEASURED, DERIVED, RECIPE, PUBLISHED = (rows(k) for k in ("result", "formula", "preset", "published"))


def known() -> dict[str, float]:
    """Every name with its exact value, formulas in the order of the page."""
    names = {name: in_result(path) for name, (_, path) in MEASURED.items()}
    counted = recipe()
    names |= {name: counted[key] for name, (_, key) in RECIPE.items()}
    names |= {name: number(value) for name, (value, _) in PUBLISHED.items()}
    for name, (_, formula) in DERIVED.items():
        names[name] = evaluated(formula, names)
    return names


NAMES = known()


def test_the_page_has_figures_of_every_kind() -> None:
    assert min(len(MEASURED), len(DERIVED), len(RECIPE), len(PUBLISHED)) >= 3


@pytest.mark.parametrize("name", [*MEASURED, *RECIPE, *DERIVED])
def test_a_figure_is_what_it_is_said_to_be(name: str) -> None:
    shown = (MEASURED | RECIPE | DERIVED)[name][0]
    assert same(shown, NAMES[name]), f"{name} is {NAMES[name]:.6g}, and the page says {shown}"


@pytest.mark.parametrize(
    ("shown", "value", "alike"),
    [
        ("28.7", 28.71, True),
        ("28.7", 28.76, False),
        ("1,723", 1723.2, True),
        ("1,723", 1724.0, False),
        ("4,100", 4149.0, True),
        ("4,100", 4170.0, False),
        ("0.54", 0.5442, True),
    ],
)
def test_a_figure_is_as_exact_as_it_is_written(shown: str, value: float, alike: bool) -> None:
    assert same(shown, value) == alike


def test_a_published_figure_names_where_it_is_published() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for name, (_, source) in PUBLISHED.items():
        assert f"[{source}]:" in text, f"{name} comes from [{source}], which the page has no link for"
