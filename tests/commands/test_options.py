"""commands/options.py: settings by options, files and presets; docs/tuning.md has all of them."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
import yaml
from typer.testing import CliRunner

from chanas.commands.main import app
from chanas.commands.options import (
    Config,
    EarlyStopping,
    Preset,
    Pretrained,
    ShowConfig,
    SubSpaces,
    Tuner,
    effort_of,
    meanings_of,
    refuse,
    refuse_others,
    refuse_settings,
    settings_text,
)
from chanas.core.effort import AdaptEffort, Effort, NetworkEffort, Search, TableEffort
from chanas.errors import ConfigError

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "tuning.md").read_text(encoding="utf-8")
KINDS = (NetworkEffort, TableEffort, AdaptEffort)


def effort(*arguments: str, kind: type[Effort] = NetworkEffort) -> Effort | str:
    """What a command with these arguments is asked for, or what it prints."""
    app, found = typer.Typer(), []

    @app.command()
    def command(
        context: typer.Context,
        trials: Annotated[int | None, typer.Option()] = None,
        sub_spaces: SubSpaces = None,
        tuner: Tuner = "gp",
        pretrained: Pretrained = None,
        early_stopping: EarlyStopping = "gain",
        effort_name: Preset = None,
        config: Config = None,
        show_config: ShowConfig = False,
    ) -> None:
        found.append(effort_of(context, kind))

    result = CliRunner().invoke(app, list(arguments))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return found[0] if found else result.output


def written(folder: Path, **settings: Any) -> str:
    file = folder / "settings.yaml"
    file.write_text(yaml.safe_dump(settings))
    return str(file)


def test_without_options_all_is_the_default() -> None:
    for kind in KINDS:
        assert effort(kind=kind) == kind()


def test_options_win_over_files_and_files_over_presets(tmp_path: Path) -> None:
    file = written(tmp_path, tuner="ga", seed=3, search={"gamma": 4, "batch_size": 2})
    found = effort("--effort", "full", "--config", file, "--tuner", "grid")
    search = Search(gamma=4, batch_size=2)
    assert found == NetworkEffort(trials=128, early_stopping="no", tuner="grid", seed=3, search=search)
    assert effort("--effort", "full", "--trials", "5", "--early-stopping", "7") == NetworkEffort(
        trials=5, early_stopping=7
    )


def test_a_file_changes_the_constants_that_it_names_and_no_others(tmp_path: Path) -> None:
    found = effort("--config", written(tmp_path, search={"gamma": 2.0}), kind=AdaptEffort)
    assert isinstance(found, AdaptEffort)
    assert found.search == dataclasses.replace(AdaptEffort().search, gamma=2.0)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_shown_is_a_file_of_the_same_settings(kind: type[Effort], tmp_path: Path) -> None:
    shown = effort("--show-config", "--tuner", "forest", "--early-stopping", "9", kind=kind)
    assert isinstance(shown, str)
    (tmp_path / "shown.yaml").write_text(shown)
    assert effort("--config", str(tmp_path / "shown.yaml"), kind=kind) == kind(tuner="forest", early_stopping=9)


def test_options_that_are_lists_and_paths_are_settings() -> None:
    found = effort("--sub-space", "r8-w1", "--sub-space", "r8-w2", kind=TableEffort)
    assert found == TableEffort(sub_spaces=("r8-w1", "r8-w2"))
    found = effort("--pretrained", "model.safetensors")
    assert found == NetworkEffort(pretrained="model.safetensors")


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"trails": 3}, "unknown setting 'trails'; known: calibration, "),
        ({"trials": "many"}, "expected trials of type int | None, got 'many'"),
        ({"trials": True}, "expected trials of type int | None, got True"),
        ({"search": 3}, "expected search of type Search, got 3"),
        ({"search": {"gama": 3}}, "search: unknown setting 'gama'; known: batch_size, "),
        ({"search": {"gamma": -1}}, "expected search.gamma 0 or more, got -1"),
        ({"search": {"batch_size": 0}}, "expected search.batch_size at least 1, got 0"),
        ({"search": {"random_share": 1.5}}, "expected search.random_share between 0 and 1, got 1.5"),
        ({"search": {"timeout_s": 0}}, "expected search.timeout_s seconds above 0, got 0"),
        ({"early_stopping": "soon"}, "expected --early-stopping gain, no, or a number of trials above 0, got soon"),
        ({"early_stopping": 0}, "expected --early-stopping gain, no, or a number of trials above 0, got 0"),
    ],
)
def test_a_wrong_setting_is_refused_by_name(settings: dict[str, Any], says: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=re.escape(says)):
        effort("--config", written(tmp_path, **settings))


def test_an_unknown_preset_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"^unknown effort 'fast'; known: full, none, quick$"):
        effort("--effort", "fast")


def test_a_table_has_a_trial_of_each_operator() -> None:
    with pytest.raises(ConfigError, match=r"^unknown effort 'none'; known: full, quick$"):
        effort("--effort", "none", kind=TableEffort)


@pytest.mark.parametrize("kind", [*KINDS, Search])
def test_every_setting_has_a_meaning(kind: type) -> None:
    assert {field.name for field in dataclasses.fields(kind)} - {"search"} <= meanings_of(kind).keys()


@pytest.mark.parametrize("kind", [NetworkEffort, Search])
def test_the_page_about_tuning_says_of_every_setting_what_its_class_says(kind: type) -> None:
    for field in dataclasses.fields(kind):
        if field.name != "search":
            default = getattr(kind(), field.name)
            row = f"| `{field.name}` | {'null' if default is None else default} | {meanings_of(kind)[field.name]} |"
            assert row in PAGE


def test_shown_settings_are_told_what_they_mean() -> None:
    assert "# size of the initial set H (paper, section 3.5)\n  num_initial: 4\n" in settings_text(NetworkEffort())


def test_options_are_refused_by_name_where_they_are_given() -> None:
    app = typer.Typer()

    @app.command()
    def command(
        context: typer.Context, trials: Annotated[int | None, typer.Option()] = None, tuner: Tuner = "gp"
    ) -> None:
        refuse(context, {"trials"}, "does not go")
        refuse_others(context, {"trials"}, "neither")

    assert CliRunner().invoke(app, []).exit_code == 0
    for arguments, says in ((["--trials", "1"], "--trials does not go"), (["--tuner", "gp"], "--tuner neither")):
        with pytest.raises(ConfigError, match=f"^{says}$"):
            CliRunner().invoke(app, arguments, catch_exceptions=False)


def test_settings_are_refused_by_name_where_they_are_not_the_default() -> None:
    names = ("tune_share", "minutes")
    refuse_settings(NetworkEffort(trials=3), names, "no")
    with pytest.raises(ConfigError, match=r"^the setting minutes goes elsewhere$"):
        refuse_settings(NetworkEffort(minutes=3), names, "goes elsewhere")


@pytest.mark.parametrize(
    ("command", "settings", "says"),
    [
        ("tune --operator a", {"calibration": "pictures"}, "setting calibration goes with a network, not with --oper"),
        ("tune --operator a --simulate run", {"minutes": 3}, "setting minutes does not go with --simulate RUN"),
        ("lut adapt --from a", {"tune_share": 0.5}, "setting tune_share goes with `chanas prescheduler`"),
        ("lut adapt --from mbv3-amd-zen4-cpu", {"tuner": "moon"}, "unknown tuner 'moon'"),
    ],
)
def test_a_setting_of_a_file_that_nothing_goes_by_is_refused(
    command: str, settings: dict[str, Any], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=re.escape(says)):
        CliRunner().invoke(app, [*command.split(), "--config", written(tmp_path, **settings)], catch_exceptions=False)
