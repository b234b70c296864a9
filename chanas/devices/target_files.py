"""Targets that are not this machine: YAML files with a device's facts, those of `configs/targets` by name."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from chanas.core.gpu import MAX_REGISTERS_PER_THREAD, GPUFeatures
from chanas.core.target import HardwareTarget, fingerprint, gpu_target
from chanas.devices.host import HOST, Machine, known_targets, load_target, local_gpu
from chanas.errors import TargetError, unknown_name
from chanas.files.yaml_files import preset_or_file, read_mapping

_Text = Annotated[str, Field(min_length=1)]
_Feature = Annotated[str, Field(pattern=r"^[+-][a-z0-9][a-z0-9.-]*$")]
_Count = Annotated[int, Field(ge=1)]
_STRICT = ConfigDict(extra="forbid", frozen=True, strict=True)


def _no_more(file: BaseModel, small: str, large: str) -> None:
    """Raises PydanticCustomError: one of the file's numbers is larger than another that bounds it."""
    facts = {"name": small, "got": getattr(file, small), "bound": large, "limit": getattr(file, large)}
    if facts["got"] > facts["limit"]:
        raise PydanticCustomError("inconsistent", "{name}: expected at most {bound} ({limit}), got {got}", facts)


class ProcessorFile(BaseModel):
    """A processor: sizes in bytes, caches those of one core (the last one shared)."""

    model_config = _STRICT

    kind: Literal["cpu"]
    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.-]*$")]
    device: _Text
    mtriple: _Text
    mcpu: _Text
    mattr: list[_Feature] = Field(default=[], description="LLVM's features beside those of mcpu (+) or lacking (-)")
    num_cores: _Count
    vector_lanes: Literal[4, 8, 16]
    num_vector_registers: Annotated[int, Field(ge=8, le=32)]
    l1_bytes: _Count
    l2_bytes: _Count
    l3_bytes: Annotated[int, Field(ge=0)] = 0
    needs: list[_Text] = Field(default=[], description="flags of /proc/cpuinfo that its code needs to run")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        _no_more(self, "l1_bytes", "l2_bytes")
        if self.l3_bytes:
            _no_more(self, "l2_bytes", "l3_bytes")
        return self

    def target(self) -> HardwareTarget:
        return HardwareTarget(
            name=self.name,
            kind="llvm",
            num_threads=1,
            vector_lanes=self.vector_lanes,
            num_vector_registers=self.num_vector_registers,
            l1_bytes=self.l1_bytes,
            l2_bytes=self.l2_bytes,
            l3_bytes=self.l3_bytes,
            device=self.device,
            fingerprint=fingerprint(self.model_dump(mode="json", exclude=None if self.mattr else {"mattr"})),
            mcpu=self.mcpu,
            mtriple=self.mtriple,
            mattr=tuple(self.mattr),
        )

    def missing_flags(self, machine: Machine = HOST) -> tuple[str, ...] | None:
        """The flags that the machine lacks to run the code; None if it is of another kind altogether."""
        if machine.arch() != self.mtriple.partition("-")[0]:
            return None
        return tuple(sorted(set(self.needs) - machine.processor().flags))


class GPUFile(BaseModel):
    """An NVIDIA GPU: the fields of `GPUFeatures`, and its L2 cache in bytes."""

    model_config = _STRICT

    kind: Literal["cuda"]
    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.-]*$")]
    device: _Text
    arch: Annotated[str, Field(pattern=r"^sm_\d{2,3}$")]
    num_sms: _Count
    warp_size: _Count
    max_threads_per_block: _Count
    max_shared_bytes_per_block: _Count
    shared_bytes_per_sm: _Count
    registers_per_block: _Count
    registers_per_sm: _Count
    max_registers_per_thread: Annotated[int, Field(ge=16, le=255)] = MAX_REGISTERS_PER_THREAD
    l2_bytes: _Count

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        _no_more(self, "warp_size", "max_threads_per_block")
        _no_more(self, "max_shared_bytes_per_block", "shared_bytes_per_sm")
        _no_more(self, "max_registers_per_thread", "registers_per_block")
        _no_more(self, "registers_per_block", "registers_per_sm")
        return self

    def target(self) -> HardwareTarget:
        facts = self.model_dump(exclude={"kind", "name", "device", "l2_bytes"})
        return gpu_target(self.name, self.device, GPUFeatures(**facts), self.l2_bytes)


