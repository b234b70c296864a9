"""Settings in YAML: the presets that come with the package, and files of one's own."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import yaml

from chanas.errors import ChanasError, one_line, unknown_name

YAML_SUFFIXES = (".yaml", ".yml")


def presets(folder: str) -> dict[str, Traversable]:
    """The files of `configs/FOLDER` by their names without the suffix."""
    files = (resources.files("chanas") / "configs" / folder).iterdir()
    return {p.name.removesuffix(".yaml"): p for p in files if p.name.endswith(".yaml")}


def preset_or_file(
    name_or_path: str | Path, folder: str, kind: str, error_type: type[ChanasError], known: Iterable[str] = ()
) -> Path | Traversable:
    """The YAML file that is meant by the name of a preset in `configs/FOLDER`, or by a path that ends as such files do.

    Args:
        kind: what errors call it, such as `search space`.
        known: further names for the message about an unknown one.

    Raises:
        error_type: there is no such file or preset.
    """
    path = Path(name_or_path)
    if path.suffix in YAML_SUFFIXES:
        if not path.is_file():
            raise error_type(f"{kind} file {path} {'is a folder' if path.is_dir() else 'does not exist'}")
        return path
    found = presets(folder)
    if str(name_or_path) in found:
        return found[str(name_or_path)]
    if path.is_file():
        raise error_type(f"{kind} file {path} has another ending than .yaml; rename it, or name another file")
    raise error_type(f"{unknown_name(kind, str(name_or_path), {*found, *known})}, or a YAML file")


def read_mapping(
    source: Path | Traversable, name: str | Path, kind: str, fields: str, error_type: type[ChanasError]
) -> dict[str, Any]:
    """Read the mapping in a YAML file; the errors call it `name`, a `kind` of file that maps `fields`.

    Raises:
        error_type: the file cannot be read, is not YAML, or holds something else than a mapping.
    """
    try:
        text = source.read_text(encoding="utf-8")
        data = yaml.safe_load(text)
        if any("\0" in token.value for token in yaml.scan(text) if isinstance(token, yaml.ScalarToken)):
            raise ValueError("a text with a null character, which no name has")
    except (OSError, UnicodeDecodeError) as error:
        raise error_type(f"{kind} {name} cannot be read: {error}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: a date that is none, say
        raise error_type(f"{name} is not valid YAML: {one_line(error)}") from error
    if not isinstance(data, dict):
        raise error_type(f"{name}: expected a mapping of {fields}, got {type(data).__name__}")
    return data
