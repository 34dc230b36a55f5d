"""Queries on the functions of an IR module: the entry function, attributes of arguments, symbol references."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from xdsl.dialects import func
from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, ModuleOp, SymbolRefAttr
from xdsl.ir import Attribute, Operation

ENTRY: Final = "xla.entry"


def functions(module: ModuleOp) -> list[func.FuncOp]:
    """Return the functions of the module in order."""
    return [op for op in module.body.block.ops if isinstance(op, func.FuncOp)]


def entry_function(module: ModuleOp) -> func.FuncOp | None:
    """Return the kernel, which is the function with the attribute `xla.entry`; None if the module has no kernel."""
    return next((function for function in functions(module) if ENTRY in function.attributes), None)


def is_private(function: func.FuncOp) -> bool:
    """True if the function has the visibility `private`: only code of its module can call it."""
    return function.sym_visibility is not None and function.sym_visibility.data == "private"


def argument_attributes(function: func.FuncOp, index: int) -> Mapping[str, Attribute]:
    """Return the attributes of one argument."""
    return function.arg_attrs.data[index].data if function.arg_attrs is not None else {}


def set_argument_attributes(function: func.FuncOp, index: int, attributes: Mapping[str, Attribute]) -> None:
    """Replace the attributes of one argument."""
    count = len(function.function_type.inputs)
    every = [dict(argument_attributes(function, i)) for i in range(count)]
    every[index] = dict(attributes)
    if any(every):
        function.arg_attrs = ArrayAttr([DictionaryAttr(each) for each in every])
    else:
        function.arg_attrs = None


def referenced_names(op: Operation) -> Iterator[str]:
    """Yield the name of each function that the op itself refers to, as callee or combiner, for example."""
    for attribute in (*op.properties.values(), *op.attributes.values()):
        # The exact class: `isinstance` takes long with the classes of xDSL, and passes ask about every attribute.
        if type(attribute) is SymbolRefAttr:
            yield attribute.root_reference.data
