"""Helpers shared by the expanders: replace an instruction by a subgraph that a builder makes of its operands.

    expand(module, ("logistic",), lambda b, old, x: 1 / (1 + b.exponential(-x)))

XLA's `OpExpanderPass`. Fusion bodies are not expanded, since a pass or the user chose their instructions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Sequence
from typing import TypeAlias

from hlo_run.builder.builder import HloBuilder
from hlo_run.builder.core import HloValue, callees_first
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.names import NameUniquer
from hlo_run.hlo.values.shape import Shape

# Returns the replacement of an instruction: called with a builder, the instruction and the values of its operands.
Build: TypeAlias = Callable[..., HloValue]
Name: TypeAlias = str | Callable[[HloInstruction], str]


def expand(
    module: HloModule,
    opcodes: Sequence[str],
    build: Build,
    matches: Callable[[HloInstruction], bool] = lambda instruction: True,
    *,
    called: Name = "",
    described: bool = False,
    bare: Sequence[str] = (),
    inherits: bool = True,
) -> None:
    """Replace every instruction of these opcodes for which `matches` is true by `build(builder, instruction, *operands)`.

    The order is the post-order of each computation; it decides the names of new instructions.
    With `called`, a name or a function from the instruction to a name, the replacement is in a new computation (its name made
    unique) and a call replaces the instruction; the call inliner inlines it later. New instructions get the source location of
    the old one. Only the result gets its metadata, as in XLA's `ReplaceInstruction`; with `described` the others get it too, but
    for those with an opcode in `bare`. Without `inherits` the result gets nothing, as in XLA's `ReplaceAllUsesWith`. The result
    keeps the old layouts, with copies where necessary.
    """
    olds: dict[HloComputation, list[HloInstruction]] = {}
    for old in module.in_post_order(*opcodes):
        if old.parent is not None and matches(old):
            olds.setdefault(old.parent, []).append(old)
    for computation, group in olds.items():
        found: dict[HloInstruction, HloInstruction] = {}
        for old in group:
            found[old] = new = replacement(module, old, build, called, described, bare)
            (module.replace if inherits else module.replace_uses)(old, new)
            # Its operands lose this user now, as in XLA: passes may take the first of the users, whose order depends on it.
            old.operands = ()
        _hand_on(computation, found)
        computation.remove_all(found)


def replacement(
    module: HloModule,
    old: HloInstruction,
    build: Build,
    called: Name = "",
    described: bool = False,
    bare: Sequence[str] = (),
) -> HloInstruction:
    """Add the replacement of an instruction to its computation and return it; it has no users yet. See `expand`."""
    assert old.parent is not None, "the instruction is in a computation"
    builder = HloBuilder((called if isinstance(called, str) else called(old)) or old.opcode)
    operands = [
        builder.leaf("parameter", operand.shape, {"parameter_number": number}) for number, operand in enumerate(old.operands)
    ]
    result = with_layouts(builder, build(builder, old, *operands), old.shape)
    body = builder.build_computation(result)
    made_now = [computation for computation in callees_first(body) if computation.module is None]
    if called:
        _name_twice(made_now)
    for computation in made_now:
        _mark(computation, old, described and computation is body, ("parameter", *bare))
        if computation is not body:
            module.add_computation(computation)
    if not called:
        return _splice(old, body)
    module.add_computation(body)
    made = HloInstruction("call", "call", old.shape, old.operands, None, {"to_apply": (body,)}, old.where)
    return _place(old, made)


def shaped_name(what: str) -> Callable[[HloInstruction], str]:
    """Return a function that names computations as XLA does: `xla.qr_f32_6_4_`, from the first operand's shape."""

    def name(old: HloInstruction) -> str:
        return f"xla.{what}_" + re.sub(r"[^A-Za-z0-9]", "_", old.operands[0].shape.to_string(layout=False))

    return name


def with_layouts(builder: HloBuilder, value: HloValue, shape: Shape) -> HloValue:
    """Return `value` in the layouts of `shape`, through copies where they differ."""
    if value.shape == shape:
        return value
    if shape.is_tuple:
        parts = [value[number] for number in range(len(shape.tuple_shapes))]
        if value.instruction.opcode == "tuple":
            parts = [HloValue(builder, operand) for operand in value.instruction.operands]
        pairs = zip(parts, shape.tuple_shapes, strict=True)
        return builder.tuple([with_layouts(builder, part, wanted) for part, wanted in pairs])
    if not shape.is_array or value.shape.minor_to_major == shape.minor_to_major:
        return value
    return builder.copy(value, shape)


def _hand_on(computation: HloComputation, replacements: dict[HloInstruction, HloInstruction]) -> None:
    """Hand control dependencies on, and the name to a new instruction with the old one's opcode, as in `ReplaceInstruction`."""
    for instruction in computation.instructions:
        if instruction.control_predecessors:
            instruction.control_predecessors = [replacements.get(p, p) for p in instruction.control_predecessors]
    for old, new in replacements.items():
        new.control_predecessors = list(dict.fromkeys((*new.control_predecessors, *old.control_predecessors)))
        if new.opcode == old.opcode:
            new.name = old.name


def _mark(body: HloComputation, old: HloInstruction, described: bool, without_metadata: Container[str]) -> None:
    metadata = old.metadata if described else None
    for instruction in body.instructions:
        instruction.where = old.where
        if metadata is not None and instruction.opcode not in without_metadata:
            instruction.attrs["metadata"] = metadata


def _name_twice(computations: Sequence[HloComputation]) -> None:
    """Name what a builder made as XLA does: it makes a module of it first, which gives each name twice; the second stays."""
    names = NameUniquer()
    instructions = [instruction for computation in computations for instruction in computation.instructions]
    for instruction in (*instructions, *instructions):
        instruction.name = names.unique(instruction.name)
    for number, computation in enumerate(computations, 1):
        computation.name = f"{computation.name}.{number}"


def _splice(old: HloInstruction, body: HloComputation) -> HloInstruction:
    """Move the instructions of a body to the position of `old`, whose operands replace the parameters; return the root."""
    root = body.root
    for parameter in body.parameters:
        number = parameter.parameter_number
        actual = old.operands[number]
        for user in list(parameter.users):
            user.operands = [actual if operand is parameter else operand for operand in user.operands]
        if root is parameter:
            root = actual
    for instruction in body.instructions:
        if instruction.opcode != "parameter":
            _place(old, instruction)
    return root


def _place(old: HloInstruction, new: HloInstruction) -> HloInstruction:
    """Add `new` to the computation of `old`: at its end, as XLA does, or before `old` if the computation has a schedule."""
    computation = old.parent
    assert computation is not None, "the instruction is in a computation"
    assert computation.module is not None, "the computation is in a module"
    scheduled = computation in (computation.module.schedule or {})
    return computation.add(new, before=old if scheduled else None)
