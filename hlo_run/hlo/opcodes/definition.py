"""Defines one opcode: its operands, its attributes, its traits, and the spelling of all these in a row of the table."""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct, field

from hlo_run.hlo.opcodes.names import Opcode, opcode_of
from hlo_run.hlo.values.replica_groups import ReplicaGroups

DefaultValue: TypeAlias = "bool | tuple[int, ...] | ReplicaGroups"

# On every instruction, after the opcode's own, in the order of the printer.
COMMON_ATTRIBUTES = (
    "sharding",
    "frontend_attributes",
    "control-predecessors",
    "parameter_replication",
    "statistics",
    "origin",
    "metadata",
    "backend_config",
)

# What an opcode can be said to be, and XLA's query where it has one.
TRAITS: dict[str, str] = {
    "argument": "Text has a value in its parentheses, not operands.",
    "associative": "A reduction by it may group its operands as it likes (`MatchReductionComputation`).",
    "async_start": "Begins what runs beside other instructions; the opcode of the same stem with `-done` ends it.",
    "async_done": "Waits for what an `async_start` began.",
    "can_infer_shape": "Text may leave its shape out (`CanInferShape`).",
    "collective": "Talks to the other devices of a group (`hlo_query::IsCollectiveCommunicationOp`).",
    "commutative": "Takes its two operands in either order (`HloOpcodeIsBinaryCommutative`).",
    "control_flow": "Runs the computations that it calls, instruction by instruction (`CallContext::kControlFlow`).",
    "device_id": "Returns a number of the device that runs it.",
    "dynamic_size": "Reads or sets the size of a dynamic dimension.",
    "elementwise": "Computes each element from the operands' elements at the same index (`HloInstruction::IsElementwise`).",
    "keeps_layout": "Has the layout of its operands of the same rank (not `LayoutAssignment::InstructionCanChangeLayout`).",
    "moves_elements": "Each element of its result is one of operand 0's, and the place does not depend on values.",
    "no_code": "Does nothing when it runs: its value exists already, or is another name for other values.",
    "side_effect": "Stays although nothing uses its result (`HloInstruction::HasSideEffect`).",
}


class OpcodeDefinition(Struct, frozen=True):
    """One opcode. `arity` None means any number of operands. `attributes` are its specific attributes in the order they print.

    `forwards` is the part of operand 0, as a shape index, whose buffers the result lives in (XLA's dataflow analysis); None
    for an opcode that defines its result. `takes` are the kinds of elements (`DType.kind`) of a plain elementwise opcode,
    `gives` what its result has: `same`, `pred` or `real` elements. The shape rules of other opcodes are in `ops/`.
    """

    name: Opcode
    arity: int | None
    attributes: tuple[str, ...] = ()
    required: frozenset[str] = frozenset()
    traits: frozenset[str] = frozenset()
    forwards: tuple[int, ...] | None = None
    takes: frozenset[str] = frozenset()
    gives: str = "same"
    defaults: dict[str, DefaultValue] = field(default_factory=dict[str, "DefaultValue"])

    @property
    def can_infer_shape(self) -> bool:
        """True if text may leave the shape out."""
        return "can_infer_shape" in self.traits

    @property
    def has_argument(self) -> bool:
        """True if text has a value in the parentheses, not operands."""
        return "argument" in self.traits

    @property
    def allowed(self) -> list[str]:
        """Every attribute the opcode takes, sorted."""
        return sorted((*self.attributes, *COMMON_ATTRIBUTES))


def read_rows(table: str, defaults: dict[Opcode, dict[str, DefaultValue]]) -> dict[Opcode, OpcodeDefinition]:
    """Read `opcodes | arity | attributes | traits | elements` rows; the traits of a line `[..]` hold for the rows below it.

    An arity of `-` is any. `!` marks a required attribute. A trait `forwards{1}` gives `OpcodeDefinition.forwards`. Elements are
    the kinds that a plain elementwise opcode takes, with `-> pred` or `-> real` where its result has others.
    """
    opcodes: dict[Opcode, OpcodeDefinition] = {}
    family: list[str] = []
    for line in filter(None, table.splitlines()):
        if line.startswith("["):
            family = line.strip("[]").split()
            continue
        names, arity, attributes, own, elements = (part.split() for part in (line + " |" * (4 - line.count("|"))).split("|"))
        words = [*family, *own]
        forwards = next((word for word in words if word.startswith("forwards{")), None)
        traits = frozenset(word for word in words if word != forwards)
        assert traits <= TRAITS.keys(), f"no such trait: {sorted(traits - TRAITS.keys())}"
        gives = elements[-1] if "->" in elements else "same"
        for word in names:
            name = opcode_of(word)
            assert name is not None, f"`Opcode` has no {word}"
            opcodes[name] = OpcodeDefinition(
                name,
                None if arity[0] == "-" else int(arity[0]),
                tuple(attribute.rstrip("!") for attribute in attributes),
                frozenset(attribute.rstrip("!") for attribute in attributes if attribute.endswith("!")),
                traits,
                tuple(int(digit) for digit in forwards if digit.isdecimal()) if forwards else None,
                frozenset(elements[:-2] if "->" in elements else elements),
                gives,
                defaults.get(name, {}),
            )
    return opcodes
