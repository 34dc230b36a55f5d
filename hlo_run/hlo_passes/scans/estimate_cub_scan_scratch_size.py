"""Replace calls of CUB's scans by their final calls, with the size of their scratch memory.

    c = (f32[40], u8[0]) custom-call(x), custom_call_target="xla.gpu.ext.cub_scan_unassigned_scratch_size", backend_config={..}
        =>   (f32[40], u8[0]) custom-call(x), custom_call_target="xla.gpu.ext.cub_scan", api_version=API_VERSION_TYPED_FFI,
             backend_config={vector_length = 1 : i64, ..}

XLA's `EstimateCubScanScratchSize`. Without a device released XLA reserves no scratch bytes, and neither does this.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.hlo.edit import Editor, remove_unused
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.scan_calls import SCAN, UNSIZED_SCAN, row_scan
from hlo_run.hlo.values.shape import Shape
from hlo_run.pass_support.hlo_pass import PassContext


class EstimateCubScanScratchSize(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "estimate-cub-scan-scratch-size"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        del ctx
        for call in module.instructions_of("custom-call"):
            if call.custom_call_target == UNSIZED_SCAN:
                _size(module, call)


def _size(module: HloModule, call: HloInstruction) -> None:
    scan = row_scan(call)
    assert scan is not None, "the call was verified"
    sized = Editor(call).add(
        "custom-call",
        Shape.make_tuple((*call.shape.tuple_shapes[:-1], Shape.array("u8", (0,)))),
        call.operands,
        custom_call_target=SCAN,
        operand_layout_constraints=tuple(operand.shape for operand in call.operands),
        api_version="API_VERSION_TYPED_FFI",
        backend_config=(
            f"{{vector_length = {scan.vector} : i64, row_length = {scan.rows} : i64, column_length = {scan.columns} : i64, "
            f"kind = 1 : i32, is_reverse = {str(scan.is_reverse).lower()}}}"
        ),
    )
    module.replace(call, sized)
    remove_unused([call])