TargetFile = Annotated[ProcessorFile | GPUFile, Field(discriminator="kind")]
_SCHEMA: TypeAdapter[ProcessorFile | GPUFile] = TypeAdapter(TargetFile)


def read_target_file(name_or_path: str) -> ProcessorFile | GPUFile:
    """The description of a named device or of a YAML file.

    Raises:
        TargetError: the name is unknown, or the file is not there, not YAML, or does not say what its schema asks for.
    """
    source = preset_or_file(name_or_path, "targets", "target", TargetError, known_targets())
    data = read_mapping(source, name_or_path, "target file", "a target's facts", TargetError)
    try:
        return _SCHEMA.validate_python(data)
    except ValidationError as error:
        raise TargetError(f"{name_or_path}: {_first_fault(error)}") from error


def _first_fault(error: ValidationError) -> str:
    """Describe the first fault in one line: the key, what was expected, and what came."""
    fault = error.errors()[0]
    kind, where = fault["type"], [str(part) for part in fault["loc"]]
    if kind in ("union_tag_not_found", "union_tag_invalid"):
        got = "nothing" if kind == "union_tag_not_found" else f"'{fault['ctx']['tag']}'"
        return f"kind: expected cpu or cuda, got {got}"
    if kind == "inconsistent":
        return str(fault["msg"])
    file = GPUFile if where[0] == "cuda" else ProcessorFile
    key = ".".join(where[1:])
    if kind == "extra_forbidden":
        return unknown_name("key", key, file.model_fields)
    if kind == "missing":
        return f"{key} is missing: a description of kind {where[0]} needs {', '.join(_required(file))}"
    text = fault["msg"].removeprefix("Input ").removeprefix("String ").removeprefix("should ")
    return f"{key}: should {text}, got {fault['input']!r}"


def _required(file: type[ProcessorFile] | type[GPUFile]) -> list[str]:
    return sorted(name for name, field in file.model_fields.items() if field.is_required())


_HALF_BLOCK_ARCHS = ("sm_53", "sm_62")
"""Tegra X1 and X2: a block has half of a multiprocessor's registers."""


def arch_target(arch: str) -> HardwareTarget:
    """Any GPU of an architecture: the limits that all have in common from sm_53 to sm_120.

    CUDA C++ Programming Guide, "Technical specifications per compute capability": warps of 32, 1024 threads a block,
    64 Ki registers for a multiprocessor and for a block (half of them for a block of Tegra X1 and X2), 48 KiB of static
    shared memory; at least 64 KiB of it for a multiprocessor. The number of multiprocessors and the L2 cache are the
    device's own: 1 and 0 here.
    """
    common = GPUFeatures(
        arch=arch,
        num_sms=1,
        warp_size=32,
        max_threads_per_block=1024,
        max_shared_bytes_per_block=48 << 10,
        shared_bytes_per_sm=64 << 10,
        registers_per_block=1 << (15 if arch in _HALF_BLOCK_ARCHS else 16),
        registers_per_sm=1 << 16,
    )
    return gpu_target(f"cuda-{arch}", f"any GPU of {arch}", common, 0)


def describe_target(name: str, machine: Machine = HOST) -> HardwareTarget:
    """The descriptor of any target: `cpu` and `cuda` detected, others from their files.

    Raises:
        TargetError: the name is unknown, the file is not right, or there is no GPU in the machine.
    """
    if name == "cpu":
        return load_target("cpu", machine=machine)
    return local_gpu(machine) if name == "cuda" else read_target_file(name).target()
