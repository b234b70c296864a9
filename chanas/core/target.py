"""Hardware targets: the paper's hardware descriptor (equation 4's D_hard). What schedules depend on stands here and
nowhere else: vector width, registers, caches, threads; and the fingerprint by which a table knows its device."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import platform
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from importlib import metadata
from typing import Any, Literal

from chanas.core.codec import fields_from_json, fields_to_json
from chanas.core.gpu import GPUFeatures
from chanas.core.processor import Processor, host_processor
from chanas.core.usage import GPU_DTYPES, SHORT_DTYPES, TargetName
from chanas.errors import TargetError, unknown_name

LOCAL_TARGETS = ("cpu", "cuda")
"""Targets that are detected on this machine; other targets are descriptions (`chanas.devices.target_files`)."""
LAYOUTS = (4, 8, 16, 32)
"""Channels of a block that maps may be in on processors."""
_FIRST_TF32 = 80
# Fewer registers than these hold no tile of sums that hides the latency of multiply-adds.
_LEAST_REGISTERS = 8
# Fields that a target's JSON does not name where they are what they usually are.
_OMITTED = ("mcpu", "mtriple", "mattr", "gpu", "batch", "has_matrices", "has_dots")
# Flags by which processors of one model are told apart: what schedules may depend on.
_X86_SCHEDULING_FLAGS = ("sse4_2", "avx", "avx2", "fma", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16")
_NEWER_X86_FLAGS = ("avx512_fp16", "amx_tile", "amx_bf16", "amx_int8")
_ARM_DOTS = ("asimddp", "i8mm")
_ARM_SCHEDULING_FLAGS = ("asimd", "asimdhp", "asimddp", "bf16", "i8mm", "sve", "sve2")
_SCHEDULING_FLAGS = (*_X86_SCHEDULING_FLAGS, *_NEWER_X86_FLAGS, *_ARM_SCHEDULING_FLAGS)


@dataclass(frozen=True)
class HardwareTarget:
    """A device and how it is used.

    name                  what files are called after: "cpu", "cpu-2t" for two threads, "cpu-2t-bf16", "cuda-f16-b32"
    kind                  TVM's target kind
    num_threads           threads of one inference
    vector_lanes          float32 values in one vector register
    num_vector_registers  how many accumulators can live in registers
    l1_bytes, l2_bytes    data caches of one core
    l3_bytes              last cache level, shared
    device                the device's own name
    fingerprint           hash of what was detected; two devices of different fingerprint don't share a LUT
    dtype                 of weights and activations; sums are float32
    mcpu, mtriple         LLVM's names of the processor (beside a GPU: of the one that launches its kernels) and of its
                          platform; empty: this machine's
    mattr                 instruction sets that the processor has beside those of `mcpu`, or lacks: "+avx512bf16"
    gpu                   what a GPU is made of; None for a processor
    batch                 images of one inference: a latency is that of all of them together
    has_matrices          a processor has matrix registers (AMX) that take the dtype, and its system lets them be used
    has_dots              a processor adds up four products of bytes by one instruction (VNNI) in its longest vectors;
                          of targets that have operators in int8

    On a GPU a vector is what one thread loads at once, the vector registers are a thread's registers, and the L1 cache
    is that of one multiprocessor.
    """

    name: str
    kind: Literal["llvm", "cuda"]
    num_threads: int
    vector_lanes: int
    num_vector_registers: int
    l1_bytes: int
    l2_bytes: int
    l3_bytes: int
    device: str
    fingerprint: str
    dtype: str = "float32"
    mcpu: str = ""
    mtriple: str = ""
    mattr: tuple[str, ...] = ()
    gpu: GPUFeatures | None = None
    batch: int = 1
    has_matrices: bool = False
    has_dots: bool = False

    @property
    def dtype_name(self) -> str:
        """The dtype as commands spell it: f32, bf16, int8, f16 or tf32."""
        return SHORT_DTYPES[self.dtype]

    @property
    def description(self) -> str:
        """The device in words: `GPU NVIDIA H200 [sm_90]`."""
        kind, arch = ("CPU", self.compiled_for) if self.gpu is None else ("GPU", self.gpu.arch)
        return f"{kind} {self.device}{f' [{arch}]' if arch else ''}"

    @property
    def compiled_for(self) -> str:
        """The processor as it is given to LLVM, in one line: `icelake-client +avx512bf16`; empty: this machine's."""
        return " ".join((self.mcpu, *self.mattr))

    @property
    def instruction_set(self) -> str:
        """The processor, or the GPU's architecture, that code is made for, in the compiler's words: `sm_90`."""
        if self.gpu is not None:
            return self.gpu.arch
        return self.compiled_for or host_processor().compiled_for

    @property
    def local_name(self) -> str:
        """The name of such a device on the machine that has it, one of `LOCAL_TARGETS`."""
        return "cpu" if self.gpu is None else "cuda"

    @property
    def required_gpu(self) -> GPUFeatures:
        """Raises TargetError: the target is a processor."""
        if self.gpu is None:
            raise TargetError(f"expected a GPU, got target '{self.name}' ({self.device})")
        return self.gpu

    def to_json(self) -> dict[str, Any]:
        """The JSON form, without the fields that only other devices have: the file of a processor names no GPU and no
        batch."""
        return fields_to_json(self, _OMITTED)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> HardwareTarget:
        target: HardwareTarget = fields_from_json(cls, data)
        return target

    def tvm_target(self, host: Processor | None = None) -> Any:
        """The `tvm.target.Target` of the device (imports tvm).

        Args:
            host: the processor of a target that names none; this machine's by default.
        """
        import tvm

        if self.gpu is not None:
            limits = {
                "arch": self.gpu.arch,
                "max_threads_per_block": self.gpu.max_threads_per_block,
                "max_shared_memory_per_block": self.gpu.max_shared_bytes_per_block,
                "thread_warp_size": self.gpu.warp_size,
            }
            return tvm.target.Target({"kind": self.kind, **limits}, host=self._processor(host))
        return tvm.target.Target(self._processor(host) | {"num-cores": self.num_threads})

    def llvm_features(self) -> tuple[str, ...]:
        """LLVM's features of a processor: `avx2`, `dotprod` (imports tvm)."""
        from tvm.target import codegen

        return tuple(sorted(map(str, codegen.llvm_get_cpu_features(self.tvm_target()))))

    def takes_bfloat16(self) -> bool:
        """True if code for a processor can be in bfloat16, whatever dtype it is used in (imports tvm)."""
        return "avx512bf16" in self.llvm_features()

    def _processor(self, host: Processor | None) -> dict[str, Any]:
        """The processor, or the one that launches what the GPU does, as TVM describes it."""
        mcpu, mattr = self.mcpu, self.mattr
        if not mcpu:
            host = host or host_processor()
            mcpu, mattr = host.mcpu, host.mattr
        options: dict[str, Any] = {"kind": "llvm", "mcpu": mcpu}
        options |= {"mattr": list(mattr)} if mattr else {}
        return options | ({"mtriple": self.mtriple} if self.mtriple else {})


