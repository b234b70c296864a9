"""Options that several commands share."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
import textwrap
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
import yaml

from chanas.core.effort import PRESETS, Effort
from chanas.core.usage import Place, Usage
from chanas.errors import ConfigError, unknown_name
from chanas.files.run import DEFAULT_RUN, RunDirectory

if TYPE_CHECKING:
    from pydantic import BaseModel

AnyEffort = TypeVar("AnyEffort", bound=Effort)

Target = Annotated[str, typer.Option(help="Hardware target: cpu (this machine); others: `chanas target list`.")]
Threads = Annotated[int, typer.Option(help="Threads of one inference; each number has a table of its own.")]
Dtype = Annotated[
    str, typer.Option(help="Weights and activations: f32; int8; bf16 with AVX512_BF16; f16 or tf32 on GPUs.")
]
Batch = Annotated[int, typer.Option(help="Images at once, on GPUs; latencies are of all of them together.")]

RPC = Annotated[str | None, typer.Option(help="HOST:PORT of a tracker: time on devices of it, build here.")]
Key = Annotated[str | None, typer.Option(help="With --rpc: the key of the devices.")]
WarmStart = Annotated[
    str | None,
    typer.Option(
        help="Begin with another device's records: a run, records, schedules, or a target of this run; by default with "
        "the schedules that come with chanas; no: with nothing."
    ),
]
Tuner = Annotated[
    str,
    typer.Option(
        help="What chooses points: gp (Gaussian process), other cost models (xgb, lgbm, mlp, forest), ga (genetic), "
        "random, grid, exhaustive, optuna:SAMPLER."
    ),
]
SubSpaces = Annotated[list[str] | None, typer.Option("--sub-space", help="Only this one, such as r224-w1; repeatable.")]
Pretrained = Annotated[
    Path | None,
    typer.Option(help="With gp: a file of `chanas records train`: orders points before anything is measured."),
]
TuneShare = Annotated[
    float, typer.Option(help="Tune the few operators that make up this share of all; others take over their schedules.")
]
EarlyStopping = Annotated[
    str,
    typer.Option(
        help="Make no more trials of an operator: gain: where nothing better than noise is expected; N: after so many "
        "without a better point; no: as long as there are trials."
    ),
]
Preset = Annotated[
    str | None, typer.Option("--effort", help="none (schedules that are known or likely), quick (8 trials), or full.")
]
TablePreset = Annotated[str | None, typer.Option("--effort", help="quick (8 trials of each operator), or full (128).")]
Layouts = Annotated[
    str | None,
    typer.Option(
        help="Channels of a block that operators may be tuned in besides the device's own: 8,16,32. The best layout of "
        "each is chosen over the whole network."
    ),
]
Knobs = Annotated[
    Path | None,
    typer.Option(
        dir_okay=False, metavar="<path>", help="YAML file with further candidates and knobs of schedule spaces."
    ),
]
Config = Annotated[
    Path | None,
    typer.Option(dir_okay=False, metavar="<path>", help="YAML file with these settings and those of the exploration."),
]
ShowConfig = Annotated[bool, typer.Option("--show-config", help="Print all settings as a file for --config, and stop.")]
Devices = Annotated[int | None, typer.Option(help="With --rpc: devices that time; all that are free by default.")]
MovedImages = Annotated[
    Path | None, typer.Option(help="Where the run's images lie now, if they were moved; it is remembered.")
]
SkipBad = Annotated[bool, typer.Option("--skip-bad", help="Leave out images that cannot be used.")]
ConvertRgb = Annotated[bool, typer.Option("--convert-rgb", hidden=True)]  # in older scripts; every image is, now
Shared = Annotated[bool, typer.Option("--shared", help="Time on a GPU although another process uses it.")]

# torchrun takes every --run for a prefix of its own --run-path: hence the second name
Run = Annotated[
    Path,
    typer.Option(
        "--run", "--run-dir", file_okay=False, metavar="<path>", help="Run directory: where the stages read and write."
    ),
]
GivenRun = Annotated[Path | None, typer.Argument(file_okay=False, help="Run directory; the same as --run.")]
NamedRun = Annotated[
    Path | None,
    typer.Option("--run", "--run-dir", file_okay=False, metavar="<path>", help=f"Run directory; {DEFAULT_RUN}."),
]
Seed = Annotated[int, typer.Option(help="Seed of every random choice.")]


def effort_of(context: typer.Context, kind: type[AnyEffort]) -> AnyEffort:
    """The effort that a command is asked for: options that are given, then --config, then --effort, then the defaults.
    With --show-config it is printed, and the command ends.

    Raises:
        ConfigError: there is no such preset, or the file cannot be read, or has an unknown setting.
    """
    from chanas.files.yaml_files import read_mapping

    names = {field.name for field in dataclasses.fields(kind)}
    asked = context.params
    given = {name: value for name, value in asked.items() if name in names and is_given(context, name)}
    settings: dict[str, Any] = {}
    if (preset := asked.get("effort_name")) is not None:
        if preset not in (known := [name for name, of in PRESETS.items() if of["trials"] >= kind.least_trials]):
            raise ConfigError(unknown_name("effort", preset, known))
        settings |= PRESETS[preset]
    if (file := asked.get("config")) is not None:
        read = read_mapping(file, file, "file of settings", "settings such as trials and search", ConfigError)
        kind.of(read, str(file))  # its own errors name it
        settings |= read
    settings |= {name: str(value) if isinstance(value, Path) else value for name, value in given.items()}
    effort = kind.of(settings, "settings")
    if asked.get("show_config"):
        typer.echo(settings_text(effort), nl=False)
        raise typer.Exit
    return effort


def is_given(context: typer.Context, name: str) -> bool:
    """True if an option is on the command line."""
    source = context.get_parameter_source(name)
    return source is not None and source.name != "DEFAULT"


def refuse(context: typer.Context, names: Collection[str], why: str) -> None:
    """Refuse these options on the command line.

    Raises:
        ConfigError: there is one; names the first.
    """
    for parameter in context.command.params:
        name = str(parameter.name)
        if name in names and is_given(context, name):
            raise ConfigError(f"{parameter.opts[0]} {why}")


def refuse_others(context: typer.Context, taken: Collection[str], why: str) -> None:
    """Refuse options on the command line that are not among those taken, as `refuse` does."""
    refuse(context, {str(parameter.name) for parameter in context.command.params} - {*taken}, why)


def refuse_settings(
    settings: Effort | BaseModel, names: Iterable[str], why: str, options: Mapping[str, str] = MappingProxyType({})
) -> None:
    """Refuse settings, of a file say, that are others than by default.

    Args:
        options: those on the command line, by the settings that they give.

    Raises:
        ConfigError: there is one; names the first, by its option where that is given.
    """
    default = type(settings)()
    for name in names:
        if getattr(settings, name) != getattr(default, name):
            raise ConfigError(f"{options.get(name, f'the setting {name}')} {why}")


def settings_text(effort: Effort) -> str:
    """All settings as a YAML file, each with what its class says of it."""
    lines = []
    for name, value in effort.settings().items():
        if isinstance(value, dict):
            lines.append(f"{name}:")
            lines += [f"  {line}" for line in _commented(value, effort.search)]
        else:
            lines += _commented({name: value}, effort)
    return "\n".join(lines) + "\n"


def _commented(settings: dict[str, Any], owner: object) -> Iterator[str]:
    meanings = meanings_of(type(owner))
    for name, value in settings.items():
        yield from setting_lines(name, value, meanings[name])


def setting_lines(name: str, value: Any, meaning: str) -> Iterator[str]:
    """A setting of a YAML file, after what it means."""
    text = yaml.safe_dump({name: list(value) if isinstance(value, tuple) else value}, default_flow_style=False)
    yield from textwrap.wrap(meaning, 96, initial_indent="# ", subsequent_indent="#   ")
    yield text.rstrip("\n")


def meanings_of(kind: type) -> dict[str, str]:
    """The meaning of each setting, as the docstrings of its class and of those that it inherits have it."""
    found: dict[str, str] = {}
    for each in reversed(kind.__mro__):
        name = None
        for line in (inspect.cleandoc(each.__doc__ or "")).splitlines() if dataclasses.is_dataclass(each) else ():
            if (match := re.fullmatch(r"(\w+) {2,}(\S.*)", line)) is not None:
                name, found[match[1]] = match[1], match[2]
            elif name is not None and line.startswith("  "):
                found[name] += " " + line.strip()
            else:
                name = None
    return found


def one_run(given: Path | None, named: Path | None) -> RunDirectory:
    """The run of a command that takes it as an argument and as an option.

    Raises:
        ConfigError: both are given.
    """
    if given is not None and named is not None:
        raise ConfigError(f"expected a run once, got {given} and --run {named}")
    return RunDirectory(given or named or DEFAULT_RUN)


def usage_of(
    target: str,
    threads: int,
    dtype: str,
    batch: int,
    rpc: str | None = None,
    key: str | None = None,
    devices: int | None = None,
    shared: bool = False,
) -> Usage:
    """The use of a device that options ask for."""
    return Usage(target, threads, dtype, batch, Place(rpc, key, devices, shared))


def holds_tuned(folder: Path) -> bool:
    """True of a tuned network's folder."""
    from chanas.bundle.tuned import DOCUMENT

    return (folder / DOCUMENT).is_file()


