"""Parts of chanas that installed packages add, found by their entry points."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import Any

from chanas.errors import ConfigError


def installed(group: str) -> dict[str, EntryPoint]:
    """The entry points of a group by name, such as those of `chanas.cost_models`."""
    return {found.name: found for found in entry_points(group=group)}


def load(found: EntryPoint) -> Any:
    """The object that an entry point names.

    Raises:
        ConfigError: it cannot be imported, whatever the package raises.
    """
    try:
        return found.load()
    except Exception as error:  # another's code may raise anything
        package = f"package {found.dist.name}" if found.dist else "a package"
        raise ConfigError(
            f"{found.group.removeprefix('chanas.')} '{found.name}' of {package} does not load "
            f"({type(error).__name__}: {error}); mend or uninstall it"
        ) from error
