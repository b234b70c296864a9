"""The folder of a tuned network, written whole."""

from __future__ import annotations

import math
import os
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors.numpy import save_file

from chanas.bundle.tuned import DOCUMENT, MODULE, SOURCE, WEIGHTS, TunedNetwork
from chanas.core.units import format_latency
from chanas.core.usage import HERE, Usage
from chanas.errors import ChanasError, ConfigError
from chanas.files.writing import file_digest, free_name, replacing_folder, write_json

if TYPE_CHECKING:
    from chanas.compiler.cpu.module import ProgramModule


def default_folder(
    run: Path, name: str, usage: Usage, shapes: Mapping[str, Sequence[int]] = types.MappingProxyType({})
) -> Path:
    """The place of a network in the run directory, one for each use of a device and each choice of shapes: `NAME`,
    `NAME-2t` for two threads, `NAME-1x3x64x64` for an input of this shape, `NAME-raspberry-pi-4`."""
    of_inputs = "".join(f"-{'x'.join(map(str, shapes[given]))}" for given in sorted(shapes))
    use = str(usage.name)
    on_device = use.removeprefix(HERE.device) if usage.device == HERE.device else f"-{use}"
    return run / f"{name}{of_inputs}{on_device}"


def check_place(folder: Path, run: Path | None = None) -> None:
    """Check that a network may be saved in `folder`, before the time for tuning it is spent.

    Args:
        run: the run directory, which must not lie in a folder that is replaced.

    Raises:
        ConfigError: there is something else than an earlier tuned network, or it cannot be written.
    """
    is_free = not os.path.lexists(folder) or (folder.is_dir() and not any(folder.iterdir()))
    if not is_free and not (folder / DOCUMENT).is_file():
        raise ConfigError(f"{folder} is there already and was not made by `chanas tune`; name another folder")
    if run is not None and run.resolve().is_relative_to(folder.resolve()):
        raise ConfigError(
            f"{folder} is replaced as a whole, and would take the records of run {run} along; name another folder"
        )
    parent = next(p for p in folder.absolute().parents if os.path.lexists(p))
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        raise ConfigError(f"cannot write {folder}: {parent} is no folder that you may write to; name another one")


def write_folder(
    folder: Path, library: bytes, made: ProgramModule, document: Mapping[str, Any], *, keep_faster: bool = False
) -> str:
    """Write module, weights and `tuned.json`; a folder that is there is replaced when the new one is complete, or set
    aside if it is of another network. The text says what became of it; empty where there was none.

    Args:
        keep_faster: leave what is there if it is the same network, of another tuning, and faster.

    Raises:
        ConfigError: there is something else than an earlier tuned network.
        ChanasError: it cannot be written.
    """
    check_place(folder)
    kept, told, earlier_s = _place_of_earlier(folder, document)
    if keep_faster and earlier_s < document["measured"]["latency_s"]:
        return told
    names = [f"parameter{i}" for i in range(len(made.parameters))]
    with replacing_folder(folder, kept) as temporary:
        (temporary / MODULE).write_bytes(library)
        save_file(dict(zip(names, made.parameters, strict=True)), temporary / WEIGHTS)
        (temporary / SOURCE).write_text(made.to_json(), encoding="utf-8")
        hashes = {name: file_digest(temporary / name) for name in (MODULE, WEIGHTS, SOURCE)}
        write_json(temporary / DOCUMENT, {**document, "parameters": names, "hashes": hashes})
    return told


def _place_of_earlier(folder: Path, document: Mapping[str, Any]) -> tuple[Path | None, str, float]:
    """The place that the network in `folder` moves to, None for the same one, which is replaced; a line about it; and
    its latency in seconds if it is the same one of another tuning, else infinity."""
    if not (folder / DOCUMENT).is_file():
        return None, "", math.inf
    kept = free_name(folder)
    try:
        earlier = TunedNetwork.open(folder).document
    except ChanasError:  # damaged, or of another version
        return kept, f"what was in {folder} cannot be read, and is kept as {kept}", math.inf
    if _identity(earlier) == _identity(document):
        if earlier["run_id"] == document["run_id"]:
            return None, "", math.inf
        earlier_s = float(earlier["measured"]["latency_s"])
        return None, f"the same network took {format_latency(earlier_s)} before", earlier_s
    return kept, f"what was in {folder} is another network or for another device, and is kept as {kept}", math.inf


def _identity(document: Mapping[str, Any]) -> tuple[Any, ...]:
    inputs = [(entry["name"], tuple(entry["shape"])) for entry in document["inputs"]]
    return document["origin"].get("sha256"), inputs, document["target"]["name"], document["target"]["fingerprint"]
