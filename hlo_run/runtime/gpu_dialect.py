"""Prints the host side in MLIR's gpu dialect: a `gpu.module` per kernel, and a host function that launches the kernels.

    gpu.module @wrapped_negate { llvm.func @wrapped_negate(..) attributes {gpu.kernel} { .. } }
    func.func @main(%a0: !llvm.ptr, %a1: !llvm.ptr) {
      gpu.launch_func @wrapped_negate::@wrapped_negate blocks in (%c1, %c1, %c1) threads in (%c64, %c1, %c1)
          args(%a0 : !llvm.ptr, %a1 : !llvm.ptr)

`%a0` is allocation 0. Loops and branches are `scf` ops, copies are memcpy, library thunks are calls of declared functions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import assert_never

from hlo_run.artifact import (
    AsyncDoneThunk,
    AsyncStartThunk,
    BufferSlice,
    CommandBufferThunk,
    ConditionalThunk,
    CopyThunk,
    Executable,
    FunctionCall,
    KernelThunk,
    LoopOffset,
    MemsetThunk,
    SequentialThunk,
    SliceCopyThunk,
    SlicedProductThunk,
    Thunk,
    WhileThunk,
    accesses,
    every_thunk,
)
from hlo_run.hlo.names import identifier


def gpu_dialect_text(program: Executable, kernels: Mapping[str, str]) -> str:
    """Return the module's text. `kernels` maps a kernel's name to the text of its module in the LLVM dialect.

    A kernel that was given as LLVM IR or PTX has no such text; its `gpu.module` is empty.
    """
    writer = _Writer(program)
    body = writer.sequence(program.thunks, "    ")
    parameters = ", ".join(f"%a{allocation.index}: !llvm.ptr" for allocation in program.allocations)
    lines = ["module attributes {gpu.container_module} {"]
    for kernel in program.kernels:
        lines += [f"  gpu.module @{kernel.name} {{", *_functions(kernels.get(kernel.name, "")), "  }"]
    lines += [f"  func.func private @{name}({types})" for name, types in writer.declared.items()]
    lines += [f"  func.func @main({parameters}) {{", *writer.head(), *body, "    return", "  }", "}"]
    return "\n".join(lines)


def _functions(text: str) -> list[str]:
    """Return the functions of a kernel's module, with `gpu.kernel` on the entry."""
    inner = text.strip().splitlines()[1:-1]
    return [f"  {line}".replace("attributes {xla.entry}", "attributes {gpu.kernel, xla.entry}") for line in inner]


