"""Print one instruction: `%name = SHAPE opcode(operands), attributes`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from hlo_run.hlo.async_ops import async_start, is_one_instruction
from hlo_run.hlo.attributes.table import ATTRIBUTES, CALLED_ATTRIBUTES, attribute_kind
from hlo_run.hlo.attributes.text import format_int_lists
from hlo_run.hlo.graph import HloComputation, HloInstruction
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo.opcodes.table import OPCODES
from hlo_run.hlo.opcodes.traits import ASYNC
from hlo_run.hlo.print_options import PrintOptions
from hlo_run.hlo.values.backend_config import sorted_config
from hlo_run.hlo.values.escape import unescape
from hlo_run.hlo.values.literal import format_literal
from hlo_run.hlo.values.metadata import OpMetadata
from hlo_run.hlo.values.replica_groups import ReplicaGroups
from hlo_run.hlo.values.sharding import NamedSharding, SingleSharding, TupleSharding, without_metadata
from hlo_run.records import replace

PrintNested: TypeAlias = "Callable[[HloComputation, PrintOptions, int], str]"

_AFTER_CONTROL = ("statistics", "result_accuracy")
_COMMON = frozenset(
    ("sharding", "frontend_attributes", *_AFTER_CONTROL, "parameter_replication", "origin", "metadata", "backend_config")
)
_NOT_BEFORE = _COMMON | {"is_composite"}
# The kinds of elements that compare in a partial order unless the instruction says otherwise.
_PARTIAL = ("float", "complex")
_CONFIGS = ("infeed_config", "outfeed_config")
# Where bodies are printed, theirs are `calls`.
_CALLS_IN_FULL: tuple[Opcode, ...] = ("reduce-scatter", "scan")
_LISTS = ("branch_computations", "called_computations")
# Larger integer arrays are never essential.
_MAX_ESSENTIAL_ELEMENTS = 500_000
_MAX_COMPACT_OPERANDS = 4


def short_name(name: str) -> str:
    """Return the part of a name before its first dot."""
    return name.partition(".")[0]


class InstructionPrinter:
    """Prints the instructions of one computation; their canonical names are numbered from 0.

    `indent` is that of the computation. `nested` prints a called body.
    """

    def __init__(self, options: PrintOptions, indent: int, nested: PrintNested) -> None:
        self._options = options
        self._indent = indent
        self._nested = nested
        self._numbers: dict[HloInstruction, int] = {}

    def text(self, instruction: HloInstruction) -> str:
        """Return the instruction as one line, or more if it contains called bodies."""
        options = self._options
        opcode = instruction.opcode
        if opcode in ASYNC and (body := self._sugared(instruction)) is not None:
            opcode = f"{body.root.opcode}-{opcode.removeprefix('async-')}"
        shape = ""
        if options.result_shape and instruction.shape.element_type != "unknown":
            shape = f"{instruction.shape.to_string(options.layouts)} "
        # Operands before the name: canonical names are numbered in the order of their first use.
        arguments = self._arguments(instruction)
        head = f"{self.name(instruction)} = {shape}{opcode}({arguments})"
        attributes = self._attributes(instruction)
        return f"{head}, {', '.join(attributes)}" if attributes else head

    def is_folded(self, instruction: HloInstruction) -> bool:
        """True for a get-tuple-element that is printed as `%t#0` in its users, and not on its own."""
        return self._options.compact_get_tuple_element and instruction.opcode == "get-tuple-element" and not instruction.is_root

    def _sugared(self, instruction: HloInstruction) -> HloComputation | None:
        """Return the computation that the short form of an async op replaces, or None if the op is printed in full."""
        start = async_start(instruction) if self._options.async_sugar else None
        body = start.called["calls"][0] if start is not None and "calls" in start.called else None
        return body if body is not None and is_one_instruction(body) else None

    def name(self, instruction: HloInstruction) -> str:
        """Return the instruction's printed name."""
        if self._options.canonical_names:
            return f"tmp_{self._numbers.setdefault(instruction, len(self._numbers))}"
        return self._plain_name(instruction)

    def _plain_name(self, instruction: HloInstruction | HloComputation) -> str:
        name = instruction.name if self._options.ids else short_name(instruction.name)
        return f"%{name}" if self._options.percent else name

    def _arguments(self, instruction: HloInstruction) -> str:
        if instruction.opcode == "parameter":
            return str(instruction.parameter_number)
        if instruction.opcode == "constant":
            return self._constant(instruction)
        options = self._options
        operands = instruction.operands
        left_out = len(operands) - _MAX_COMPACT_OPERANDS if options.compact_operands else 0
        if left_out > 0:
            operands = operands[:_MAX_COMPACT_OPERANDS]
        interval = options.operand_index_interval
        parts = [
            (f"/*index={number}*/" if interval and number and number % interval == 0 else "") + self._operand(operand)
            for number, operand in enumerate(operands)
        ]
        return ", ".join(parts) + (f", ...(+{left_out})" if left_out > 0 else "")

    def _operand(self, operand: HloInstruction) -> str:
        options = self._options
        shape = operand.shape.to_string(options.layouts) if options.operand_shapes else ""
        indices = ""
        while self.is_folded(operand):
            indices = f"#{operand.tuple_index}{indices}"
            operand = operand.operands[0]
        name = f"{self.name(operand)}{indices}" if options.operand_names or options.canonical_names else ""
        return f"{shape} {name}" if shape and name else shape + name

    def _constant(self, instruction: HloInstruction) -> str:
        """Return the text in the parentheses of a constant: the literal, or `{...}` if the options omit it."""
        shape, options = instruction.shape, self._options
        literal = instruction.literal
        if options.essential_constants:
            return _essential(instruction)
        is_large = shape.is_tuple or (shape.is_array and shape.element_count > options.large_constant_elements)
        if is_large and not options.large_constants:
            return "{...}"
        return format_literal(literal, shape, reads_back=options.large_constants)

    def _attributes(self, instruction: HloInstruction) -> list[str]:
        """Return `name=value` of each attribute in XLA's order."""
        options = self._options
        parts = self._extra_attributes(instruction)
        if options.origin:
            parts.append(_common(instruction, "origin"))
        if options.metadata:
            inline = _inline_frame(instruction) if options.inline_stack_frames else None
            parts.append(_common(instruction, "metadata") if inline is None else f"metadata={inline}")
        if options.backend_config:
            config = instruction.backend_config
            is_record = options.sorted_backend_config and config.startswith("{")
            parts.append(f"backend_config={sorted_config(config)}" if is_record else _common(instruction, "backend_config"))
        return [part for part in parts if part]

    def _extra_attributes(self, instruction: HloInstruction, has_outer_frontend: bool = False) -> list[str]:
        """Return the attributes except origin, metadata and backend config; omitted ones are empty strings.

        `has_outer_frontend`: the async-start around the instruction prints the frontend attributes.
        """
        if not instruction.attrs and not instruction.called and not instruction.control_predecessors:
            return []
        parts: list[str] = []
        if self._options.extra_attributes:
            opcode = OPCODES.get(instruction.opcode)
            own = opcode.attributes if opcode else tuple(instruction.attrs)
            if instruction.opcode == "async-start":
                is_sugared = self._sugared(instruction) is not None
                own = ("async_execution_thread",) if is_sugared else ("async_execution_thread", "output_to_operand_aliasing")
            parts += [self._own(instruction, name) for name in own if name not in CALLED_ATTRIBUTES and name not in _NOT_BEFORE]
            parts += [_common(instruction, "parameter_replication")] if self._options.ids else []
        parts += self._called(instruction)
        if self._options.extra_attributes and "is_composite" in instruction.attrs:
            parts.append(self._own(instruction, "is_composite"))
        parts.append(self._sharding(instruction))
        parts += [] if has_outer_frontend else [_common(instruction, "frontend_attributes")]
        if self._options.control_dependencies and instruction.control_predecessors:
            names = ", ".join(self._plain_name(predecessor) for predecessor in instruction.control_predecessors)
            parts.append(f"control-predecessors={{{names}}}")
        return parts + [_common(instruction, name) for name in _AFTER_CONTROL]

    def _sharding(self, instruction: HloInstruction) -> str:
        """Return the sharding; its metadata is printed only with the option `metadata`."""
        sharding = instruction.sharding
        if isinstance(sharding, (SingleSharding, NamedSharding, TupleSharding)) and not self._options.metadata:
            return f"sharding={without_metadata(sharding)}"
        return _common(instruction, "sharding")

    def _called(self, instruction: HloInstruction) -> list[str]:
        """Return the called computations by name or in full; for an async-start in short form, the wrapped op's attributes."""
        options = self._options
        if instruction.opcode == "async-start" and (body := self._sugared(instruction)) is not None:
            wrapped = self._extra_attributes(body.root, "frontend_attributes" in instruction.attrs)
            aliasing = [self._own(instruction, "output_to_operand_aliasing")] if options.extra_attributes else []
            return wrapped + aliasing + (self._bodies(instruction) if options.nested_computations else [])
        if options.nested_computations:
            return self._bodies(instruction)
        parts: list[str] = []
        for name, computations in instruction.called.items():
            names = ", ".join(self._plain_name(computation) for computation in computations)
            parts.append(f"{name}={{{names}}}" if name in _LISTS else f"{name}={names}")
        return parts

    def _bodies(self, instruction: HloInstruction) -> list[str]:
        parts: list[str] = []
        for name, computations in instruction.called.items():
            if instruction.opcode in _CALLS_IN_FULL:
                # XLA prints a body of these opcodes as `calls=`, and a name as `to_apply=`.
                name = "calls"
            bodies = ",\n".join(self._nested(computation, self._options, self._indent + 1) for computation in computations)
            parts.append(f"{name}={{\n{bodies}\n}}" if name in _LISTS else f"{name}=\n{bodies}")
        return parts

    def _own(self, instruction: HloInstruction, name: str) -> str:
        """Return `name=value` of an attribute specific to the opcode, or "" if XLA does not print it."""
        value = instruction.attrs.get(name)
        if value is None:
            return ""
        kind = attribute_kind(instruction.opcode, name)
        if kind.is_hidden(value) or (name in _CONFIGS and not self._options.feed_configs):
            return ""
        if name == "order" and value == ("PARTIAL" if instruction.operands[0].shape.dtype.kind in _PARTIAL else "TOTAL"):
            return ""
        if self._options.full_replica_groups and isinstance(value, ReplicaGroups):
            return f"{name}={format_int_lists(value.groups())}"
        shown = kind.format(value)
        # As in literals: XLA prints -0, which is parsed as the integer 0.
        return f"{name}={'-0.0' if shown == '-0' and self._options.large_constants else shown}"


