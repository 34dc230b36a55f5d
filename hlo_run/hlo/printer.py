"""Print a module as HLO text, equal to the text of XLA's `ToString` in order, omitted attributes and spaces."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from hlo_run.hlo.async_ops import is_async_wrapper, is_one_instruction
from hlo_run.hlo.attributes.lexer import RESERVED
from hlo_run.hlo.attributes.table import EntryLayout
from hlo_run.hlo.attributes.text import format_bools, format_entry_layout
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.instruction_printer import InstructionPrinter, PrintNested, short_name
from hlo_run.hlo.print_options import CANONICAL, DEFAULT, DUMP, FINGERPRINT, FULL, SHORT_PARSABLE, TEXT_OF, PrintOptions
from hlo_run.hlo.values.attribute_values import string_or_json
from hlo_run.walks import post_order

__all__ = [
    "CANONICAL",
    "DEFAULT",
    "DUMP",
    "FINGERPRINT",
    "FULL",
    "SHORT_PARSABLE",
    "PrintOptions",
    "computation_order",
    "computation_to_string",
    "creation_order",
    "header_to_string",
    "install",
    "instruction_order",
    "instruction_to_string",
    "module_to_string",
]

# Encloses the number of a body that is not printed yet. HLO strings have any character but a lone surrogate.
_MARK = chr(0xD800)
_HEADER_BEFORE_LAYOUT = ("input_output_alias", "buffer_donor", "alias_passthrough_params")
_FLAG_LISTS = ("allow_spmd_sharding_propagation_to_parameters", "allow_spmd_sharding_propagation_to_output")
_HEADER_AFTER_LAYOUT = (
    *_FLAG_LISTS,
    "replica_count",
    "num_partitions",
    "frontend_attributes",
    "backend_config",
    "origin_recovery_table",
    "debug_attributes",
)


def module_to_string(module: HloModule, options: PrintOptions = DEFAULT) -> str:
    """Return the whole module; an empty line follows the header and every computation."""
    parts = ["  " * options.indent + header_to_string(module, options)]
    frames = module.stack_frames
    if options.metadata and frames is not None and frames.frames:
        parts.append(str(frames))
    order = creation_order(module) if options.in_creation_order else computation_order(module)
    for computation in order:
        if not (options.async_sugar and is_async_wrapper(computation) and is_one_instruction(computation)):
            parts.append(computation_to_string(computation, options) + "\n")
    return "\n".join(parts) + "\n"


def header_to_string(module: HloModule, options: PrintOptions) -> str:
    """Return the first line of a module, `HloModule` and its attributes, with a newline."""
    # A reserved word is a name only after a percent sign, which XLA parses but never prints here.
    percent = "%" if options.large_constants and module.name in RESERVED else ""
    parts = [f"HloModule {percent}{module.name}" if options.ids else "HloModule "]
    if module.schedule is not None:
        parts.append("is_scheduled=true")
    parts += [f"{name}={_header_value(module, name)}" for name in _HEADER_BEFORE_LAYOUT if _has(module, name)]
    parts.append(f"entry_computation_layout={format_entry_layout(_entry_layout(module))}")
    for name in _HEADER_AFTER_LAYOUT:
        if _has(module, name) and (name != "backend_config" or options.backend_config):
            parts.append(f"{name}={_header_value(module, name)}")
    text = ", ".join(parts) + "\n"
    # XLA begins a line for this one, and indents its entries.
    return text.replace(", debug_attributes={\n", ",\ndebug_attributes={\n").replace("\n  {", f"\n{'  ' * options.indent}  {{")


def _has(module: HloModule, name: str) -> bool:
    value = module.attrs.get(name)
    if name in ("replica_count", "num_partitions"):
        return value not in (None, 1)
    return value not in (None, False, (), (False,)) and str(value) != "{}"


def _header_value(module: HloModule, name: str) -> str:
    value = module.attrs[name]
    if name in _FLAG_LISTS and isinstance(value, tuple):
        return format_bools(value)
    if name == "backend_config":
        return string_or_json(str(value))
    return "true" if value is True else str(value)


def _entry_layout(module: HloModule) -> EntryLayout:
    """Return the header's `entry_computation_layout`, or one of the shapes of the entry's parameters and root."""
    if module.entry_layout is not None:
        return module.entry_layout
    shapes = [instruction.shape for instruction in (*module.entry.parameters, module.entry.root)]
    if module.has_default_entry_layout:
        shapes = [shape.in_default_order() for shape in shapes]
    return EntryLayout(tuple(shapes[:-1]), shapes[-1])


def computation_order(module: HloModule) -> list[HloComputation]:
    """Return every computation, callees before callers: depth first from each computation without callers."""
    order: dict[HloComputation, None] = {}
    for start in module.computations:
        if not start.callers:
            _add_post_order(start, order)
    # Computations in a cycle of calls are missing so far. Such a module is invalid, but may be printed for debugging.
    for computation in module.computations:
        order.setdefault(computation)
    return list(order)


def creation_order(module: HloModule) -> list[HloComputation]:
    """Return the computations in the module's order, except that a caller before a callee follows its last callee."""
    numbers = {computation: number for number, computation in enumerate(module.computations)}
    waits_for = {computation: {c for i in computation.instructions for c in callees_in_order(i)} for computation in numbers}
    callers: dict[HloComputation, list[HloComputation]] = {computation: [] for computation in numbers}
    for computation, callees in waits_for.items():
        for callee in callees:
            callers[callee].append(computation)
    ready = [numbers[computation] for computation, callees in waits_for.items() if not callees]
    order: dict[HloComputation, None] = {}
    while ready:
        computation = module.computations[heapq.heappop(ready)]
        order[computation] = None
        for caller in callers[computation]:
            waits_for[caller].discard(computation)
            if not waits_for[caller]:
                heapq.heappush(ready, numbers[caller])
    # As above, those in a cycle of calls are missing so far.
    return list(order | dict.fromkeys(module.computations))