def llvm_targets() -> list[str]:
    """The kinds of processors that the compiler makes code for, as triples call them (imports tvm)."""
    import tvm

    listed = tvm.get_global_func("target.llvm_get_targets", allow_missing=True)
    return [str(name).replace("-", "_") for name in listed()] if listed is not None else []


def llvm_version() -> int | None:
    """The major version of the LLVM inside the compiler, where it tells (imports tvm)."""
    import tvm

    asked = tvm.get_global_func("target.llvm_version_major", allow_missing=True)
    return None if asked is None else int(asked())


def this_machine() -> str:
    """This machine's kind of processor as triples call it: `x86_64`, `aarch64`."""
    return platform.machine().lower().replace("amd64", "x86_64").replace("arm64", "aarch64")


def tvm_version() -> str:
    """The installed compiler's version, without importing it."""
    return metadata.version("apache-tvm")


def scheduling_flags(processor: Processor) -> list[str]:
    """The instruction sets of a processor that schedules may depend on, as Linux calls them."""
    return [flag for flag in _SCHEDULING_FLAGS if flag in processor.flags]


def processor_dtypes(processor: Processor) -> tuple[str, ...]:
    """The dtypes that code for a processor can be in."""
    return dtypes_of(processor.used_flags)


def dtypes_of(flags: Collection[str]) -> tuple[str, ...]:
    """The dtypes that code for processors with such flags can be in. bf16 needs AVX512_BF16: its kernels use 512-bit
    vectors of it. int8 needs AVX2, or ARM's dot products."""
    has = {"f32": True, "bf16": "avx512_bf16" in flags, "int8": not {"avx2", *_ARM_DOTS}.isdisjoint(flags)}
    return tuple(dtype for dtype, is_there in has.items() if is_there)


def has_dots(processor: Processor) -> bool:
    """True if a processor adds up four products of bytes by one instruction in its longest vectors."""
    flags = processor.used_flags
    return not {"avx512_vnni" if "avx512f" in flags else "avx_vnni", *_ARM_DOTS}.isdisjoint(flags)


def has_matrices(processor: Processor, dtype: str) -> bool:
    """True if a processor has matrix registers that take a dtype, `bf16` or `int8`, and vectors as long as theirs."""
    needed = {"avx512f", "amx_tile", "amx_bf16", "amx_int8"}
    return dtype in ("bf16", "int8") and needed <= set(processor.used_flags)