@dataclass(frozen=True)
class PictureOptions:
    """The options about pictures; None where one is not given."""

    labels: Annotated[Path | None, typer.Option(help="Names of the classes, one a line.")] = None
    preset: Annotated[
        str | None,
        typer.Option("--preprocess", help="How pictures are prepared: imagenet, inception, unit (0 to 1) or raw."),
    ] = None
    mean: Annotated[
        str | None, typer.Option(help="Subtracted from pixels: one number, or one a channel: 0.485,0.456,0.406.")
    ] = None
    std: Annotated[str | None, typer.Option(help="What pixels are divided by then, likewise.")] = None
    white: Annotated[float | None, typer.Option("--range", help="What white is before that: 1, or 255.")] = None
    resize: Annotated[str | None, typer.Option(help="crop: short side, then the centre; or stretch.")] = None
    crop_ratio: Annotated[
        float | None, typer.Option("--crop", help="With crop: the part of the short side that is kept.")
    ] = None
    filter: Annotated[str | None, typer.Option(help="Of the resizing: bilinear or bicubic.")] = None
    channels: Annotated[str | None, typer.Option(help="rgb, bgr or grey.")] = None

    def changes(self) -> dict[str, Any]:
        """The changes in how pictures are prepared, as `preprocess_of` takes them.

        Raises:
            ConfigError: a mean or a deviation is no list of numbers.
        """
        given = {name: value for name, value in vars(self).items() if name != "labels" and value is not None}
        return given | {name: _numbers(f"--{name}", given[name]) for name in ("mean", "std") if name in given}


def with_pictures(command: Callable[..., None]) -> Callable[..., None]:
    """A command with the options about pictures in the place of its parameter `pictures`."""
    signature, options = (inspect.signature(taken, eval_str=True) for taken in (command, PictureOptions))

    @functools.wraps(command)
    def run(**given: Any) -> None:
        pictures = PictureOptions(**{name: given.pop(name) for name in options.parameters})
        command(pictures=pictures, **given)

    parameters: list[inspect.Parameter] = []
    for own in signature.parameters.values():
        parameters += options.parameters.values() if own.name == "pictures" else [own]
    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return run


def _numbers(option: str, text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(f"expected {option} 127 or {option} 0.485,0.456,0.406, got {text!r}") from None
