"""Edits of attributes: remove attributes of the header and of the instructions, and make integer constants smaller."""

from __future__ import annotations

from hlo_run.hlo.graph import HloInstruction, HloModule

# They say where an instruction comes from, or how to run it, and never change what it computes.
_REMARKS = ("metadata", "sharding", "frontend_attributes", "backend_config", "origin", "original_value", "statistics")
_NEEDED = frozenset(("parameter_number", "literal", "index"))


def without_header(module: HloModule, names: tuple[str, ...] = ()) -> bool:
    """Remove these attributes of the header, or all of them; `is_scheduled` is one."""
    found = [name for name in (names or tuple(module.attrs)) if name in module.attrs]
    for name in found:
        del module.attrs[name]
        if name == "is_scheduled":
            module.schedule = None
    if not names and module.schedule is not None:
        module.schedule = None
        return True
    return bool(found)


def without_remarks(module: HloModule) -> bool:
    """Remove metadata, shardings, backend configurations and other remarks."""
    changed = [without_attribute(module, name) for name in _REMARKS]
    return any(changed)


def without_attribute(module: HloModule, name: str) -> bool:
    """Remove an attribute from all instructions. The parser refuses the module if an opcode needs it."""
    holders = [i for i in module.instructions if name in i.attrs]
    for holder in holders:
        del holder.attrs[name]
    return bool(holders)


def attribute_names(module: HloModule) -> list[str]:
    """Return the names of the attributes that may be removed."""
    return sorted({name for i in module.instructions for name in i.attrs} - _NEEDED)


def without_order(module: HloModule) -> bool:
    """Remove all control dependencies."""
    holders = [i for i in module.instructions if i.control_predecessors]
    for holder in holders:
        holder.control_predecessors = []
    return bool(holders)


def integer_of(instruction: HloInstruction) -> int | None:
    """Return the value of a scalar integer constant; None for other instructions."""
    shape = instruction.shape
    if instruction.opcode != "constant" or not shape.is_array or shape.dims or not shape.dtype.is_integer:
        return None
    return int(instruction.constant_array)


def with_integer(instruction: HloInstruction, value: int) -> bool:
    """Give a scalar integer constant another value."""
    literal = instruction.constant_array
    instruction.attrs["literal"] = literal * 0 + value
    return True
