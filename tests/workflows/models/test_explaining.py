"""chanas/workflows/models/explaining.py: each operator has its times and the reason for its form, and all add up."""

from __future__ import annotations

import types
from pathlib import Path
from typing import Any

import pytest

from chanas.bundle.tuned import TunedNetwork
from chanas.errors import ConfigError
from chanas.workflows.models.explaining import explained

LAYOUTS: dict[str, Any] = {
    "operators": [
        {"key": "conv-9px-3x16-k3s2-relu-float32", "seconds": {"8": 3e-6}, "chosen": "8"},
        {
            "key": "pointwise-4px-16x32-k1s1-relu-float32",
            "seconds": {"8": 9e-6, "8-int8": 4e-6},
            "chosen": "8-int8",
            "loss": 1e-3,
        },
        {
            "key": "depthwise-4px-32x32-k3s1-relu-float32",
            "seconds": {"8": 4e-6, "8-int8": 6e-6},
            "chosen": "8-int8",
            "loss": 1e-4,
        },
        {
            "key": "pointwise-4px-32x16-k1s1-none-float32",
            "seconds": {"8": 9e-6, "8-int8": 5e-6},
            "chosen": "8",
            "loss": 5e-2,
            "for_accuracy": True,
        },
    ],
    "copies": [
        {"key": "layout-8to8-int8-16c-16px", "seconds": 1e-6},
        {"key": "layout-8-int8to8-32c-16px", "seconds": 2e-6},
    ],
    "joint_is_kept": True,
}


def lines(monkeypatch: pytest.MonkeyPatch, layouts: dict[str, Any] | None) -> list[str]:
    document = {} if layouts is None else {"layouts": layouts}
    monkeypatch.setattr(TunedNetwork, "open", lambda _folder: types.SimpleNamespace(document=document))
    return explained(Path("net"))


def test_every_operator_has_its_times_and_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    head, *rows = lines(monkeypatch, LAYOUTS)[:5]
    assert head.split() == ["operator", "8", "8-int8", "error", "chosen", "because"]
    assert [row.rsplit("  ", 1)[1] for row in rows] == ["no other form", "fastest", "copies", "accuracy"]
    assert "4 us*" in rows[1]
    assert "0.100%" in rows[1]
    assert rows[0].split()[1:4] == ["3", "us*", "-"]


def test_the_summary_adds_up(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "\n".join(lines(monkeypatch, LAYOUTS))
    assert "8: chosen for 2 of 4 operators, takes least alone for 2" in text
    assert "8-int8: chosen for 2 of 4 operators, takes least alone for 2" in text
    assert "accuracy: 1 of 4; in int8 the network would lose more accuracy than is allowed" in text
    assert "copies: 2 between forms, 3 us together" in text


def test_it_says_where_one_form_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "kept all the same" not in lines(monkeypatch, LAYOUTS)[-1]
    assert "kept all the same" in lines(monkeypatch, {**LAYOUTS, "joint_is_kept": False})[-1]


def test_a_network_in_one_form_has_nothing_to_explain(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="net was tuned in one form"):
        lines(monkeypatch, None)
