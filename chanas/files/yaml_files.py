"""Settings in YAML: the presets that come with the package, and files of one's own."""

from __future__ import annotations

from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import yaml

from chanas.errors import ChanasError


def presets(folder: str) -> dict[str, Traversable]:
    """The files of `configs/FOLDER` by their names without the suffix."""
    files = (resources.files("chanas") / "configs" / folder).iterdir()
    return {p.name.removesuffix(".yaml"): p for p in files if p.name.endswith(".yaml")}


def read_mapping(
    source: Path | Traversable, name: str | Path, kind: str, fields: str, error_type: type[ChanasError]
) -> dict[str, Any]:
    """Read the mapping in a YAML file; the errors call it `name`, a `kind` of file that maps `fields`.

    Raises:
        error_type: the file cannot be read, is not YAML, or holds something else than a mapping.
    """
    try:
        data = yaml.safe_load(source.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise error_type(f"{kind} {name} cannot be read: {error}") from error
    except yaml.YAMLError as error:
        raise error_type(f"{name} is not valid YAML: {' '.join(str(error).split())}") from error
    if not isinstance(data, dict):
        raise error_type(f"{name}: expected a mapping of {fields}, got {type(data).__name__}")
    return data
