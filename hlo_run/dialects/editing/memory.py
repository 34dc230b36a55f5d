"""The types of elements in memory, and the globals that hold constants and the shared memory of a block."""

from __future__ import annotations

from functools import lru_cache

from msgspec import Struct, field
from xdsl.dialects import llvm
from xdsl.dialects.builtin import AnyFloat, IntegerType, ModuleOp, StringAttr, i8
from xdsl.ir import Attribute
from xdsl.rewriter import InsertPoint, Rewriter
from xdsl.utils.hints import isa

from hlo_run.dialects.editing.packed import is_packed
from hlo_run.dialects.types import is_complex
from hlo_run.errors import Unsupported

SHARED_SPACE = 3


class Globals(Struct):
    """Makes the module's globals. Their names are numbered per kind, without names in use."""

    module: ModuleOp
    names: set[str] = field(default_factory=set[str])

    def __post_init__(self) -> None:
        symbols = (op.properties.get("sym_name") for op in self.module.body.block.ops)
        self.names |= {symbol.data for symbol in symbols if isinstance(symbol, StringAttr)}

    def shared(self, type_: llvm.LLVMArrayType, alignment: int | None) -> str:
        """Add memory of a block, and return its name."""
        name = self._new_name("shared_")
        self._add(llvm.GlobalOp(type_, name, "private", addr_space=SHARED_SPACE, alignment=alignment))
        return name

    def constant(self, type_: llvm.LLVMArrayType, value: Attribute) -> str:
        """Add a constant array, and return its name."""
        name = self._new_name("global_cst_")
        self._add(llvm.GlobalOp(type_, name, "private", constant=True, value=value))
        return name

    def _new_name(self, prefix: str) -> str:
        number = 0
        while f"{prefix}{number}" in self.names:
            number += 1
        self.names.add(f"{prefix}{number}")
        return f"{prefix}{number}"

    def _add(self, op: llvm.GlobalOp) -> None:
        """Insert a global after the existing globals, before the functions."""
        body = self.module.body.block
        first = next((other for other in body.ops if not isinstance(other, llvm.GlobalOp)), None)
        Rewriter.insert_op(op, InsertPoint.before(first) if first else InsertPoint.at_end(body))


@lru_cache(maxsize=64)
def memory_type(element: Attribute) -> Attribute:
    """Return the LLVM type of an element in memory; i8 for packed elements. Raises Unsupported for other element types."""
    if is_packed(element):
        return i8
    if isa(element, IntegerType) and element.width.data in (8, 16, 32, 64):
        return element
    if isa(element, AnyFloat) and element.bitwidth in (8, 16, 32, 64):
        return i8 if element.bitwidth == 8 else element
    if is_complex(element) and isa(element.element_type, AnyFloat):
        return llvm.LLVMStructType.from_type_list([element.element_type, element.element_type])
    raise Unsupported(f"elements of type {element} in a kernel", hint="convert to a type of 8, 16, 32 or 64 bits first")
