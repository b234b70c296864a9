"""A command's options as a sweep sees them: by name, checked as the command line checks them, before anything runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from chanas.errors import ConfigError, unknown_name

_OWN = ("run", "out", "json", "resume", "overwrite", "help")
"""Options that the sweep sets itself."""
_INSTEAD_OF_RUN = ("file", "simulate")
"""Parameters that name what is read, so that no run directory is."""


class Parameter(Protocol):
    """An option or an argument of a command, as far as it is used here (click's `Parameter`)."""

    name: str | None
    opts: list[str]
    secondary_opts: list[str]
    param_type_name: str
    multiple: bool
    nargs: int


class SweptCommand:
    """A command of the command line, of which rows are runs.

    Args:
        root: the group of all commands.
        words: the command, such as `lut check`.

    Raises:
        ConfigError: there is no such command.
    """

    def __init__(self, root: Any, words: str) -> None:
        command = root
        for word in words.split():
            command = getattr(command, "commands", {}).get(word)
        if command is None or hasattr(command, "commands"):
            raise ConfigError(f"unknown command '{words}'; `chanas --help` lists them")
        self._command, self._words = command, words
        self._parameters: dict[str, Any] = {_name(p): p for p in command.params}

    @property
    def names(self) -> list[str]:
        """Names of the options that a grid may set."""
        return [name for name in self._parameters if name not in _OWN]

    def arguments(self, parameters: Mapping[str, Any], folder: Path, goes_on: bool) -> list[str]:
        """Arguments of Python that run the command for a row: `-m chanas tune --trials=8 --run=… -- net.onnx`.

        Raises:
            ConfigError: there is no such option, or it does not take this value; the message says what it takes.
        """
        line = self._line(parameters, folder, goes_on)
        try:
            self._command.make_context(f"chanas {self._words}", list(line))
        except Exception as error:
            if not hasattr(error, "format_message"):
                raise
            row = ", ".join(f"{name} {value}" for name, value in parameters.items())
            raise ConfigError(f"`{self._words}` with {row}: {error.format_message()}") from None
        return ["-m", "chanas", *self._words.split(), *line]

    def _line(self, parameters: Mapping[str, Any], folder: Path, goes_on: bool) -> list[str]:
        unknown = [name for name in parameters if name not in self.names]
        if unknown:
            raise ConfigError(f"`{self._words}`: {unknown_name('option', unknown[0], self.names)}")
        resumes = goes_on and any(folder.rglob("checkpoint.safetensors"))
        own = {"run": str(folder), "json": True, "resume": True if resumes else None}
        if any(parameters.get(name) is not None for name in _INSTEAD_OF_RUN):
            own["run"] = None
        if "out" in self._parameters and self._parameters["out"].param_type_name == "argument":
            own["out"] = str(folder / "out")
        options, places = [], []
        for name, value in {**parameters, **own}.items():
            parameter = self._parameters.get(name)
            if parameter is None:
                continue
            texts = self._texts(name, parameter, value)
            if parameter.param_type_name == "argument":
                places.append((list(self._parameters).index(name), texts))
            else:
                options += texts
        return [*options, "--", *(text for _, texts in sorted(places) for text in texts)]

    def _texts(self, name: str, parameter: Parameter, value: Any) -> list[str]:
        """The words of one parameter on the command line."""
        if value is None:
            return []
        is_argument = parameter.param_type_name == "argument"
        if getattr(parameter, "is_flag", False):
            if not isinstance(value, bool):
                raise ConfigError(f"`{self._words}`: {name} is true or false, got {value!r}")
            return parameter.opts[:1] if value else parameter.secondary_opts[:1]
        values = value if isinstance(value, list) else [value]
        if isinstance(value, list) and not (parameter.multiple or parameter.nargs != 1):
            raise ConfigError(f"`{self._words}`: {name} takes one value, got a list")
        if any(v is None or isinstance(v, bool) for v in values):
            raise ConfigError(f"`{self._words}`: {name} takes numbers or texts, got {value!r}; put words in quotes")
        return [str(v) if is_argument else f"{parameter.opts[0]}={v}" for v in values]


def _name(parameter: Parameter) -> str:
    """The name in a grid: an option's without dashes, an argument's own."""
    if parameter.param_type_name == "argument":
        return str(parameter.name)
    return parameter.opts[0].lstrip("-").replace("-", "_")