def gpu_target(name: str, device: str, gpu: GPUFeatures, l2_bytes: int) -> HardwareTarget:
    """A GPU as a target: threads load 16 bytes at most at once, which is a vector of four."""
    identity = {"device": device, "l2": l2_bytes, **fields_to_json(gpu)}
    return HardwareTarget(
        name=name,
        kind="cuda",
        num_threads=1,
        vector_lanes=4,
        num_vector_registers=gpu.max_registers_per_thread,
        l1_bytes=gpu.shared_bytes_per_sm,
        l2_bytes=l2_bytes,
        l3_bytes=0,
        device=device,
        fingerprint=fingerprint(identity),
        gpu=gpu,
    )


_CACHES = ("l1_bytes", "l2_bytes", "l3_bytes")
_FEATURES = ("device", "kind", "vector_lanes", "num_vector_registers", *_CACHES)


def differences(there: HardwareTarget, here: HardwareTarget, where: str = "here") -> str:
    """List the differences between two devices of different fingerprints: `l1_bytes 49152 there, 32768 here`."""
    pairs = [(name, getattr(there, name), getattr(here, name)) for name in _FEATURES]
    if there.mcpu and here.mcpu:  # this machine's are not written down
        pairs += [(name, getattr(there, name), getattr(here, name)) for name in ("mcpu", "mtriple")]
        pairs.append(("mattr", " ".join(there.mattr) or "none", " ".join(here.mattr) or "none"))
    for name in GPUFeatures.__dataclass_fields__ if there.gpu and here.gpu else ():
        pairs.append((name, getattr(there.gpu, name), getattr(here.gpu, name)))
    found = [f"{name} {theirs} there, {mine} {where}" for name, theirs, mine in pairs if theirs != mine]
    return "; ".join(found) or "the processors' family, model, stepping or instruction sets"


def gpu_in_dtype(target: HardwareTarget, dtype: str) -> HardwareTarget:
    """A GPU used in `dtype` (f32, f16, or tf32 from sm_80 on).

    Raises:
        TargetError: there are no kernels of the dtype, or the GPU has no instructions for it.
    """
    gpu = target.required_gpu
    if dtype not in GPU_DTYPES:
        raise TargetError(unknown_name("dtype of a GPU", dtype, GPU_DTYPES))
    if dtype == "tf32" and gpu.capability < _FIRST_TF32:
        raise TargetError(f"dtype tf32 needs a GPU of sm_{_FIRST_TF32} or newer, got {gpu.arch}; use --dtype f32")
    if dtype == "f32":
        return target
    return dataclasses.replace(target, name=str(TargetName(target.name, dtype=dtype)), dtype=GPU_DTYPES[dtype])


def in_blocks(target: HardwareTarget, lanes: int) -> HardwareTarget:
    """A processor whose kernels read and write maps in blocks of `lanes` channels, as if its vectors had that many:
    longer ones take several registers each. Its fingerprint is not the device's, so that records are kept apart.

    Raises:
        TargetError: there are no such blocks, or too few registers for them.
    """
    if lanes == target.vector_lanes:
        return target
    num_registers = target.num_vector_registers * target.vector_lanes // max(lanes, target.vector_lanes)
    known = [n for n in LAYOUTS if target.num_vector_registers * target.vector_lanes >= _LEAST_REGISTERS * n]
    if target.gpu is not None or lanes not in known:
        raise TargetError(unknown_name(f"layout of {target.device}", str(lanes), map(str, known)))
    return dataclasses.replace(
        target,
        vector_lanes=lanes,
        num_vector_registers=num_registers,
        has_matrices=False,
        has_dots=False,
        fingerprint=fingerprint({"device": target.fingerprint, "lanes": lanes}),
    )


def in_dtype(target: HardwareTarget, dtype: str) -> HardwareTarget:
    """A processor whose kernels compute in a dtype of TVM's, with the instructions that it is used with."""
    return dataclasses.replace(target, dtype=dtype)


def in_several(target: HardwareTarget, others: Iterable[HardwareTarget]) -> HardwareTarget:
    """A processor that runs networks of several dtypes: with the instructions that it has for others, too."""
    used = [target, *others]
    return dataclasses.replace(
        target, has_matrices=any(t.has_matrices for t in used), has_dots=any(t.has_dots for t in used)
    )


def in_batches(target: HardwareTarget, batch: int) -> HardwareTarget:
    """A GPU that is given `batch` images at once: a latency is then that of all of them together.

    Raises:
        TargetError: the batch is below 1, or above 1 on a processor.
    """
    if batch < 1:
        raise TargetError(f"expected --batch of at least 1, got {batch}")
    if batch == 1:
        return target
    if target.gpu is None:
        raise TargetError(f"expected batch 1 on a processor, got {batch}; only GPUs (--target cuda) take more so far")
    name, _, key = target.name.partition("@")
    return dataclasses.replace(target, name=str(TargetName(name, batch=batch, key=key)), batch=batch)


def fingerprint(identity: dict[str, Any]) -> str:
    """Twelve hex digits that stand for what a device is."""
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:12]
