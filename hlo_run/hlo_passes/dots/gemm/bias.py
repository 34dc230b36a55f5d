"""Fuse adds into a product's call: of a matrix, or of a vector that is broadcast along rows.

    add(call(a, b), c)                  =>   call(a, b, c), beta 1
    add(call(a, b), broadcast(bias))    =>   call(a, b, bias), epilogue BIAS

A slice that cuts off the ends of dimensions, and a bitcast, may be between the product and the add; they are after the call
then. Follows XLA's `GemmRewriter`.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from hlo_run.hlo.attributes.table import OperandAliasing
from hlo_run.hlo.edit import Editor
from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo.verify.config import aliases
from hlo_run.hlo_passes.dots.gemm.edits import Edits
from hlo_run.hlo_passes.dots.gemm.f8_call import padded_to, padded_vector
from hlo_run.hlo_passes.dots.gemm.values import either_way, has_one_user
from hlo_run.hlo_passes.subgraphs.gemm_record import (
    F8_MATMUL,
    F8_TYPES,
    MATMUL,
    beta_of,
    epilogue_of,
    gemm_record,
    is_call,
    takes_epilogues,
    update_record,
)
from hlo_run.hlo_passes.subgraphs.library_calls import PRODUCTS

_ADDEND = 2
# A broadcast of a constant up to this size becomes one constant.
_LARGEST_CONSTANT_BYTES = 8 << 20
# Result types for a bias of 16 bits that is converted to f32; an 8-bit float product cannot add an f32 bias.
_RESULTS_OF_BIAS = {"bf16": ("f8e4m3fn", "f8e5m2", "f32", "bf16"), "f16": ("f8e4m3fn", "f8e5m2", "f16")}


class Product(Struct, frozen=True):
    """A call, and the optional slice and bitcast between its result and the user."""

    call: HloInstruction
    slice: HloInstruction | None = None
    bitcast: HloInstruction | None = None

    @property
    def value(self) -> HloInstruction:
        """The value that the user reads."""
        return self.bitcast or self.slice or self.call

    @property
    def steps(self) -> list[HloInstruction]:
        """The slice and the bitcast that exist, in this order."""
        return [step for step in (self.slice, self.bitcast) if step is not None]

    @property
    def sliced(self) -> HloInstruction:
        """The operand of the bitcast."""
        return self.slice or self.call


def product_behind(value: HloInstruction) -> Product | None:
    """Return the call that computes a value, if it and the steps between have one user each; else None."""
    bitcast = value if value.opcode == "bitcast" else None
    rest = bitcast.operands[0] if bitcast is not None else value
    cut = rest if rest.opcode == "slice" else None
    call = cut.operands[0] if cut is not None else rest
    if not is_call(call) or call.shape.is_tuple:
        return None
    if bitcast is not None and bitcast.shape.element_type != call.shape.element_type:
        return None
    return Product(call, cut, bitcast) if all(has_one_user(i) for i in (call, cut, bitcast) if i is not None) else None


def add_bias(edits: Edits, add: HloInstruction) -> None:
    """Fuse an add into the call that computes one of its operands, if the call supports it."""
    for value, other in either_way(add):
        product = product_behind(value)
        if product is not None and other.opcode == "broadcast" and other is not value:
            if not _add_vector(edits, add, product, other) and _may_be_spread(product, other):
                _add_spread_vector(edits, add, product, other)
            return
    for value, other in either_way(add):
        if other.opcode != "broadcast" and other is not value and _add_matrix_to(edits, add, value, other):
            return


def _add_matrix_to(edits: Edits, add: HloInstruction, value: HloInstruction, other: HloInstruction) -> bool:
    """Return True if `value` is a product to which a matrix may be added, whether or not this one was."""
    widened = _widened_product(add, value)
    product = Product(widened) if widened is not None else product_behind(value)
    if product is None or other.shape.element_type in F8_TYPES:
        return False
    add_matrix(edits, add, product, other)
    return True


def _widened_product(add: HloInstruction, convert: HloInstruction) -> HloInstruction | None:
    """Return the call under a convert, if the call could have the converted type and the add's result is only returned."""
    if convert.opcode != "convert" or not has_one_user(convert):
        return None
    call = convert.operands[0]
    if not is_call(call, MATMUL) or call.shape.is_tuple or not has_one_user(call):
        return None
    left, right = (operand.shape.element_type for operand in call.operands[:2])
    user = add.users[0] if len(add.users) == 1 else None
    is_result = not add.users or (user is not None and user.opcode == "tuple" and not user.users)
    return call if is_result and add.shape.element_type in PRODUCTS.get((left, right), ()) else None


