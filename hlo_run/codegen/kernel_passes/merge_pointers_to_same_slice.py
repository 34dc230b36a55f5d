"""Merge pointer arguments to the same buffer slice: replace an argument by an earlier one with the same slice number.

    func.func @f(%a: !llvm.ptr {xla.slice_index = 0 : index}, %b: !llvm.ptr {xla.slice_index = 0 : index}) { use %b }
      =>
    func.func @f(%a: !llvm.ptr {llvm.noalias}, %b: !llvm.ptr {llvm.noalias}) { use %a }

The argument is removed from functions other than the kernel, and from their calls. The kernel keeps it unused: the launch
passes one pointer for each operand and result, as current XLA does. Afterwards no two used pointers overlap, so all pointers
become `llvm.noalias`, except those marked `xla.not_invariant`. The slice numbers are removed.
"""

from __future__ import annotations

from xdsl.context import Context
from xdsl.dialects import func
from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, FunctionType, ModuleOp, UnitAttr
from xdsl.ir import Attribute
from xdsl.passes import ModulePass

from hlo_run.dialects.editing.rewriting import ops_in

_SLICE = "xla.slice_index"


class MergePointersToSameSlice(ModulePass):
    """Merges pointer arguments to the same buffer slice."""

    name = "merge-pointers-to-same-slice"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Merge the arguments of every function, and remove the operands of calls for removed arguments."""
        dropped: dict[str, set[int]] = {}
        for function in op.body.block.ops:
            if isinstance(function, func.FuncOp) and function.arg_attrs is not None and function.body.blocks:
                dropped[function.sym_name.data] = _merge_arguments(function, function.arg_attrs.data)
        for call in ops_in(op):
            if type(call) is func.CallOp and (gone := dropped.get(call.callee.root_reference.data)):
                call.operands = [operand for number, operand in enumerate(call.operands) if number not in gone]


def _merge_arguments(function: func.FuncOp, attributes: tuple[DictionaryAttr, ...]) -> set[int]:
    """Merge the arguments with equal slices, and return the numbers of the removed arguments."""
    args = function.body.blocks[0].args
    first: dict[Attribute, int] = {}
    duplicates: set[int] = set()
    for number, entry in enumerate(attributes):
        slice_index = entry.data.get(_SLICE)
        if slice_index is not None and first.setdefault(slice_index, number) != number:
            args[number].replace_all_uses_with(args[first[slice_index]])
            duplicates.add(number)
    if "xla.entry" in function.attributes:
        duplicates = set()
    for number in sorted(duplicates, reverse=True):
        function.body.blocks[0].erase_arg(args[number])
    kept = [number for number in range(len(attributes)) if number not in duplicates]
    function.arg_attrs = ArrayAttr([_without_slice(attributes[number]) for number in kept])
    inputs, outputs = function.function_type.inputs.data, function.function_type.outputs.data
    function.function_type = FunctionType.from_lists([inputs[number] for number in kept], outputs)
    return duplicates


def _without_slice(entry: DictionaryAttr) -> DictionaryAttr:
    if _SLICE not in entry.data:
        return entry
    attributes = {name: attribute for name, attribute in entry.data.items() if name != _SLICE}
    if "xla.not_invariant" not in attributes:
        attributes["llvm.noalias"] = UnitAttr()
    return DictionaryAttr(dict(sorted(attributes.items())))
