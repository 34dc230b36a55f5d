"""Graph to HLO text, as XLA's `ToString` writes it: same order, same attributes left out, same blanks."""

from __future__ import annotations

from dataclasses import dataclass

from hlo_run.hlo.attribute_text import format_entry_layout
from hlo_run.hlo.attributes import ATTRIBUTES, CALLED_ATTRIBUTES, EntryLayout, RawText
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.literal import format_literal
from hlo_run.hlo.opcodes import OPCODES


@dataclass(frozen=True, slots=True)
class PrintOptions:
    """What is printed; the defaults are XLA's `HloPrintOptions::Default`.

    `operand_index_interval` N puts `/*index=N*/` before every Nth operand, 0 none. Without `large_constants` arrays of
    more than `large_constant_elements` and tuples print `{...}`. `compact_get_tuple_element` prints `%t#0` for operands
    and leaves the get-tuple-element lines out.
    """

    percent: bool = True
    program_shape: bool = True
    operand_shapes: bool = False
    operand_index_interval: int = 5
    large_constants: bool = False
    large_constant_elements: int = 10
    metadata: bool = True
    backend_config: bool = True
    control_dependencies: bool = True
    compact_get_tuple_element: bool = False


DEFAULT = PrintOptions()
SHORT_PARSABLE = PrintOptions(
    percent=False,
    program_shape=False,
    operand_index_interval=0,
    large_constants=True,
    metadata=False,
    control_dependencies=False,
)
# What XLA's dumps use unless flags say otherwise.
DUMP = PrintOptions(compact_get_tuple_element=True)

_HEADER_BEFORE_LAYOUT = ("input_output_alias", "buffer_donor", "alias_passthrough_params")
_HEADER_AFTER_LAYOUT = (
    "allow_spmd_sharding_propagation_to_parameters",
    "allow_spmd_sharding_propagation_to_output",
    "replica_count",
    "num_partitions",
    "frontend_attributes",
    "origin_recovery_table",
    "debug_attributes",
)
_BEFORE_CONTROL = ("sharding", "frontend_attributes")
_AFTER_CONTROL = ("statistics", "parameter_replication", "result_accuracy", "origin")
_COMMON = frozenset((*_BEFORE_CONTROL, *_AFTER_CONTROL, "metadata", "backend_config"))
_DEFAULT_COMPARISON = {"float": "FLOAT", "complex": "FLOAT", "signed": "SIGNED", "unsigned": "UNSIGNED", "pred": "UNSIGNED"}


def module_to_string(module: HloModule, options: PrintOptions = DEFAULT) -> str:
    """Return the whole module; an empty line follows the header and every computation."""
    parts = [_header(module)]
    if options.metadata and "stack_frames" in module.attrs and _uses_stack_frames(module):
        parts.append(f"{module.attrs['stack_frames']}\n\n")
    parts += [computation_to_string(computation, options) + "\n" for computation in computation_order(module)]
    return "\n".join(parts) + "\n"


def _uses_stack_frames(module: HloModule) -> bool:
    return any("stack_frame_id=" in str(i.attrs.get("metadata", "")) for c in module.computations for i in c.instructions)


def _header(module: HloModule) -> str:
    parts = [f"HloModule {module.name}"]
    if module.schedule is not None:
        parts.append("is_scheduled=true")
    parts += [f"{name}={_header_value(module, name)}" for name in _HEADER_BEFORE_LAYOUT if _has(module, name)]
    parts.append(f"entry_computation_layout={format_entry_layout(_entry_layout(module))}")
    parts += [f"{name}={_header_value(module, name)}" for name in _HEADER_AFTER_LAYOUT if _has(module, name)]
    return ", ".join(parts) + "\n"


def _has(module: HloModule, name: str) -> bool:
    value = module.attrs.get(name)
    return value is not None and value is not False and not (name in ("replica_count", "num_partitions") and value == 1)


def _header_value(module: HloModule, name: str) -> str:
    value = module.attrs[name]
    return str(value).lower() if isinstance(value, bool) else str(value)


def _entry_layout(module: HloModule) -> EntryLayout:
    """Return the written layout, or the shapes of the entry's parameters and root."""
    written = module.attrs.get("entry_computation_layout")
    if isinstance(written, EntryLayout):
        return written
    return EntryLayout(tuple(parameter.shape for parameter in module.entry.parameters), module.entry.root.shape)


def computation_order(module: HloModule) -> list[HloComputation]:
    """Return every computation, callees before callers: depth first from each computation that nobody calls."""
    order: dict[HloComputation, None] = {}
    for start in module.computations:
        if not start.callers:
            _add_post_order(start, order)
    # Only a cycle of calls leaves any out, and a module that is printed to be looked at may have one.
    for computation in module.computations:
        order.setdefault(computation)
    return list(order)


def _add_post_order(start: HloComputation, order: dict[HloComputation, None]) -> None:
    stack = [(start, False)]
    entered: set[HloComputation] = set()
    while stack:
        computation, is_done = stack.pop()
        if is_done:
            order.setdefault(computation)
        elif computation not in order and computation not in entered:
            entered.add(computation)
            stack.append((computation, True))
            called = [c for instruction in computation.instructions for c in _callees(instruction)]
            stack += [(c, False) for c in reversed(called) if c not in order]