# ---- vectors --------------------------------------------------------------------------------------------------------


def _add_vector(edits: Edits, add: HloInstruction, product: Product, broadcast: HloInstruction) -> bool:
    """Add a vector that is broadcast along rows. Return True if it was added, or must not be added in another way."""
    call, bias = product.call, broadcast.operands[0]
    if not takes_epilogues(call) or epilogue_of(call) != "DEFAULT" or not _goes_along_rows(product, broadcast):
        return False
    is_f8 = is_call(call, F8_MATMUL)
    if is_f8 and beta_of(call):
        return True
    if is_f8 and bias.shape.element_type == "f32":
        narrow = bias.operands[0] if bias.opcode == "convert" else None
        if narrow is None or call.shape.element_type not in _RESULTS_OF_BIAS.get(narrow.shape.element_type, ()):
            return False
        bias = narrow
    if is_f8 and product.bitcast is not None:
        bias = padded_vector(Editor(add), bias)
    call.operands = (*call.operands, bias)
    update_record(call, epilogue="BIAS")
    rename(edits, call, *product.steps)
    edits.replace_by_changed(add, product.value)
    edits.drop(broadcast)
    return True


def _goes_along_rows(product: Product, broadcast: HloInstruction) -> bool:
    """Return True for a broadcast of one physical row, or of a scalar if the product has no column dimension."""
    call, bias = product.call, broadcast.operands[0]
    numbers = gemm_record(call).get("dot_dimension_numbers", {})
    batches = numbers.get("rhs_batch_dimensions", ())
    columns = call.operands[1].shape.rank - len(batches) - len(numbers.get("rhs_contracting_dimensions", ()))
    if columns > 1 or bias.shape.rank != columns:
        return False
    if not columns:
        return True
    # The library adds the vector along the innermost dimension. It is the same one in both shapes, if the sizes are equal.
    inner, ours = product.sliced.shape.minor_to_major[0], broadcast.shape.minor_to_major[0]
    sizes = {product.sliced.shape.dims[inner], broadcast.shape.dims[ours], bias.shape.dims[0]}
    return inner >= len(batches) and broadcast.dimensions == (ours,) and len(sizes) == 1


def _may_be_spread(product: Product, broadcast: HloInstruction) -> bool:
    same_room = product.value.shape.element_count == product.call.shape.element_count
    return product.bitcast is not None and product.slice is None and same_room and has_one_user(broadcast)


def _add_spread_vector(edits: Edits, add: HloInstruction, product: Product, broadcast: HloInstruction) -> None:
    """Add a vector to a batched product as a matrix, with the broadcast materialised."""
    if not _may_add_matrix(product.call):
        return
    add_matrix(edits, add, product, broadcast)


# ---- matrices -------------------------------------------------------------------------------------------------------


def _may_add_matrix(call: HloInstruction) -> bool:
    return call.shape.element_type != "s32" and not beta_of(call) and epilogue_of(call) in ("DEFAULT", "BIAS")