def _common(instruction: HloInstruction, name: str) -> str:
    value = instruction.attrs.get(name)
    if value is None:
        return ""
    kind = ATTRIBUTES[name]
    return "" if kind.is_hidden(value) else f"{name}={kind.format(value)}"


def _inline_frame(instruction: HloInstruction) -> OpMetadata | None:
    """Return the metadata with the place of their stack frame in place of its number; None if they name no frame."""
    metadata = instruction.metadata
    module = instruction.parent.module if instruction.parent is not None else None
    frames = module.stack_frames if module is not None else None
    if metadata is None or not metadata.stack_frame_id:
        return None
    plain = replace(metadata, stack_frame_id=0)
    if frames is None or metadata.stack_frame_id > len(frames.frames):
        return plain
    frame = frames.frames[metadata.stack_frame_id - 1]
    return replace(plain, source_file=unescape(frame.file) or "", source_line=frame.line, source_column=frame.column)


def _essential(instruction: HloInstruction) -> str:
    """Return a constant as in XLA's fingerprint: `0` if all elements are 0, `1` if all are 1, integers; else `{...}`."""
    shape = instruction.shape
    literal = instruction.literal
    if isinstance(literal, tuple):
        return "{...}" if any(not leaf.dtype.is_integer for _, leaf in shape.leaves()) else format_literal(literal, shape)
    with np.errstate(invalid="ignore"):
        is_one = bool(np.all(literal == np.ones((), literal.dtype)))
    # Zero has no bits set in any type; -0 does not count. f8e8m0fnu has no zero.
    is_zero = shape.element_type != "f8e8m0fnu" and not literal.tobytes().strip(b"\0")
    if is_zero or is_one:
        return "0" if is_zero else "1"
    is_integer = shape.dtype.is_integer and shape.element_count <= _MAX_ESSENTIAL_ELEMENTS
    return format_literal(literal, shape) if is_integer else "{...}"
