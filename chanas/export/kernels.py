"""A network's kernels as object files, compiled in another process."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from chanas.compiler.cpu.call_list import CallList
from chanas.compiler.cpu.static_library import ALIGNMENT, Kernels
from chanas.compiler.space import Point
from chanas.core.arch import BlockConfig
from chanas.core.codec import fields_from_json
from chanas.core.target import HardwareTarget
from chanas.measuring.messages import BlockAt, Build, ModuleFile
from chanas.measuring.worker.compiler import open_compiler

# All functions of a network one after the other: a second each at most.
_NETWORK_TIMEOUT_S = 1800.0


def build_kernels(
    name: str,
    blocks: Sequence[BlockConfig],
    points: Sequence[Sequence[Point]],
    target: HardwareTarget,
    folder: Path,
) -> Kernels:
    """Compile a network's blocks to object files in `folder`, in another process; their symbols begin with `name`.

    Raises:
        ScheduleError: a point is not in its operator's space.
        TargetError: the compiler crashes, or makes other object code than is expected here.
    """
    identities = [(block, tuple(tuple(p) for p in own)) for block, own in zip(blocks, points, strict=True)]
    symbols = {identity: f"{name}_block{i}" for i, identity in enumerate(dict.fromkeys(identities))}
    objects, workspace_bytes, features = [], ALIGNMENT, ()
    with open_compiler(target) as compiler:
        for (block, own), symbol in symbols.items():
            objects.append(folder / f"{symbol}.o")
            what = BlockAt(block, own)
            request = Build(target=target, what=what, path=objects[-1], form="kernels", name=name)
            built = compiler.result(request, f"block {block.key}")
            workspace_bytes, features = max(workspace_bytes, built["workspace_bytes"]), built["features"]
    return Kernels(tuple(symbols[i] for i in identities), tuple(objects), workspace_bytes, tuple(features))


def build_calls(name: str, module: Path, num_inputs: int, target: HardwareTarget, folder: Path) -> CallList:
    """Compile a Relax module's functions to object files in `folder`, in another process; their symbols begin with
    `name`.

    Raises:
        TargetError: the module does what takes TVM's runtime, or the compiler crashes.
    """
    request = Build(target=target, what=ModuleFile(module, num_inputs), path=folder, form="kernels", name=name)
    with open_compiler(target) as compiler:
        found: CallList = fields_from_json(CallList, compiler.result(request, "the network", _NETWORK_TIMEOUT_S))
    return found