def add_matrix(edits: Edits, add: HloInstruction, product: Product, addend: HloInstruction) -> bool:
    """Add a matrix to a product; return False if the call cannot. The call overwrites the matrix if it has no other users."""
    call = product.call
    if not _may_add_matrix(call):
        _add_before_bitcast(edits, add, product, addend)
        return False
    if not _same_places(addend.shape, product.value.shape):
        return False
    if product.slice is not None and any(start or stride != 1 for start, _, stride in product.slice.slice_ranges):
        return False
    editor = Editor(add)
    # XLA checks the bitcast that it creates, which may always be overwritten, though for a parameter that costs a copy.
    is_recast = product.bitcast is not None and product.slice is None
    may_overwrite = is_recast or _may_overwrite(edits, addend)
    matrix = _written_out(editor, addend)
    if product.bitcast is not None:
        # XLA first moves the add before the bitcast. Then the view of the addend derives from it, the result's from the add.
        viewer = Editor(addend, derives=addend.opcode != "broadcast") if is_recast else editor
        matrix = viewer.bitcast(matrix, product.sliced.shape)
        if is_recast:
            edits.module.unique_instruction_name("add")  # that of the moved add
    if product.slice is not None:
        matrix = padded_to(editor, matrix, call.shape)
    call.operands = (*call.operands[:_ADDEND], matrix, *call.operands[_ADDEND:])
    call.shape = call.shape.with_element_type(addend.shape.element_type)
    update_record(call, beta=1)
    if may_overwrite:
        call.attrs["output_to_operand_aliasing"] = OperandAliasing((((), _ADDEND, ()),))
    rename(edits, call, *product.steps, is_named_before=True)
    if product.bitcast is not None and is_recast:
        product.bitcast.attrs.pop("metadata", None)
    edits.replace_by_changed(add, product.value)
    return True


def _add_before_bitcast(edits: Edits, add: HloInstruction, product: Product, addend: HloInstruction) -> None:
    """Move an add that the call cannot do before the bitcast, as XLA does.

    add(bitcast(call), c) => bitcast(add(call, bitcast(c)))
    """
    call = product.call
    if product.bitcast is None or product.slice is not None:
        return
    editor = Editor(addend, keeps_sharding=False)
    total = editor.binary("add", call, editor.bitcast(addend, call.shape))
    edits.replace(add, Editor(add, derives=False).bitcast(total, add.shape))


def _written_out(editor: Editor, value: HloInstruction) -> HloInstruction:
    """Return a broadcast of a non-scalar constant as one constant, which needs no kernel, unless it is too large."""
    source = value.operands[0] if value.opcode == "broadcast" else None
    if source is None or source.opcode != "constant" or source.shape.element_count == 1:
        return value
    if not value.shape.has_default_layout or value.shape.size_bytes > _LARGEST_CONSTANT_BYTES:
        return value
    sizes = [size if dim in value.dimensions else 1 for dim, size in enumerate(value.shape.dims)]
    literal = np.broadcast_to(source.constant_array.reshape(sizes), value.shape.dims)
    return editor.add("constant", value.shape, literal=np.ascontiguousarray(literal))


def _same_places(one: Shape, other: Shape) -> bool:
    return one.dims == other.dims and one.minor_to_major == other.minor_to_major


def _may_overwrite(edits: Edits, addend: HloInstruction) -> bool:
    """Return True if an array has no other users and is not a parameter, or is one that the caller donated."""
    if len(addend.users) > 1:
        return False
    if addend.opcode != "parameter":
        return True
    number = addend.parameter_number
    return edits.computation.is_entry and any(alias[1] == number for alias in aliases(edits.module))


def rename(edits: Edits, call: HloInstruction, *steps: HloInstruction, is_named_before: bool = False) -> None:
    """Rename a call that does more than multiply, and the steps behind it, and move them to the end, since XLA makes new ones.

    XLA names the new call after it has a number, or, with `is_named_before`, before: it then takes two numbers of the new name.
    """
    unique = edits.module.unique_instruction_name
    is_batch = bool(gemm_record(call).get("dot_dimension_numbers", {}).get("lhs_batch_dimensions"))
    name = "cublas-lt-matmul" if is_call(call, MATMUL) else "cublas-batch-gemm" if is_batch else "cublas-gemm"
    unique(name if is_named_before else call.name)
    call.name = unique(name)
    for step in steps:
        step.name = unique(step.name)
    for made in (call, *steps):
        assert made.parent is not None, "the instruction is in a computation"
        made.parent.instructions.remove(made)
        made.parent.add_named(made)
