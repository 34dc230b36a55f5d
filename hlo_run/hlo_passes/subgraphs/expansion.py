"""Helpers shared by the expanders: replace an instruction by a subgraph that a builder makes of its operands.

    expand(module, ("logistic",), lambda b, old, x: 1 / (1 + b.exponential(-x)))

XLA's `OpExpanderPass`. Fusion bodies are not expanded, since a pass or the user chose their instructions.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Container, Sequence
from typing import TypeAlias

from hlo_run.builder.builder import HloBuilder
from hlo_run.builder.core import HloValue, callees_first
from hlo_run.hlo.edit import InstructionMaker
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.names import NameUniquer
from hlo_run.hlo.opcodes.definition import COMMON_ATTRIBUTES
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo.values.shape import Shape

# Returns the replacement of an instruction: called with a builder, the instruction and the values of its operands.
Build: TypeAlias = Callable[..., HloValue]
Name: TypeAlias = str | Callable[[HloInstruction], str]


def expand(
    module: HloModule,
    opcodes: Sequence[Opcode],
    build: Build,
    matches: Callable[[HloInstruction], bool] = lambda instruction: True,
    *,
    called: Name = "",
    described: bool = False,
    bare: Sequence[str] = (),
    inherits: bool = True,
    computations_first: bool = True,
) -> None:
    """Replace every instruction of these opcodes for which `matches` is true by `build(builder, instruction, *operands)`.

    The order is the post-order of each computation; it decides the names of new instructions.
    With `called`, a name or a function from the instruction to a name, the replacement is in a new computation (its name made
    unique) and a call replaces the instruction; the call inliner inlines it later. Equal instructions, operands aside, call the
    same one. New instructions get the source location of the old one. Only the result gets its metadata, as in XLA's
    `ReplaceInstruction`; with `described` the others get it too, but for those with an opcode in `bare`. Without `inherits` the
    result gets nothing, as in XLA's `ReplaceAllUsesWith`. The result keeps the old layouts, with copies where necessary. Names
    depend on whether new computations are added before all new instructions (`computations_first`), or each just before the
    instruction that calls it.
    """
    olds: dict[HloComputation, list[HloInstruction]] = {}
    for old in module.in_post_order(*opcodes):
        if old.parent is not None and matches(old):
            olds.setdefault(old.parent, []).append(old)
    bodies: dict[tuple[object, ...], HloComputation] = {}
    for computation, group in olds.items():
        found: dict[HloInstruction, HloInstruction] = {}
        for old in group:
            name = called if isinstance(called, str) else called(old)
            kind = _kind(old, name)
            is_known = name and kind in bodies
            body = bodies[kind] if is_known else _body(old, build, name, described, bare)
            new = _call(old, body) if is_known else _insert(module, old, body, bool(name), computations_first)
            if name:
                bodies[kind] = body
            found[old] = new
            (module.replace if inherits else module.replace_uses)(old, new)
            # Its operands lose this user now, as in XLA: passes may take the first of the users, whose order depends on it.
            old.operands = ()
        _hand_on(computation, found)
        computation.remove_all(found)


def _body(old: HloInstruction, build: Build, name: str, described: bool, bare: Sequence[str]) -> HloComputation:
    """Return a computation, in no module yet, that makes the replacement of an instruction from its operands."""
    builder = HloBuilder(name or old.opcode)
    operands = [
        builder.leaf("parameter", operand.shape, {"parameter_number": number}) for number, operand in enumerate(old.operands)
    ]
    result = with_layouts(builder, build(builder, old, *operands), old.shape)
    body = builder.build_computation(result)
    if name:
        _BuilderNames(builder.finished).build(body)
    for computation in _cloned_first(body):
        if computation.module is None:
            _mark(computation, old, described and computation is body, ("parameter", *bare))
    return body


def _insert(
    module: HloModule, old: HloInstruction, body: HloComputation, is_called: bool, computations_first: bool
) -> HloInstruction:
    """Add what `_body` returned to the computation of an instruction, or a call of it; the result has no users yet."""
    for computation in _cloned_first(body) if is_called or computations_first else ():
        if computation.module is None and (is_called or computation is not body):
            module.add_computation(computation)
    return _call(old, body) if is_called else _splice(module, old, body)


def _call(old: HloInstruction, body: HloComputation) -> HloInstruction:
    return _place(old, InstructionMaker(where=old.where).add("call", old.shape, old.operands, {"to_apply": (body,)}))


def _kind(old: HloInstruction, name: str) -> tuple[object, ...]:
    """Return the dependencies of an instruction's replacement in a separate computation."""
    attributes = tuple((key, repr(value)) for key, value in sorted(old.attrs.items()) if key not in COMMON_ATTRIBUTES)
    config = old.backend_config
    shapes = tuple(operand.shape for operand in old.operands)
    return name, old.opcode, old.shape, shapes, attributes, config, *old.called.items()


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


class _BuilderNames:
    """Names the instructions of computations as a builder of XLA and its sub-builders do.

    An instruction gets a name when it is made, another one when its computation is finished, and another one when an instruction
    that calls the computation takes it over. Computations get numbers at the latter two. What is called is made just before the
    instruction that calls it, by the same builder if it is among `own`.
    """

    def __init__(self, own: Container[HloComputation]) -> None:
        self._own = own
        self._names, self._numbers = NameUniquer(), itertools.count(1)
        self._built: set[HloComputation] = set()

    def build(self, computation: HloComputation) -> None:
        """Name the instructions of a computation and of those that it calls, which no module has yet."""
        for instruction in computation.instructions:
            called = [c for c in instruction.called_computations if c.module is None and c not in self._built]
            for callee in called:
                (self if callee in self._own else _BuilderNames(())).build(callee)
            for callee in called:
                for inner in callees_first(callee):
                    self._finish(inner, inner.name.rpartition(".")[0])
            instruction.name = self._names.unique(instruction.name)
        self._finish(computation, computation.name)

    def _finish(self, computation: HloComputation, root: str) -> None:
        for instruction in computation.instructions:
            instruction.name = self._names.unique(instruction.name)
        computation.name = f"{root}.{next(self._numbers)}"
        self._built.add(computation)


def _cloned_first(body: HloComputation) -> list[HloComputation]:
    """Return `body` and what it calls in the order in which XLA copies them into a module: the body of a loop first."""
    order: dict[HloComputation, None] = {}

    def visit(computation: HloComputation) -> None:
        for instruction in computation.instructions:
            called = instruction.called_computations
            for callee in reversed(called) if instruction.opcode == "while" else called:
                if callee not in order:
                    visit(callee)
        order[computation] = None

    visit(body)
    return list(order)


def _splice(module: HloModule, old: HloInstruction, body: HloComputation) -> HloInstruction:
    """Move the instructions of a body to the position of `old`, whose operands replace the parameters; return the root.

    Computations that an instruction calls and no module has yet are added just before it.
    """
    root = body.root
    for parameter in body.parameters:
        number = parameter.parameter_number
        actual = old.operands[number]
        for user in list(parameter.users):
            user.operands = tuple([actual if operand is parameter else operand for operand in user.operands])
        if root is parameter:
            root = actual
    for instruction in body.instructions:
        for computation in [c for callee in instruction.called_computations for c in _cloned_first(callee)]:
            if computation.module is None:
                module.add_computation(computation)
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