def _add_post_order(start: HloComputation, order: dict[HloComputation, None]) -> None:
    if start not in order:
        order.update(
            dict.fromkeys(post_order(start, lambda c: [n for i in c.instructions for n in callees_in_order(i) if n not in order]))
        )


def callees_in_order(instruction: HloInstruction) -> tuple[HloComputation, ...]:
    """Return the called computations in XLA's order: a loop's body before its condition."""
    called = instruction.called_computations
    return called[::-1] if instruction.opcode == "while" else called


def computation_to_string(computation: HloComputation, options: PrintOptions = DEFAULT) -> str:
    """Return the computation from its name to the closing brace, without a newline at the end."""
    percent = "%" if options.percent else ""
    name = f"{percent}{computation.name} " if options.ids else percent
    return _Bodies().text(computation, options, options.indent, f"ENTRY {name}" if computation.is_entry else name)


class _Bodies:
    """Prints bodies and the bodies nested in them. Inner bodies are marks first and filled in later, so any depth works.

    A mark is a number between two `_MARK` characters.
    """

    def __init__(self) -> None:
        self._marked: list[tuple[HloComputation, PrintOptions, int]] = []

    def text(self, computation: HloComputation, options: PrintOptions, indent: int, head: str) -> str:
        """Return `head`, the signature if the options say so, and the instructions in braces."""
        return self.filled(_body(computation, options, indent, head, instruction_order(computation), self.mark))

    def mark(self, computation: HloComputation, options: PrintOptions, indent: int) -> str:
        """Return the mark of a body that is printed in place of its computation's name."""
        self._marked.append((computation, options, indent))
        return f"{_MARK}{len(self._marked) - 1}{_MARK}"

    def filled(self, text: str) -> str:
        """Return `text` with every mark replaced by its body."""
        if not self._marked:
            return text
        done: list[str] = []
        # A stack of pieces to print; every other piece of a text is the number of a mark.
        waiting = [(text, False)]
        while waiting:
            piece, is_mark = waiting.pop()
            if is_mark:
                computation, options, indent = self._marked[int(piece)]
                module = computation.module
                assert module is None or indent <= options.indent + len(module.computations), "the calls have a cycle"
                # XLA prints a nested body in post order, even if it is scheduled.
                piece = _body(computation, options, indent, "", computation.post_order(), self.mark)
            if _MARK in piece:
                pieces = piece.split(_MARK)
                waiting += [(pieces[number], number % 2 == 1) for number in reversed(range(len(pieces)))]
            else:
                done.append(piece)
        return "".join(done)


def _body(
    computation: HloComputation,
    options: PrintOptions,
    indent: int,
    head: str,
    order: Sequence[HloInstruction],
    nested: PrintNested,
) -> str:
    tab = "  " * indent
    if options.program_shape:
        parameters = ", ".join(
            f"{p.name if options.ids else short_name(p.name)}: {p.shape.to_string(layout=False)}" for p in computation.parameters
        )
        head += f"({parameters}) -> {computation.root.shape.to_string(layout=False)} "
    printer = InstructionPrinter(options, indent, nested)
    lines = [
        (f"{tab}  ROOT " if instruction.is_root else f"{tab}  ") + printer.text(instruction)
        for instruction in order
        if not printer.is_folded(instruction)
    ]
    thread, config = computation.execution_thread, computation.backend_config
    tail = tab + "}" if thread == "main" or not options.ids else f'{tab}}}, execution_thread="{thread}"'
    tail += f", backend_config={string_or_json(config)}" if config and options.backend_config else ""
    return "\n".join([f"{tab}{head}{{", *lines, tail])


def instruction_order(computation: HloComputation) -> list[HloInstruction]:
    """Return the instructions in printing order: the schedule, or operands before users."""
    schedule = computation.module.schedule if computation.module else None
    if schedule is not None and computation in schedule:
        return schedule[computation]
    return computation.post_order()


def instruction_to_string(instruction: HloInstruction, options: PrintOptions = DEFAULT) -> str:
    """Return `%name = SHAPE opcode(operands), attributes` as one line, or more if it contains called bodies."""
    bodies = _Bodies()
    return bodies.filled(InstructionPrinter(options, options.indent, bodies.mark).text(instruction))


def install() -> None:
    """Let `str` of instructions, computations and modules return HLO text; before, it is their name."""
    TEXT_OF.update({HloInstruction: instruction_to_string, HloComputation: computation_to_string, HloModule: module_to_string})
