"""Replace running sums along rows by calls of CUB's scans.

    scan(f32[8,40] x, broadcast(0)), dimensions={1}, is_associative=true, to_apply=sum
        =>   custom-call(x), custom_call_target="xla.gpu.ext.cub_scan_unassigned_scratch_size", backend_config={..}

XLA's `ScanRewriter`: associative scans of one array with one carry, whose body adds its parameters and returns the sum as output
and carry, and whose rows are contiguous. The released pass takes forward scans from a scalar zero whose last carry is not used;
the newer one also takes scans from other starts, in reverse, and last carries, but none of empty rows.
"""

from __future__ import annotations

from math import prod
from typing import ClassVar

from msgspec import Struct

from hlo_run.analysis.simple_reducer import is_identity
from hlo_run.hlo.edit import Editor, remove_unused
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.scan_calls import UNSIZED_SCAN
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo_passes.subgraphs.library_calls import to_json
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.records import replace

# XLA's CUB adds no others, and fails to compile a scan of them.
_TYPES = frozenset("s8 s16 s32 s64 u8 u16 u32 u64 f16 bf16 f32 f64".split())


class ScanRewriter(Struct, frozen=True):
    """The pass; see the module's docstring. `takes_any_start` selects the rules of the newer pass."""

    name: ClassVar[str] = "scan-rewriter"

    takes_any_start: bool = False

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        del ctx
        for scan in module.instructions_of("scan"):
            elements = _elements(scan)
            row = _row(scan) if elements and _adds(scan) else None
            if row is None or not self._takes(scan, elements):
                continue
            _rewrite(module, scan, elements, row)
            remove_unused([*elements, *scan.users, scan])

    def _takes(self, scan: HloInstruction, elements: list[HloInstruction]) -> bool:
        if self.takes_any_start:
            return scan.shape.tuple_shapes[0].dims[scan.dimensions[0]] > 0
        is_plain = not scan.is_reverse and all(element.tuple_index == 0 for element in elements)
        start = _start(scan)
        return is_plain and start.shape.element_count == 1 and _is_zero(start)


def _elements(scan: HloInstruction) -> list[HloInstruction]:
    """Return the used get-tuple-elements of a scan of one array with one carry; none if it has other used users."""
    if scan.is_root or not scan.is_associative or scan.num_carries != 1 or len(scan.operands) != 2:
        return []
    shapes = scan.shape.tuple_shapes
    if len(shapes) != 2 or shapes[0].element_type not in _TYPES or shapes[0] != scan.operands[0].shape:
        return []
    used = [user for user in scan.users if user.users or user.is_root]
    return used if all(user.opcode == "get-tuple-element" for user in used) else []


def _adds(scan: HloInstruction) -> bool:
    """True if the body returns the sum of its two parameters, as output and as carry."""
    body = scan.to_apply
    root = body.root
    if root.opcode != "tuple" or len(root.operands) != 2 or root.operands[0] is not root.operands[1]:
        return False
    total = root.operands[0]
    return total.opcode == "add" and set(total.operands) == set(body.parameters)


class _Row(Struct, frozen=True):
    """The elements of a row, and the number of rows."""

    length: int
    count: int


def _row(scan: HloInstruction) -> _Row | None:
    """Return the rows of the scanned array; None if another dimension with more than one element is inside of them."""
    shape, (dim,) = scan.operands[0].shape, scan.dimensions
    order = shape.minor_to_major
    place = order.index(dim)
    inner, outer = (prod(shape.dims[d] for d in part) for part in (order[:place], order[place + 1 :]))
    return _Row(shape.dims[dim], outer) if inner <= 1 else None


def _start(scan: HloInstruction) -> HloInstruction:
    """Return the scan's start, without broadcasts around it."""
    start = scan.operands[1]
    while start.opcode == "broadcast":
        start = start.operands[0]
    return start


def _is_zero(start: HloInstruction) -> bool:
    if start.opcode != "constant" or not start.shape.is_array:
        return False
    return is_identity(start, "add") if not start.shape.dims else not start.constant_array.any()


def _rewrite(module: HloModule, scan: HloInstruction, elements: list[HloInstruction], row: _Row) -> None:
    editor = Editor(scan, derives=False)
    values, start, (dim,) = scan.operands[0], scan.operands[1], scan.dimensions
    shape = values.shape
    config = {
        "vector_length": "1",
        "row_length": str(row.length),
        "column_length": str(row.count),
        "kind": "SUM",
        "is_reverse": scan.is_reverse,
    }
    call = editor.add(
        "custom-call",
        Shape.make_tuple((shape, Shape.array("u8", (0,)))),
        [values],
        custom_call_target=UNSIZED_SCAN,
        operand_layout_constraints=(shape,),
        backend_config=to_json(config),
    )
    sums = editor.element(call, 0)
    if not _is_zero(_start(scan)):
        # Sums from another start are sums from zero plus the start.
        kept = tuple(d for d in range(shape.rank) if d != dim)
        sums = editor.binary("add", sums, editor.add("broadcast", shape, [start], dimensions=kept))
    carry: HloInstruction | None = None
    for element in elements:
        if element.tuple_index == 0:
            module.replace(element, sums)
            continue
        carry = carry or _last(editor, sums, scan)
        module.replace(element, carry)


def _last(editor: Editor, sums: HloInstruction, scan: HloInstruction) -> HloInstruction:
    """Return the last carry: the sum at the end of each row, or at its begin in reverse."""
    (dim,) = scan.dimensions
    size = sums.shape.dims[dim]
    place = 0 if scan.is_reverse else size - 1
    ranges = tuple((place, place + 1, 1) if d == dim else (0, n, 1) for d, n in enumerate(sums.shape.dims))
    dims = tuple(1 if d == dim else n for d, n in enumerate(sums.shape.dims))
    last = editor.add("slice", replace(sums.shape, dims=dims), [sums], slice=ranges)
    return editor.add("reshape", scan.shape.tuple_shapes[1], [last])