def _callees(instruction: HloInstruction) -> tuple[HloComputation, ...]:
    """Return the called computations in XLA's order, in which a loop's body is before its condition."""
    called = instruction.called_computations
    return called[::-1] if instruction.opcode == "while" else called


def computation_to_string(computation: HloComputation, options: PrintOptions = DEFAULT) -> str:
    """Return the computation from its name to the closing brace, without a newline at the end."""
    percent = "%" if options.percent else ""
    head = f"ENTRY {percent}{computation.name} " if computation.is_entry else f"{percent}{computation.name} "
    if options.program_shape:
        parameters = ", ".join(f"{p.name}: {p.shape.to_string(layout=False)}" for p in computation.parameters)
        head += f"({parameters}) -> {computation.root.shape.to_string(layout=False)} "
    lines = [
        ("  ROOT " if instruction.is_root else "  ") + instruction_to_string(instruction, options)
        for instruction in _instruction_order(computation)
        if not _is_folded(instruction, options)
    ]
    thread = computation.execution_thread
    tail = "}" if thread == "main" else f'}}, execution_thread="{thread}"'
    return "\n".join([head + "{", *lines, tail])


def _instruction_order(computation: HloComputation) -> list[HloInstruction]:
    schedule = computation.module.schedule if computation.module else None
    if schedule is not None and computation in schedule:
        return schedule[computation]
    return computation.post_order()


def _is_folded(instruction: HloInstruction, options: PrintOptions) -> bool:
    """True for a get-tuple-element that its users print as `%t#0`."""
    return options.compact_get_tuple_element and instruction.opcode == "get-tuple-element" and not instruction.is_root


def instruction_to_string(instruction: HloInstruction, options: PrintOptions = DEFAULT) -> str:
    """Return `%name = SHAPE opcode(operands), attributes` in one line."""
    percent = "%" if options.percent else ""
    shape = "" if instruction.shape.element_type == "unknown" else f"{instruction.shape} "
    head = f"{percent}{instruction.name} = {shape}{instruction.opcode}({_arguments(instruction, options)})"
    return ", ".join([head, *_attributes(instruction, options)])


def _arguments(instruction: HloInstruction, options: PrintOptions) -> str:
    if instruction.opcode == "parameter":
        return str(instruction.attrs["parameter_number"])
    if instruction.opcode == "constant":
        return constant_text(instruction, options)
    interval = options.operand_index_interval
    parts = [
        (f"/*index={number}*/" if interval and number and number % interval == 0 else "") + _operand(operand, options)
        for number, operand in enumerate(instruction.operands)
    ]
    return ", ".join(parts)


def _operand(operand: HloInstruction, options: PrintOptions) -> str:
    indices = ""
    shape = f"{operand.shape} " if options.operand_shapes else ""
    while _is_folded(operand, options):
        indices = f"#{operand.attrs['index']}{indices}"
        operand = operand.operands[0]
    return f"{shape}{'%' if options.percent else ''}{operand.name}{indices}"


def constant_text(instruction: HloInstruction, options: PrintOptions = DEFAULT) -> str:
    """Return what a constant prints in its parentheses, `{...}` where it is too large for the options."""
    shape = instruction.shape
    is_large = shape.is_tuple or (shape.is_array and shape.element_count > options.large_constant_elements)
    if is_large and not options.large_constants:
        return "{...}"
    return format_literal(instruction.attrs["literal"], shape)


def _attributes(instruction: HloInstruction, options: PrintOptions) -> list[str]:
    """Return `name=value` of each attribute in XLA's order."""
    percent = "%" if options.percent else ""
    opcode = OPCODES.get(instruction.opcode)
    own = opcode.attributes if opcode else tuple(instruction.attrs)
    parts = [_own(instruction, name) for name in own if name not in CALLED_ATTRIBUTES and name not in _COMMON]
    for name, computations in instruction.called.items():
        names = ", ".join(percent + computation.name for computation in computations)
        is_list = name in ("branch_computations", "called_computations")
        parts.append(f"{name}={{{names}}}" if is_list else f"{name}={names}")
    parts += [_raw(instruction, name) for name in _BEFORE_CONTROL]
    if options.control_dependencies and instruction.control_predecessors:
        names = ", ".join(percent + predecessor.name for predecessor in instruction.control_predecessors)
        parts.append(f"control-predecessors={{{names}}}")
    parts += [_raw(instruction, name) for name in _AFTER_CONTROL]
    if options.metadata:
        parts.append(_raw(instruction, "metadata"))
    if options.backend_config:
        parts.append(_raw(instruction, "backend_config"))
    return [part for part in parts if part]


def _own(instruction: HloInstruction, name: str) -> str:
    """Return `name=value` of one attribute of the opcode's own, empty if XLA does not print it."""
    value = instruction.attrs.get(name)
    kind = ATTRIBUTES[name]
    if value is None:
        return ""
    if name not in OPCODES[instruction.opcode].defaults and value == kind.omitted:
        return ""
    if name == "type" and value == _DEFAULT_COMPARISON.get(instruction.operands[0].shape.dtype.kind):
        return ""
    return f"{name}={kind.format(value)}"


def _raw(instruction: HloInstruction, name: str) -> str:
    value = instruction.attrs.get(name)
    return f"{name}={value}" if isinstance(value, (RawText, str)) else ""