class _Writer:
    """Writes thunks. Their constants and pointers are defined once, at the start of the function."""

    def __init__(self, program: Executable) -> None:
        self._kernels = {kernel.name: kernel for kernel in program.kernels}
        self._head: dict[str, str] = {}
        self._fresh = 0
        self._iterations: list[str] = []
        """The values with the iterations of the loops around, innermost last."""
        self.declared: dict[str, str] = {}

    def head(self) -> list[str]:
        """Return the definitions of constants and pointers."""
        return [f"    {name} = {value}" for name, value in self._head.items()]

    def sequence(self, thunks: Sequence[Thunk], indent: str) -> list[str]:
        """Return the lines of thunks in order."""
        return [line for thunk in thunks for line in self._thunk(thunk, indent)]

    def _thunk(self, thunk: Thunk, indent: str) -> list[str]:
        match thunk:
            case KernelThunk():
                return [indent + self._launch(thunk)]
            case CopyThunk():
                target, source = self._pointer(thunk.destination), self._pointer(thunk.source)
                return [indent + self._memcpy(target, source, thunk.source.size_bytes)]
            case SliceCopyThunk():
                lines, source = self._part(thunk.source, thunk.source_offset, thunk.size_bytes, indent)
                more, target = self._part(thunk.destination, thunk.destination_offset, thunk.size_bytes, indent)
                return [*lines, *more, indent + self._memcpy(target, source, thunk.size_bytes)]
            case MemsetThunk():
                value = self._define(f"%v{thunk.value}", f"arith.constant {thunk.value} : i32")
                return [f"{indent}llvm.store {value}, {self._pointer(thunk.destination)} : i32, !llvm.ptr"]
            case SequentialThunk() | CommandBufferThunk() | AsyncStartThunk():
                return [f"{indent}// {thunk.kind} {thunk.name}", *self.sequence(thunk.thunks, indent)]
            case AsyncDoneThunk():
                return [f"{indent}// {thunk.kind} {thunk.name}"]
            case WhileThunk():
                return self._while(thunk, indent)
            case ConditionalThunk():
                return self._conditional(thunk, indent)
            case SlicedProductThunk():
                return self._sliced_product(thunk, indent)
            case FunctionCall():
                return [indent + self._call(thunk)]
            case _:
                assert_never(thunk)

    def _memcpy(self, target: str, source: str, size_bytes: int) -> str:
        size = self._define(f"%n{size_bytes}", f"arith.constant {size_bytes} : i64")
        return f'"llvm.intr.memcpy"({target}, {source}, {size}) <{{isVolatile = false}}> : (!llvm.ptr, !llvm.ptr, i64) -> ()'

    def _part(self, whole: BufferSlice, offset: LoopOffset, size_bytes: int, indent: str) -> tuple[list[str], str]:
        """Return the lines that compute the place of a part of a slice in an iteration, and the name of its pointer."""
        last = whole.size_bytes - size_bytes
        if not offset.step_bytes or offset.loop >= len(self._iterations):
            start = whole.offset_bytes + min(max(offset.first_bytes, 0), last)
            return [], self._pointer(BufferSlice(whole.allocation, start, size_bytes))
        iteration, step, first = (
            self._iterations[-1 - offset.loop],
            self._index(offset.step_bytes),
            self._index(offset.first_bytes),
        )
        values = [
            f"arith.muli {iteration}, {step} : index",
            f"arith.addi %o, {first} : index",
            f"arith.maxsi %o, {self._index(0)} : index",
            f"arith.minsi %o, {self._index(last)} : index",
            "arith.index_cast %o : index to i64",
            f"llvm.getelementptr {self._pointer(whole)}[%o] : (!llvm.ptr, i64) -> !llvm.ptr, i8",
        ]
        lines: list[str] = []
        name = ""
        for value in values:
            before, name = name, self._name("o")
            lines.append(f"{indent}{name} = {value.replace('%o', before) if before else value}")
        return lines, name

    def _launch(self, thunk: KernelThunk) -> str:
        kernel = self._kernels[thunk.kernel]
        blocks, threads = (", ".join(map(self._index, sizes)) for sizes in (kernel.grid, kernel.block))
        arguments = ", ".join(f"{self._pointer(argument.slice)} : !llvm.ptr" for argument in thunk.arguments)
        given = f" args({arguments})" if arguments else ""
        return f"gpu.launch_func @{kernel.name}::@{kernel.name} blocks in ({blocks}) threads in ({threads}){given}"

    def _sliced_product(self, thunk: SlicedProductThunk, indent: str) -> list[str]:
        """Call the product's function with the places of its arrays in this iteration."""
        product, moving = thunk.product, {part.field: part for part in thunk.moving}
        arrays = (("lhs", product.lhs), ("rhs", product.rhs), ("addend", product.addend), ("result", product.result))
        lines, pointers = [f"{indent}// {thunk.kind} {thunk.name}"], list[str]()
        for field, array in arrays:
            if array is None:
                continue
            part = moving.get(field)
            if part is None or (field == "result" and thunk.room is not None):
                pointers.append(self._pointer(array.slice))
            else:
                more, pointer = self._part(part.whole, part.offset, array.slice.size_bytes, indent)
                lines += more
                pointers.append(pointer)
        lines.append(indent + self._called(product, pointers))
        if thunk.room is not None:
            size_bytes = thunk.room.size_bytes
            more, target = self._part(moving["result"].whole, moving["result"].offset, size_bytes, indent)
            lines += [*more, indent + self._memcpy(target, self._pointer(thunk.room), size_bytes)]
        return lines

    def _call(self, thunk: Thunk) -> str:
        """Call a function named after kind and instruction with pointers to the slices read, then the slices written."""
        touched = accesses(thunk)
        return self._called(thunk, [self._pointer(piece) for piece in (*touched.reads, *touched.writes)])

    def _called(self, thunk: Thunk, pointers: Sequence[str]) -> str:
        types = ", ".join(["!llvm.ptr"] * len(pointers))
        name = identifier(f"{thunk.kind}_{thunk.name}")
        self.declared[name] = types
        return f"func.call @{name}({', '.join(pointers)}) : ({types}) -> ()"

    def _while(self, thunk: WhileThunk, indent: str) -> list[str]:
        deeper = indent + "  "
        if thunk.trip_count is not None:
            low, high, step = map(self._index, (0, thunk.trip_count, 1))
            number = self._name("i")
            head = f"{indent}scf.for {number} = {low} to {high} step {step} {{"
            self._iterations.append(number)
            body = self.sequence(thunk.body, deeper)
            self._iterations.pop()
            return [head, *body, f"{indent}}}"]
        if any(isinstance(inner, SliceCopyThunk | SlicedProductThunk) for inner in every_thunk((thunk,))):
            return self._counted_while(thunk, indent)
        asked, is_true = self._truth(thunk.predicate, deeper)
        return [
            f"{indent}scf.while : () -> () {{",
            *self.sequence(thunk.condition, deeper),
            *asked,
            f"{deeper}scf.condition({is_true})",
            f"{indent}}} do {{",
            *self.sequence(thunk.body, deeper),
            f"{deeper}scf.yield",
            f"{indent}}}",
        ]

    def _counted_while(self, thunk: WhileThunk, indent: str) -> list[str]:
        """Return a loop that hands on the number of its iteration, which places inside depend on."""
        deeper = indent + "  "
        number, inner, following, left = (self._name("i") for _ in range(4))
        asked, is_true = self._truth(thunk.predicate, deeper)
        self._iterations.append(number)
        condition = self.sequence(thunk.condition, deeper)
        self._iterations[-1] = inner
        body = self.sequence(thunk.body, deeper)
        self._iterations.pop()
        return [
            f"{indent}{left} = scf.while ({number} = {self._index(0)}) : (index) -> index {{",
            *condition,
            *asked,
            f"{deeper}scf.condition({is_true}) {number} : index",
            f"{indent}}} do {{",
            f"{indent}^bb0({inner}: index):",
            *body,
            f"{deeper}{following} = arith.addi {inner}, {self._index(1)} : index",
            f"{deeper}scf.yield {following} : index",
            f"{indent}}}",
        ]

    def _conditional(self, thunk: ConditionalThunk, indent: str) -> list[str]:
        deeper = indent + "  "
        branches = [self.sequence(branch, deeper) for branch in thunk.branches]
        if thunk.is_predicate:
            asked, is_true = self._truth(thunk.selector, indent)
            return [*asked, f"{indent}scf.if {is_true} {{", *branches[0], f"{indent}}} else {{", *branches[1], f"{indent}}}"]
        loaded, index = self._name("s"), self._name("s")
        lines = [
            f"{indent}{loaded} = llvm.load {self._pointer(thunk.selector)} : !llvm.ptr -> i32",
            f"{indent}{index} = arith.index_cast {loaded} : i32 to index",
            f"{indent}scf.index_switch {index}",
        ]
        # A number out of range selects the last branch.
        for number, branch in enumerate(branches):
            case = f"case {number}" if number < len(branches) - 1 else "default"
            lines += [f"{indent}{case} {{", *branch, f"{deeper}scf.yield", f"{indent}}}"]
        return lines

    def _truth(self, place: BufferSlice, indent: str) -> tuple[list[str], str]:
        """Return the lines that load a predicate, and the name of its i1 value."""
        loaded, is_true = self._name("b"), self._name("b")
        zero = self._define("%zero", "arith.constant 0 : i8")
        return [
            f"{indent}{loaded} = llvm.load {self._pointer(place)} : !llvm.ptr -> i8",
            f"{indent}{is_true} = arith.cmpi ne, {loaded}, {zero} : i8",
        ], is_true

    def _index(self, value: int) -> str:
        return self._define(f"%c{value}", f"arith.constant {value} : index")

    def _pointer(self, place: BufferSlice) -> str:
        base = f"%a{place.allocation}"
        if not place.offset_bytes:
            return base
        name = f"%p{place.allocation}_{place.offset_bytes}"
        return self._define(name, f"llvm.getelementptr {base}[{place.offset_bytes}] : (!llvm.ptr) -> !llvm.ptr, i8")

    def _define(self, name: str, value: str) -> str:
        self._head.setdefault(name, value)
        return name

    def _name(self, letter: str) -> str:
        self._fresh += 1
        return f"%{letter}_{self._fresh}"
