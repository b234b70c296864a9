"""Latency tables that come with chanas, and which of them a new processor's table is best made from."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from chanas.core.arch import SearchSpace
from chanas.core.latency import LatencyLUT
from chanas.core.target import HardwareTarget
from chanas.errors import ConfigError, LUTError, unknown_name


def shipped_tables() -> dict[str, Path]:
    """Files by name, such as `mbv3-amd-zen4-cpu`."""
    return {path.stem: path for path in Path(str(resources.files("chanas") / "luts")).glob("*.json")}


def find_table(name: str | Path) -> Path:
    """A table's file by its path, or by the name of one that comes with chanas, such as `mbv3-amd-zen4-cpu`.

    Raises:
        ConfigError: there is neither; the message names those that come with chanas.
    """
    if Path(name).is_file():
        return Path(name)
    shipped = shipped_tables()
    if str(name) not in shipped:
        raise ConfigError(unknown_name("latency table", str(name), sorted(shipped)) + ", or the path of a file")
    return shipped[str(name)]


def is_shipped(path: Path) -> bool:
    """True of the file of a table that comes with chanas."""
    return path.resolve() in {shipped.resolve() for shipped in shipped_tables().values()}


def check_own(path: Path) -> None:
    """Raise LUTError where a table that is about to be changed comes with chanas."""
    if is_shipped(path):
        raise LUTError(
            f"table {path.stem} comes with chanas and is not changed; make one of your own from it with "
            f"`chanas lut adapt --from {path.stem}`"
        )


def nearest_table(target: HardwareTarget, space: SearchSpace | None = None) -> tuple[str, LatencyLUT] | None:
    """The table whose schedules are the nearest to those of a processor, and its name: of the same dtype, vectors,
    registers and threads as far as there is one; None where none has the blocks of `space`, and for GPUs."""
    tables = {name: LatencyLUT.load(path) for name, path in sorted(shipped_tables().items())}
    fitting = {
        name: table
        for name, table in tables.items()
        if table.header.target.kind == target.kind and (space is None or table.is_of(space))
    }
    if target.gpu is not None or not fitting:
        return None

    def distance(name: str) -> tuple[object, ...]:
        made_on = fitting[name].header.target
        return (
            made_on.dtype != target.dtype,
            made_on.vector_lanes != target.vector_lanes,
            made_on.num_vector_registers != target.num_vector_registers,
            made_on.has_matrices != target.has_matrices,
            abs(made_on.num_threads - target.num_threads),
            -len(fitting[name].rows),
            name,
        )

    best = min(fitting, key=distance)
    return best, fitting[best]
