"""Programmatic dependent launch: the ops of `xla_gpu` with which a kernel begins before the kernel before it has ended."""

from __future__ import annotations

from xdsl.irdl import IRDLOperation, irdl_op_definition


@irdl_op_definition
class PdlWaitOp(IRDLOperation):
    """Wait until the kernels that this one depends on have ended and their writes are visible. Not pure."""

    name = "xla_gpu.pdl_wait"
    assembly_format = "attr-dict"


@irdl_op_definition
class PdlLaunchDependentsOp(IRDLOperation):
    """Let the kernels that depend on this one begin. Not pure."""

    name = "xla_gpu.pdl_launch_dependents"
    assembly_format = "attr-dict"


PDL_OPS = (PdlWaitOp, PdlLaunchDependentsOp)
