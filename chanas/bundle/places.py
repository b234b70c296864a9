"""Places of bundles: found from the path of a bundle or a run, named after their budgets, and never lost to a later
one."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from chanas.bundle import tuned
from chanas.bundle.document import DOCUMENT, WEIGHTS, read_document
from chanas.core.units import format_bytes, format_count, format_latency
from chanas.errors import CheckpointError, ConfigError
from chanas.files.run import RunDirectory
from chanas.files.writing import free_name, replacing_folder

_LIMITS: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("top1", "accuracy", "{:.6g}".format),
    ("macs", "macs", format_count),
    ("params", "params", format_count),
    ("peak_memory_bytes", "peak-memory", format_bytes),
)
_NAME = re.compile(r"\w[\w.@+-]*")


def bundle_at(place: Path | str) -> Path:
    """The folder of a bundle: `place` itself, or the newest bundle where `place` is a run directory.

    Raises:
        CheckpointError: it is neither; the message says what it is, and what makes a bundle.
    """
    place = Path(place)
    run = RunDirectory(place)
    for folder in (place, run.bundle):
        if (folder / DOCUMENT).is_file():
            return folder
    if (place / tuned.DOCUMENT).is_file():
        raise CheckpointError(
            f"{place} is a network that `chanas tune` made, no bundle; `chanas predict` classifies with it, "
            "`chanas bench` times it, `chanas export` makes a C library of it, and Model.open runs it in Python"
        )
    if not place.is_dir():
        what = "is a file; expected the folder of a bundle or a run" if place.exists() else "does not exist"
        raise CheckpointError(f"bundle {place} {what}; `chanas search` makes one")
    several = sorted(str(document.parent) for document in run.bundles.glob(f"*/{DOCUMENT}"))
    if several:
        raise CheckpointError(f"run {place} has a bundle for each target; name one: {', '.join(several)}")
    if run.is_begun:
        raise CheckpointError(
            f"run {place} has no bundle yet; `chanas search --run {place} --latency BUDGET` makes one"
        )
    raise CheckpointError(
        f"expected a bundle ({DOCUMENT}), a run that has one, or a tuned network ({tuned.DOCUMENT}); {place} is none"
    )


def bundles_of(run: RunDirectory) -> Iterator[dict[str, Any]]:
    """Yield the documents of a run's bundles that can be read."""
    for document in sorted(run.bundles.glob(f"*/{DOCUMENT}")):
        found = _content(document.parent)
        if found is not None:
            yield found


def default_name(budgets_s: Mapping[str, float], constraints: Mapping[str, float], with_target: bool = False) -> str:
    """The name of a bundle by what was asked for: `2ms`, `cpu-2t-2ms` on another target than `cpu`,
    `cpu-5ms+cpu-2t-4ms` on several, `2ms-macs-300M` with a further limit, `accuracy-0.95` of the fastest network.

    Args:
        budgets_s: seconds by target.
        constraints: the other ones, as bundles store them.
        with_target: name `cpu`, too.
    """
    texts = {name: "" if "top1" in constraints else format_latency(s) for name, s in budgets_s.items()}
    if list(texts) == ["cpu"] and not with_target:
        parts = list(texts.values())
    else:
        parts = ["+".join("-".join(filter(None, named)) for named in texts.items())]
    for key, name, text in _LIMITS:
        if constraints.get(key) is not None:
            parts.append(f"{name}-{text(constraints[key])}")
    return "-".join(filter(None, parts)).replace(" ", "")


def check_name(name: str) -> None:
    """Raises ConfigError: a bundle cannot be called so."""
    if not _NAME.fullmatch(name):
        raise ConfigError(f"expected a name of letters, digits and . @ + - _, such as 2ms-first, got {name!r}")


def place_of_earlier(path: Path, document: Mapping[str, Any]) -> tuple[Path | None, str]:
    """The place that keeps the bundle at `path` when one with `document` comes there: None for the same network,
    which is replaced. The text says which; it is empty where the place is free.

    Args:
        document: content of the new bundle's `codesign.json`, as `read_document` gives it.
    """
    if not os.path.lexists(path):
        return None, ""
    earlier = _content(path)
    if earlier is not None and _identity(earlier) == _identity(document):
        latency_s = earlier["targets"][0]["measured"].get("latency_s")
        then = "" if latency_s is None else f", which measured {format_latency(latency_s)} then"
        return None, f"replaced {path}: the same network{then}"
    kept = free_name(path)
    return kept, f"kept the earlier {path}, another network, as {kept}"


def point_to(run: RunDirectory, path: Path) -> str:
    """Make `run.bundle` a link to a bundle in `run.bundles`; a copy of it on a file system without links.

    A folder in its place, of an earlier version or such a copy, becomes one of `run.bundles` unless it is one already;
    the text says so, and is empty otherwise.
    """
    told = ""
    if os.path.lexists(run.bundle) and not run.bundle.is_symlink():
        told = _adopt(run)
    link = run.root / ".bundle.link"
    try:
        link.unlink(missing_ok=True)  # of a process that was killed
        link.symlink_to(os.path.relpath(path, run.root), target_is_directory=True)
        os.replace(link, run.bundle)
    except OSError:
        with replacing_folder(run.bundle) as copy:
            shutil.copytree(path, copy, dirs_exist_ok=True)
    return told


def _adopt(run: RunDirectory) -> str:
    """Move the folder `run.bundle` to `run.bundles`, or remove it where that has the same network."""
    document = _content(run.bundle)
    if document is not None and any(_identity(other) == _identity(document) for other in bundles_of(run)):
        shutil.rmtree(run.bundle)
        return ""
    name = "earlier"
    if document is not None:
        budgets_s = {part["target"]["name"]: part["constraints"]["latency_s"] for part in document["targets"]}
        name = default_name(budgets_s, document["constraints"])
    place = run.bundles / name
    if os.path.lexists(place):
        place = free_name(place)
    place.parent.mkdir(parents=True, exist_ok=True)
    os.rename(run.bundle, place)
    return f"kept the bundle of an earlier search as {place}"


def _content(folder: Path) -> dict[str, Any] | None:
    try:
        return read_document(folder / DOCUMENT, dict)
    except CheckpointError:
        return None


def _identity(document: Mapping[str, Any]) -> tuple[Any, ...]:
    """The facts by which bundles differ: network, weights, and the schedules of each target."""
    targets = [(part["target"], part.get("schedules")) for part in document["targets"]]
    return document["architecture"]["key"], document["hashes"].get(WEIGHTS), targets
