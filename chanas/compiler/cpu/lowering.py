"""Lowering of a scheduled function to one that the code generator takes: the passes that our kernels need, no others.

The compiler's own pipeline is made for every kind of function and device. What is left out here:

- passes for GPUs (threads, shared memory, asynchronous copies, float8), which change nothing on a CPU;
- `RenormalizeSplitPattern`, `RemoveNoOp` and the first of two `StmtSimplify`, with and without which the machine code
  of our kernels is nearly always the same; functions with the attribute `SIMPLIFIED` have the latter;
- `CommonSubexprElim`: the code generator does that itself. Large unrolled kernels compile in two thirds of the time
  without it, into smaller code that is as fast.
"""

from __future__ import annotations

from typing import Any

from chanas.compiler.cpu.tiles import in_matrix_registers

NAME = "chanas"
SIMPLIFIED = "chanas.simplified"
"""Attribute of functions whose indices are simplified first: loops of one pass leave products with 0, at which
`FlattenBuffer` may divide by zero."""


def pipeline() -> str:
    """The name of the pipeline, for `tvm.tirx.build` and `tvm.relax.build`."""
    from tvm.tirx import compilation_pipeline

    compilation_pipeline.register_tir_pipeline(NAME, _make)
    return NAME


def _make() -> tuple[Any, Any, Any]:
    """The passes before host and device parts are told apart, and those of each part after that."""
    from tvm.ir.transform import Sequential
    from tvm.s_tir import transform as scheduled
    from tvm.tirx import compilation_pipeline
    from tvm.tirx import transform as lowered

    passes = [
        lowered.prim_func_pass(in_matrix_registers, opt_level=0, name="InMatrixRegisters"),
        scheduled.CanonicalizeLoop(),
        # blocks to loops over buffers of the least size
        scheduled.LowerInitBlock(),
        scheduled.PlanAndUpdateBufferAllocationLocation(),
        scheduled.ConvertBlocksToOpaque(),
        scheduled.CompactBufferAllocation(),
        scheduled.LowerMatchBuffer(),
        scheduled.AnnotateIrregularLoop(),
        scheduled.LowerOpaqueBlock(),
        lowered.prim_func_pass(_simplify_where_asked, opt_level=0, name="SimplifyWhereAsked"),
        # loops to vectors and straight code
        lowered.FlattenBuffer(),
        lowered.BF16ComputeLegalize(),
        lowered.NarrowDataType(32),
        scheduled.LoopPartition(),
        lowered.VectorizeLoop(True),
        lowered.StorageRewrite(),
        scheduled.HoistIfThenElse(),
        lowered.UnrollLoop(),
        lowered.StmtSimplify(),
        scheduled.RewriteUnsafeSelect(),
        # a function that can be called
        lowered.VerifyMemory(),
        lowered.AnnotateEntryFunc(),
        lowered.MakePackedAPI(),
        lowered.BF16StorageLegalize(),
    ]
    return (
        Sequential(passes),
        compilation_pipeline.finalize_host_passes,
        compilation_pipeline.finalize_device_passes,
    )


def _simplify_where_asked(function: Any, _module: Any, _context: Any) -> Any:
    import tvm

    if function.attrs is None or SIMPLIFIED not in function.attrs:
        return function
    return tvm.tirx.transform.StmtSimplify()(tvm.IRModule({"main": function}))["main"]
