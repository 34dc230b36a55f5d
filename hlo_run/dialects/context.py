"""Makes the xDSL context of hlo-run: the dialects that a kernel can contain, each imported when a text names it."""

from __future__ import annotations

import importlib
from functools import partial

from xdsl.context import Context
from xdsl.ir import Dialect

NAMES = tuple("builtin affine arith cf complex dlti func gpu llvm math memref nvvm scf tensor ub vector xla xla_gpu".split())


def make_context() -> Context:
    """Return a context with the ops, types and attributes of all stages from emission to the LLVM dialect."""
    context = Context()
    for name in NAMES:
        context.register_dialect(name, partial(_dialect, name))
    return context


def _dialect(name: str) -> Dialect:
    return importlib.import_module("hlo_run.dialects.all_dialects").DIALECTS[name]
