"""chanas/commands/sweeps/: which commands can be swept, and how a row becomes a command line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from typer.core import TyperGroup

from chanas.commands.main import app
from chanas.commands.sweeps.arguments import SweptCommand
from chanas.errors import ConfigError
from chanas.workflows.sweeps.grid import read_grid
from chanas.workflows.sweeps.uses import NOT_SWEPT, USES, use_of

ROOT: Any = typer.main.get_command(app)
EXAMPLES = sorted((Path(__file__).parents[3] / "examples" / "sweeps").glob("*.yaml"))
RUN = Path("sweeps/a/rows/001-a")


def commands(group: TyperGroup, prefix: str = "") -> Iterator[str]:
    for name, command in group.commands.items():
        yield from commands(command, f"{prefix}{name} ") if isinstance(command, TyperGroup) else [f"{prefix}{name}"]


def line(words: str, goes_on: bool = False, **parameters: Any) -> list[str]:
    """What comes after `-m chanas`."""
    made = SweptCommand(ROOT, words).arguments(parameters, RUN, goes_on)
    assert made[:2] == ["-m", "chanas"]
    return made[2:]


def test_each_command_is_swept_or_not() -> None:
    assert set(commands(ROOT)) == {*USES, *NOT_SWEPT}
    assert not {*USES} & {*NOT_SWEPT}


@pytest.mark.parametrize("words", ["jobs run", "trane"])
def test_what_cannot_be_swept(words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        use_of(words)


def test_options_and_arguments_of_a_row() -> None:
    made = line("tune", trials=8, model="-net.onnx", early_stopping="no", warm_start=None, shape=["x=1,3", "y=1"])
    assert made == [
        *(
            "tune",
            "--trials=8",
            "--early-stopping=no",
            "--shape=x=1,3",
            "--shape=y=1",
            f"--run={RUN}",
            "--json",
            "--",
            "-net.onnx",
        )
    ]


def test_a_run_directory_is_an_option_and_other_places_are_arguments() -> None:
    assert line("finetune", architecture="largest", from_scratch=True, epochs=0.5) == [
        *("finetune", "--architecture=largest", "--from-scratch", "--epochs=0.5", f"--run={RUN}", "--")
    ]
    assert line("export", bundle="b") == ["export", "--", "b", str(RUN / "out")]


def test_what_is_read_from_elsewhere_has_no_run_directory() -> None:
    assert line("lut show", file="table.json") == ["lut", "show", "--json", "--", "table.json"]
    simulated = line("tune", operator="pool", simulate="tuned", tuner="ga")
    assert simulated == ["tune", "--operator=pool", "--simulate=tuned", "--tuner=ga", "--json", "--"]


def test_json_is_asked_for_where_there_is_any() -> None:
    assert line("eval", split="test") == ["eval", "--split=test", f"--run={RUN}", "--json", "--"]


def test_a_training_that_was_cut_off_resumes_where_there_is_a_checkpoint(tmp_path: Path) -> None:
    swept = SweptCommand(ROOT, "train-supernet")
    assert "--resume" not in swept.arguments({}, tmp_path, True)
    (tmp_path / "supernet").mkdir()
    (tmp_path / "supernet" / "checkpoint.safetensors").touch()
    assert "--resume" in swept.arguments({}, tmp_path, True)
    assert "--resume" not in swept.arguments({}, tmp_path, False)


@pytest.mark.parametrize(
    ("words", "parameters", "told"),
    [
        ("tune", {"trails": 3, "model": "m"}, "unknown option 'trails'; known: calibration, channels, config"),
        ("tune", {"run": "r", "model": "m"}, "unknown option 'run'"),
        ("train-supernet", {"overwrite": True}, "unknown option 'overwrite'"),
        ("tune", {"trials": "two", "model": "m"}, "--trials"),
        ("tune", {"trials": [1, 2], "model": "m"}, "trials takes one value"),
        ("tune", {"trials": True, "model": "m"}, "trials takes numbers or texts, got True"),
        ("tune", {"no_tuning": "no", "model": "m"}, "no_tuning is true or false"),
        ("export", {}, "Missing argument 'out'"),
        ("lut", {}, "unknown command 'lut'"),
        ("lut trim", {}, "unknown command 'lut trim'"),
    ],
)
def test_what_a_row_may_not_say(words: str, parameters: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        line(words, **parameters)


@pytest.mark.parametrize(
    "file", [f for f in EXAMPLES if "command" in yaml.safe_load(f.read_text())], ids=lambda f: f.stem
)
def test_the_examples_are_sweeps(file: Path) -> None:
    grid = read_grid(file)
    rows = [SweptCommand(ROOT, grid.command).arguments({**grid.common, **row}, RUN, False) for row in grid.rows()]
    assert len(rows) > 3
    assert use_of(grid.command).metrics
