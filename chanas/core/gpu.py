"""The features of an NVIDIA GPU that schedules need, and the GPU of this machine. The driver itself is asked, so that
neither torch nor tvm nor a CUDA toolkit has to be installed."""

from __future__ import annotations

from dataclasses import dataclass

MAX_REGISTERS_PER_THREAD = 255
"""Limit of every architecture since sm_35 (CUDA C++ Programming Guide, "Technical specifications per compute
capability"); the driver has no attribute for it."""


@dataclass(frozen=True)
class GPUFeatures:
    """The resources of a GPU that a schedule may use.

    arch                        architecture as compilers call it: sm_90
    num_sms                     streaming multiprocessors
    warp_size                   threads that go in step
    max_threads_per_block       of all three dimensions together
    max_shared_bytes_per_block  without opting in to more (static shared memory)
    shared_bytes_per_sm         shared by the blocks that a multiprocessor runs at once
    registers_per_block         of 32 bits, all threads of a block together
    registers_per_sm            of 32 bits
    max_registers_per_thread    what the instruction set can name
    """

    arch: str
    num_sms: int
    warp_size: int
    max_threads_per_block: int
    max_shared_bytes_per_block: int
    shared_bytes_per_sm: int
    registers_per_block: int
    registers_per_sm: int
    max_registers_per_thread: int = MAX_REGISTERS_PER_THREAD

    @property
    def capability(self) -> int:
        """Compute capability times ten: 90 of sm_90 and sm_90a."""
        return int(self.arch.removeprefix("sm_").rstrip("af"))
