"""Erase the private functions that no public function reaches through calls.

    func.func @main() { .. }                          func.func @main() { .. }
    func.func private @unused(%x: f32) { .. }    =>

The combiner of a shuffle_reduce counts as called.
"""

from __future__ import annotations

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter

from hlo_run.dialects.editing.functions import functions, is_private, referenced_names
from hlo_run.walks import walk


class EraseDeadFunctions(ModulePass):
    """Erases the private functions that no public function reaches."""

    name = "erase-dead-functions"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Follow the calls from the public functions, and erase all other functions."""
        by_name = {function.sym_name.data: function for function in functions(op)}
        public = [name for name, function in by_name.items() if not is_private(function)]
        alive = set(walk(public, lambda name: _called(by_name[name]) & by_name.keys()))
        for name, function in by_name.items():
            if name not in alive:
                Rewriter.erase_op(function, safe_erase=False)


def _called(function: FuncOp) -> set[str]:
    return {name for inner in function.body.walk() for name in referenced_names(inner)}
