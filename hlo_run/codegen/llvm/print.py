"""Prints the LLVM dialect as LLVM IR text. llvmlite's IR builder is not used: it has no bfloat and is slower."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

from xdsl.dialects import llvm
from xdsl.dialects.builtin import DictionaryAttr, IntegerAttr, ModuleOp
from xdsl.ir import Attribute, Block, Operation, SSAValue

from hlo_run.codegen.llvm.locations import Locations, ModuleLocations
from hlo_run.codegen.llvm.nvptx import DATA_LAYOUT, TRIPLE
from hlo_run.codegen.llvm.print_ops import WRITERS, FunctionNames, ModuleText, inline_text
from hlo_run.codegen.llvm.print_values import constant_text, type_text
from hlo_run.dialects import nvvm
from hlo_run.errors import InternalError

Dim3: TypeAlias = tuple[int, int, int]
_ENTRY = "xla.entry"


def llvm_ir_text(module: ModuleOp, kernel_name: str, grid: Dim3, block: Dim3, *, locations: bool = False) -> str:
    """Return the LLVM IR text of a module of the LLVM dialect.

    The function `kernel_name` becomes a kernel that is launched with `grid` blocks of `block` threads (x, y, z). The text
    fixes its block size and gives the intervals of ids. With `locations`, instructions have the HLO instruction of origin as
    debug location (see `locations.py`). Raises InternalError for an op without LLVM IR text.
    """
    ids: dict[type[Operation], int] = {}
    for registers, sizes in ((nvvm.THREAD_ID_OPS, block), (nvvm.BLOCK_ID_OPS, grid)):
        ids |= dict(zip(registers.values(), sizes, strict=True))
    state = ModuleText(ids)
    origins = ModuleLocations(state, kernel_name) if locations else None
    parts = [_operation_text(state, op, kernel_name, origins) for op in module.body.block.ops]
    header = (
        f"; ModuleID = '{kernel_name}'\nsource_filename = \"{kernel_name}\"\n"
        f'target datalayout = "{DATA_LAYOUT}"\ntarget triple = "{TRIPLE}"\n\n'
    )
    required = ",".join(map(str, block))
    attributes = f'attributes #0 = {{ "nvvm.reqntid"="{required}" }}\n'
    intrinsics = "".join(f"{declaration}\n" for declaration in state.intrinsics.values())
    named = origins.named_metadata() if origins else ""
    metadata = named + "".join(f"!{number} = {text}\n" for text, number in state.metadata.items())
    return "\n".join(part for part in (header + "".join(parts), intrinsics, attributes, metadata) if part)


def _operation_text(state: ModuleText, op: Operation, kernel_name: str, origins: ModuleLocations | None) -> str:
    """Return the text of a global or function. With `origins`, its instructions have debug locations."""
    match op:
        case llvm.GlobalOp():
            return _global_text(op)
        case llvm.FuncOp():
            locations = Locations(origins, op.sym_name.data) if origins and op.body.blocks else None
            return _FunctionText(state, op, kernel_name, locations).text()
        case _:
            raise InternalError(f"'{op.name}' at the top level of a module has no LLVM IR text")


def _global_text(op: llvm.GlobalOp) -> str:
    space = op.addr_space.value.data
    value = "undef" if op.value is None else constant_text(op.value, op.global_type)
    words = [
        f"@{op.sym_name.data} =",
        op.linkage.linkage.data,
        f"addrspace({space})" if space else "",
        "constant" if op.constant is not None else "global",
        type_text(op.global_type),
        value,
    ]
    alignment = "" if op.alignment is None else f", align {op.alignment.value.data}"
    return " ".join(filter(None, words)) + alignment + "\n"


def _argument_attributes(attributes: DictionaryAttr) -> str:
    """Return the LLVM attributes of an argument, which emitters and passes have set."""
    data = attributes.data
    words = ["noalias"] if "llvm.noalias" in data else []
    words += [f"align {number}" for number in _numbers(data, "llvm.align")]
    words += [f"dereferenceable({number})" for number in _numbers(data, "llvm.dereferenceable") if number]
    return "".join(f" {word}" for word in words)


def _numbers(data: Mapping[str, Attribute], key: str) -> Iterable[int]:
    value = data.get(key)
    return (value.value.data,) if isinstance(value, IntegerAttr) else ()


class _FunctionText:
    """Prints one function. `names` has the text of each value as an operand; the text of a constant is its value."""

    def __init__(self, state: ModuleText, op: llvm.FuncOp, kernel_name: str, locations: Locations | None = None) -> None:
        self.op = op
        self.locations = locations
        self.is_kernel = op.sym_name.data == kernel_name or _ENTRY in op.attributes
        self.written = FunctionNames(state)
        self.names, self.labels = self.written.names, self.written.labels
        self.incoming: dict[Block, list[tuple[Block, tuple[SSAValue, ...]]]] = {}

    def text(self) -> str:
        op = self.op
        returned = type_text(op.function_type.output)
        name = op.sym_name.data
        if not op.body.blocks:
            inputs = ", ".join(type_text(type_) for type_ in op.function_type.inputs)
            return f"declare {returned} @{name}({inputs})\n"
        self._name_values()
        start = "define ptx_kernel" if self.is_kernel else "define internal"
        end = " #0" if self.is_kernel else ""
        end += f" !dbg {self.locations.subprogram}" if self.locations else ""
        lines = [f"\n{start} {returned} @{name}({self._parameters()}){end} {{"]
        for number, block in enumerate(op.body.blocks):
            if number:
                lines.append(f"\n{self.labels[block][1:]}:")
                lines += self._phis(block)
            self._print_block(block, lines)
        lines.append("}\n")
        return "\n".join(lines)

    def _parameters(self) -> str:
        attributes = self.op.arg_attrs.data if self.op.arg_attrs is not None else ()
        extra = [_argument_attributes(each) for each in attributes] or [""] * len(self.op.body.blocks[0].args)
        return ", ".join(
            f"{type_text(arg.type)}{more} {self.names[arg]}" for arg, more in zip(self.op.body.blocks[0].args, extra, strict=True)
        )

    def _name_values(self) -> None:
        """Number arguments, blocks and results as LLVM does. The names of constants and addresses are their texts."""
        names, counter = self.names, 0
        for block in self.op.body.blocks:
            # LLVM numbers a function's arguments before its entry block, but a block before its phis.
            is_entry = block is self.op.body.blocks[0]
            if not is_entry:
                self.labels[block] = f"%{counter}"
                counter += 1
            for arg in block.args:
                names[arg] = f"%{counter}"
                counter += 1
            if is_entry:
                self.labels[block] = f"%{counter}"
                counter += 1
            for op in block.ops:
                if not op.results:
                    continue
                inline = inline_text(op)
                if inline is not None:
                    names[op.results[0]] = inline
                    continue
                names[op.results[0]] = f"%{counter}"
                counter += 1
            self._note_jumps(block)

    def _note_jumps(self, block: Block) -> None:
        match block.last_op:
            case llvm.BrOp() as jump:
                self._note_jump(block, jump.successor, tuple(jump.arguments))
            case llvm.CondBrOp() as jump:
                self._note_jump(block, jump.then_block, tuple(jump.then_arguments))
                self._note_jump(block, jump.else_block, tuple(jump.else_arguments))
            case _:
                pass  # a switch passes no values to its blocks

    def _note_jump(self, source: Block, target: Block, values: tuple[SSAValue, ...]) -> None:
        if values:
            self.incoming.setdefault(target, []).append((source, values))

    def _phis(self, block: Block) -> Iterable[str]:
        incoming = self.incoming.get(block, [])
        for number, arg in enumerate(block.args):
            pairs = ", ".join(f"[ {self.names[values[number]]}, {self.labels[source]} ]" for source, values in incoming)
            yield f"  {self.names[arg]} = phi {type_text(arg.type)} {pairs}"

    def _print_block(self, block: Block, lines: list[str]) -> None:
        names = self.names
        for op in block.ops:
            writer = WRITERS.get(type(op))
            location = self.locations.reference(op) if self.locations else ""
            if writer is None:
                if not (op.results and inline_text(op) is not None):
                    raise InternalError(f"'{op.name}' has no LLVM IR text")
                continue
            text = writer(self.written, op) + location
            lines.append(f"  {names[op.results[0]]} = {text}" if op.results else f"  {text}")
