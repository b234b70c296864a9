"""The use of a device as it is asked for, before anything is known of the device itself: its name, threads, dtype and
batch, the place where it is, and the names of targets that say all this in one word."""

from __future__ import annotations

import re
from dataclasses import dataclass

DTYPES = {"f32": "float32", "bf16": "bfloat16", "int8": "int8"}
"""Types of weights and activations by the names that commands have for them."""
GPU_DTYPES = {"f32": "float32", "f16": "float16", "tf32": "tf32"}
"""Those that GPUs have kernels for. tf32 is float32 in memory; its products are rounded by tensor cores."""

_DTYPE = "|".join(DTYPES | GPU_DTYPES)
SHORT_DTYPES = {long: short for short, long in (DTYPES | GPU_DTYPES).items()}
"""The names of dtypes as commands spell them, by those of TVM."""
_NAME = re.compile(rf"(?P<device>.+?)(-(?P<threads>\d+)t)?(-(?P<dtype>{_DTYPE}))?(-b(?P<batch>\d+))?")


@dataclass(frozen=True)
class TargetName:
    """The name of a target, after which its latency table is called: `cpu`, `cpu-2t` for two threads, `cpu-2t-bf16`,
    `cuda-f16-b32`, `cpu@pi4` for a device of the key `pi4`. What is left out is 1, `f32`, or this machine."""

    device: str = "cpu"
    threads: int = 1
    dtype: str = "f32"
    batch: int = 1
    key: str = ""

    @classmethod
    def parse(cls, text: str) -> TargetName:
        """The parts of a name; one that is not written like that is a device's as a whole."""
        kind, _, key = text.partition("@")
        match = _NAME.fullmatch(kind)
        if match is None:
            return cls(kind, key=key)
        threads, batch = int(match["threads"] or 1), int(match["batch"] or 1)
        return cls(match["device"], threads, match["dtype"] or "f32", batch, key)

    def __str__(self) -> str:
        threads = "" if self.threads == 1 else f"-{self.threads}t"
        dtype = "" if self.dtype == "f32" else f"-{self.dtype}"
        images = "" if self.batch == 1 else f"-b{self.batch}"
        return f"{self.device}{threads}{dtype}{images}{f'@{self.key}' if self.key else ''}"


@dataclass(frozen=True)
class Place:
    """The place where something is timed: this machine by default, devices elsewhere with a tracker and a key.

    rpc          a tracker's HOST:PORT
    key          what devices elsewhere are asked for by
    num_devices  how many of them time; None: all that are free and alike
    shared       time on a GPU although another process uses it
    unproven     searches per target alone: a target that nothing can be timed on is searched for by its table
    """

    rpc: str | None = None
    key: str | None = None
    num_devices: int | None = None
    shared: bool = False
    unproven: bool = False


THIS_MACHINE = Place()


@dataclass(frozen=True)
class Usage:
    """The use of a device: `Usage("cpu", threads=2)`, `Usage("cuda", dtype="f16", batch=32)`.

    device   cpu, cuda, or the name of a described device
    threads  of one inference
    dtype    of weights and activations: f32; bf16 on processors that have it; f16 or tf32 on GPUs
    batch    images at once, on GPUs; a latency is that of all of them together
    place    where the device is
    """

    device: str = "cpu"
    threads: int = 1
    dtype: str = "f32"
    batch: int = 1
    place: Place = THIS_MACHINE

    @classmethod
    def of(cls, name: TargetName) -> Usage:
        """The use that a target's name says, on this machine."""
        return cls(name.device, name.threads, name.dtype, name.batch)

    @property
    def name(self) -> TargetName:
        """The name of the target that is used like that."""
        return TargetName(self.device, self.threads, self.dtype, self.batch, self.place.key or "")


HERE = Usage()
"""One thread of this machine's processor, in f32."""
