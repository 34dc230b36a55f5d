"""Copy the buffer attributes of the kernel's arguments to the functions it calls.

    func.func @main(%p0: tensor<8xf32> {xla.invariant, xla.slice_index = 0 : index}, ..) attributes {xla.entry}
    func.func private @sub(%p0: tensor<8xf32>, %i: index) -> f32
      =>
    func.func private @sub(%p0: tensor<8xf32> {xla.invariant, xla.slice_index = 0 : index}, %i: index) -> f32

Every function must take the kernel's parameters first and in order, as emitters make them: argument i is argument i of the
entry as long as both are tensors.
"""

from __future__ import annotations

from xdsl.context import Context
from xdsl.dialects import func
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from hlo_run.dialects.editing.functions import argument_attributes, entry_function, functions, set_argument_attributes
from hlo_run.dialects.types import is_tensor

_HANDED_ON = ("xla.slice_index", "xla.invariant")


class PropagateSliceIndices(ModulePass):
    """Copies the buffer attributes of the kernel's arguments to the other functions."""

    name = "propagate-slice-indices"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Copy the attributes. A module without an entry function is left as it is."""
        entry = entry_function(op)
        if entry is None:
            return
        for function in functions(op):
            if function is not entry:
                _copy_attributes(entry, function)


def _copy_attributes(entry: func.FuncOp, function: func.FuncOp) -> None:
    pairs = zip(entry.function_type.inputs, function.function_type.inputs, strict=False)
    for index, (theirs, ours) in enumerate(pairs):
        if not is_tensor(theirs) or not is_tensor(ours):
            return
        known = argument_attributes(entry, index)
        handed_on = {name: known[name] for name in _HANDED_ON if name in known}
        if handed_on:
            set_argument_attributes(function, index, {**argument_attributes(function, index), **handed_on})
