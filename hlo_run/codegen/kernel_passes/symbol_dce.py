"""Erase private functions and globals that no live symbol refers to.

    func.func private @unused() { .. }   =>

Live symbols are the public ones, and those that a live symbol refers to. Mirrors MLIR's pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeGuard

from xdsl.context import Context
from xdsl.dialects import llvm
from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, ModuleOp, StringAttr, SymbolRefAttr
from xdsl.ir import Attribute, Operation
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter

from hlo_run.dialects.editing.rewriting import ops_in
from hlo_run.walks import walk

_HIDDEN_LINKAGE = ("private", "internal")


class SymbolDce(ModulePass):
    """Erases private functions and globals without a live reference."""

    name = "symbol-dce"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Follow the references from the public symbols, and erase all other symbols."""
        symbols = {name: each for each in op.body.block.ops if (name := _symbol_name(each)) is not None}
        public = [each for each in op.body.block.ops if not _is_hidden(each)]
        alive = set(walk(public, lambda each: [symbols[name] for name in _named_in(each) if name in symbols]))
        for each in op.body.block.ops:
            if each not in alive:
                Rewriter.erase_op(each)


def _symbol_name(op: Operation) -> str | None:
    name = op.get_attr_or_prop("sym_name")
    return name.data if isinstance(name, StringAttr) else None


def _is_hidden(op: Operation) -> bool:
    if _symbol_name(op) is None:
        return False
    visibility = op.get_attr_or_prop("sym_visibility")
    if isinstance(visibility, StringAttr):
        return visibility.data in ("private", "nested")
    linkage = op.get_attr_or_prop("linkage")
    return isinstance(op, llvm.GlobalOp) and isinstance(linkage, llvm.LinkageAttr) and linkage.linkage.data in _HIDDEN_LINKAGE


def _named_in(op: Operation) -> Iterator[str]:
    for inner in ops_in(op):
        for attribute in (*inner.properties.values(), *inner.attributes.values()):
            yield from _names(attribute)


def _names(attribute: Attribute) -> Iterator[str]:
    if isinstance(attribute, SymbolRefAttr):
        yield attribute.root_reference.data
    elif isinstance(attribute, DictionaryAttr):
        for each in attribute.data.values():
            yield from _names(each)
    elif _is_array(attribute):
        for each in attribute:
            yield from _names(each)


def _is_array(attribute: Attribute) -> TypeGuard[ArrayAttr[Attribute]]:
    return isinstance(attribute, ArrayAttr)
