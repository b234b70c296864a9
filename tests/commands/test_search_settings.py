"""commands/search.py: settings by options and files; docs/tuning.md has all of them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from pydantic import BaseModel
from typer.testing import CliRunner

from chanas.commands.search import search, settings_text
from chanas.errors import ConfigError
from chanas.search.config import SearchConfig
from chanas.search.evolution.evolution import EvolutionConfig

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "tuning.md").read_text(encoding="utf-8")


def shown(*arguments: str) -> dict[str, Any]:
    """The settings of a search that is asked for so."""
    app = typer.Typer()
    app.command()(search)
    done = CliRunner().invoke(app, [*arguments, "--show-config"], catch_exceptions=False)
    assert done.exit_code == 0
    found: dict[str, Any] = yaml.safe_load(done.output)
    return found


def test_shown_settings_are_a_file_of_the_same_settings(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(settings_text(SearchConfig(num_finalists=7, evolution=EvolutionConfig(population=20))))
    assert shown("--config", str(file)) == yaml.safe_load(file.read_text())
    assert SearchConfig.parse(shown()) == SearchConfig()


def test_the_command_line_goes_before_the_file(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("rule: all\nnum_evaluations: 40\nmax_rounds: 9\nevolution: {generations: 7}\n")
    found = shown("--config", str(file), "--rule", "paper", "--dtypes", "f32, int8")
    assert (found["rule"], found["num_evaluations"], found["max_rounds"]) == ("paper", 40, 9)
    assert found["dtypes"] == ["f32", "int8"]
    assert found["evolution"]["generations"] == 7
    assert found["initial_evaluations"] == 36


def test_few_evaluations_are_all_before_the_first_fit() -> None:
    assert shown("--evaluations", "20")["initial_evaluations"] == 20


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("num_evaluation: 3", "unknown key 'num_evaluation' in the search settings"),
        ("evolution: {size: 3}", "unknown key 'evolution.size'"),
        ("- 3", "settings such as num_evaluations"),
        (None, "settings.yaml"),
    ],
)
def test_a_wrong_file_is_one_line(text: str | None, says: str, tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    if text is not None:
        file.write_text(text)
    app = typer.Typer()
    app.command()(search)
    done = CliRunner().invoke(app, ["--config", str(file), "--show-config"])
    assert done.exit_code != 0
    assert says in f"{done.exception}"
    assert "\n" not in f"{done.exception}"


@pytest.mark.parametrize("kind", [SearchConfig, EvolutionConfig])
def test_the_page_says_of_every_setting_what_its_class_says(kind: type[BaseModel]) -> None:
    for name, field in kind.model_fields.items():
        if name != "evolution":
            assert re.search(rf"^\| `{name}` \| .* \| {re.escape(field.description or '')} \|$", PAGE, re.MULTILINE)


def test_every_setting_has_a_meaning() -> None:
    for kind in (SearchConfig, EvolutionConfig):
        assert all(field.description for name, field in kind.model_fields.items() if name != "evolution")


@pytest.mark.parametrize(
    ("text", "options", "says"),
    [
        ("rule: all", ["--pareto"], "the setting rule goes with --latency and --accuracy, not with --pareto"),
        ("max_rounds: 9", ["--pareto"], "the setting max_rounds goes with"),
        ("patience: 3", ["--latency", "2ms", "--accuracy-table", "a.csv"], "the setting patience goes with a supernet"),
    ],
)
def test_a_setting_that_the_search_does_not_go_by_is_refused(
    text: str, options: list[str], says: str, tmp_path: Path
) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(text)
    app = typer.Typer()
    app.command()(search)
    with pytest.raises(ConfigError, match=f"^{says}"):
        CliRunner().invoke(app, ["--config", str(file), *options], catch_exceptions=False)
