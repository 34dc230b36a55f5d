"""Prints IR modules in MLIR's syntax, with the value names and the map aliases of the "XLA:GPU Emitters" listings."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from io import StringIO
from typing import Final

from xdsl.dialects import func
from xdsl.dialects.builtin import AnyFloat, IntegerAttr, MemRefType, ModuleOp, NoneAttr
from xdsl.dialects.llvm import LinkageAttr, LLVMPointerType
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.printer import Printer

from hlo_run.dialects.names import name_values, result_groups
from hlo_run.dialects.origin import HLO_OP
from hlo_run.dialects.types import is_memref
from hlo_run.dialects.upstream_syntax import PRINTERS
from hlo_run.dialects.xla_gpu import IndexingMapAttr
from hlo_run.indexing.indexing_map import IndexingMap
from hlo_run.indexing.variable import GRID_NAMES, Variable
from hlo_run.records import replace

_ID_SPACES: Final = re.compile(r"(= (?:gpu\.thread_id|gpu\.block_id|xla\.workgroup_id)) +")


def print_module(
    op: Operation, *, generic: bool = False, print_locations: bool = False, spelling: Mapping[str, str] | None = None
) -> str:
    """Return the text of a module or of any other op, ending in a newline.

    `generic` prints every op in MLIR's generic form. `print_locations` prints the `hlo.op` attributes. After tensors are
    lowered to pointers, ops of the xla_gpu dialect are always printed in generic form, so that MLIR can read them. `spelling`
    gives the names of operations that released XLA calls otherwise; values and maps then have its names too.
    """
    stream = StringIO()
    printer = _IrPrinter(stream, generic=generic, print_locations=print_locations, spelling=spelling)
    printer.prepare(op)
    printer.print_op(op)
    aliases = "".join(f"{name} = {text}\n" for name, text in printer.alias_definitions())
    text = stream.getvalue()
    if spelling is not None:
        text = _ID_SPACES.sub(r"\1 ", text)
    return f"{aliases}{text}\n"


def is_lowered_to_pointers(op: Operation) -> bool:
    """Tell whether the module is past lower-tensors: one of its functions takes a pointer."""
    if not isinstance(op, ModuleOp):
        return False
    functions = [inner for inner in op.body.block.ops if isinstance(inner, func.FuncOp)]
    return any(isinstance(type_, LLVMPointerType) for function in functions for type_ in function.function_type.inputs)


class _IrPrinter(Printer):
    """xDSL's printer with MLIR's value names, `%x:2` result groups, aliases for maps, and hidden locations."""

    def __init__(self, stream: StringIO, *, generic: bool, print_locations: bool, spelling: Mapping[str, str] | None) -> None:
        super().__init__(stream=stream, print_generic_format=generic)
        self._spelling = spelling
        self._print_locations = print_locations
        self._generic_xla_gpu = False
        self._names: dict[SSAValue, str] = {}
        self._aliases: dict[Attribute, str] = {}
        self._out = stream

    def prepare(self, op: Operation) -> None:
        self._names = name_values(op, as_mlir=self._spelling is not None)
        self._generic_xla_gpu = is_lowered_to_pointers(op)

    def alias_definitions(self) -> list[tuple[str, str]]:
        """Return the names and texts of the aliases in the order of first use."""
        definitions: list[tuple[str, str]] = []
        for attribute, name in self._aliases.items():
            stream = StringIO()
            if self._spelling is not None and isinstance(attribute, IndexingMapAttr):
                attribute = IndexingMapAttr(_with_default_names(attribute.data))
            Printer(stream=stream).print_attribute(attribute)
            text = stream.getvalue()
            if self._spelling is not None:
                text = text.replace("#xla_gpu.", "#xla.", 1).replace(" floordiv ", " / ")
            definitions.append((name, text))
        return definitions

    def print_string(self, text: str, *, indent: int | None = None) -> None:
        if "\n" in text:
            super().print_string(text, indent=indent)
        else:
            self._out.write(text)

    def print_ssa_value(self, value: SSAValue) -> str:
        name = self._names.get(value)
        if name is None:  # only in IR that does not verify: the value is defined outside of the printed op
            name = self._names[value] = f"<<unknown{len(self._names)}>>"
        self._out.write(f"%{name}")
        return name

    def print_attribute(self, attribute: Attribute) -> None:
        if isinstance(attribute, LinkageAttr):
            self._out.write(f"#llvm.linkage<{attribute.linkage.data}>")  # xDSL writes quotation marks
            return
        if is_memref(attribute) and isinstance(attribute.layout, NoneAttr):
            self._print_memref(attribute)
            return
        if not isinstance(attribute, IndexingMapAttr):
            super().print_attribute(attribute)
            return
        count, name = len(self._aliases), "map" if self._spelling is None else "indexing_map"
        self._out.write(self._aliases.setdefault(attribute, f"#{name}{count or ''}"))

    def _print_memref(self, type_: MemRefType) -> None:
        """Print a memref type; the number of its memory space has no type, as in MLIR."""
        sizes = "".join(f"{'?' if size < 0 else size}x" for size in type_.get_shape())
        self._out.write(f"memref<{sizes}")
        self.print_attribute(type_.element_type)
        space = type_.memory_space
        if isinstance(space, IntegerAttr):
            self._out.write(f", {space.value.data}")
        elif not isinstance(space, NoneAttr):
            self._out.write(", ")
            self.print_attribute(space)
        self._out.write(">")

    def print_op_attributes(
        self,
        attributes: Mapping[str, Attribute],
        *,
        reserved_attr_names: Iterable[str] = (),
        print_keyword: bool = False,
    ) -> bool:
        if HLO_OP in attributes and not self._print_locations:
            attributes = {name: attribute for name, attribute in attributes.items() if name != HLO_OP}
        return super().print_op_attributes(attributes, reserved_attr_names=reserved_attr_names, print_keyword=print_keyword)

    def print_attr_dict(self, attr_dict: Mapping[str, Attribute]) -> None:
        super().print_attr_dict(dict(sorted(attr_dict.items())))  # as MLIR, which keeps dictionaries sorted

    def print_float(self, value: float, type: AnyFloat) -> None:
        if math.isfinite(value):
            super().print_float(value, type)
        else:
            self._out.write(f"0x{type.pack((value,))[::-1].hex().upper()}")

    def print_op(self, op: Operation) -> None:
        if self.print_generic_format or (self._generic_xla_gpu and op.name.startswith("xla_gpu.")):
            self._print_results(op)
            self.print_string(f'"{op.name}"')
            self.print_op_with_default_format(op)
            return
        syntax = PRINTERS.get(type(op))
        if syntax is None and type(op).print is Operation.print:
            super().print_op(op)
            return
        self._print_results(op)
        name = _short_name(op)
        self._out.write(name if self._spelling is None else self._spelling.get(name, name))
        if syntax is not None:
            syntax(self, op)
        else:
            op.print(self)

    def _print_results(self, op: Operation) -> None:
        groups = result_groups(op, as_mlir=self._spelling is not None)
        if not groups:
            return
        self.print_list(groups, lambda group: self._out.write(_group_text(self._names[group[0]], len(group))))
        self._out.write(" = ")


def _with_default_names(map_: IndexingMap) -> IndexingMap:
    """Return the map with XLA's names: only thread and block ids have one."""
    dims = tuple(Variable(each.bounds, each.name if each.name in GRID_NAMES else "") for each in map_.dims)
    return replace(map_, dims=dims, ranges=tuple(Variable(each.bounds) for each in map_.ranges))


def _group_text(name: str, size: int) -> str:
    return f"%{name}" if size == 1 else f"%{name.partition('#')[0]}:{size}"


def _short_name(op: Operation) -> str:
    """Return the op's name as MLIR prints it: without the dialect if that is the default dialect of the parent op."""
    if isinstance(op, ModuleOp):
        return "module"
    if isinstance(op.parent_op(), func.FuncOp) and isinstance(op, func.ReturnOp | func.CallOp):
        return op.name.removeprefix("func.")
    return op.name
