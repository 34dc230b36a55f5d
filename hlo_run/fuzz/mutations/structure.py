"""Mutations of structure: parts become calls, fusions, branches and loops; parts of other modules are inserted."""

from __future__ import annotations

import random
from collections.abc import Sequence

from hlo_run.fuzz.mutations.places import change_users, fit, is_plain, not_after, open_computations, pick_inner, plain_values
from hlo_run.hlo.edit import Editor, InstructionMaker, copy_instruction, has_side_effect
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.isolate import copy_computation
from hlo_run.hlo.opcodes.names import Opcode, opcode_set
from hlo_run.hlo.opcodes.traits import ELEMENTWISE, MOVES_ELEMENTS
from hlo_run.hlo.values.shape import Shape

_MOST = 8
_FUSED = ELEMENTWISE | MOVES_ELEMENTS | opcode_set("pad concatenate iota constant reduce dynamic-slice gather")
_NEVER: frozenset[Opcode] = frozenset(
    ("parameter", "get-tuple-element", "tuple", "while", "conditional", "fusion", "call", "copy-start")
)


def _group(rng: random.Random, root: HloInstruction, allowed: frozenset[Opcode] | None) -> set[HloInstruction]:
    """Return the instruction with some of the instructions that it depends on."""
    group = {root}
    for _ in range(rng.randrange(_MOST)):
        around = [
            o
            for i in group
            for o in i.operands
            if o not in group
            and is_plain(o.shape)
            and (o.opcode not in _NEVER if allowed is None else o.opcode in allowed)
            and not has_side_effect(o)
        ]
        if not around:
            break
        group.add(rng.choice(around))
    return group


def _outline(
    module: HloModule, root: HloInstruction, group: set[HloInstruction], name: str
) -> tuple[HloComputation, list[HloInstruction]]:
    """Return a new computation that computes `root` by copies of the group, and the operands that it takes."""
    assert root.parent is not None
    order = [i for i in root.parent.post_order() if i in group]
    operands = list(dict.fromkeys(o for i in order for o in i.operands if o not in group))
    computation = HloComputation(name)
    made: dict[HloInstruction, HloInstruction] = {}
    for number, value in enumerate(operands):
        made[value] = InstructionMaker(computation).parameter(number, value.shape, f"p{number}")
    for old in order:
        made[old] = computation.add(copy_instruction(old, [made[o] for o in old.operands]), is_root=old is root)
    return module.add_computation(computation), operands


def _choose(rng: random.Random, module: HloModule, allowed: frozenset[Opcode] | None) -> HloInstruction | None:
    value = pick_inner(rng, module)
    if value is None or value.parent is None or value.parent.is_fusion or has_side_effect(value):
        return None
    if value.opcode in _NEVER or (allowed is not None and value.opcode not in allowed):
        return None
    return value


def call(rng: random.Random, module: HloModule) -> bool:
    """Move a part into a call."""
    return _wrapped(rng, module, None, "call", "to_apply")


def fusion(rng: random.Random, module: HloModule) -> bool:
    """Move a part into a fusion."""
    return _wrapped(rng, module, _FUSED, "fusion", "calls")


def _wrapped(rng: random.Random, module: HloModule, allowed: frozenset[Opcode] | None, opcode: Opcode, attribute: str) -> bool:
    value = _choose(rng, module, allowed)
    if value is None:
        return False
    computation, operands = _outline(module, value, _group(rng, value, allowed), f"{opcode}_part")
    users, is_root = list(value.users), value.is_root
    attributes = {"kind": "kLoop"} if opcode == "fusion" else {}
    made = Editor(value).add(opcode, value.shape, operands, {attribute: (computation,)}, **attributes)
    change_users(value, made, users, is_root)
    return True


def conditional(rng: random.Random, module: HloModule) -> bool:
    """Move a part into both branches of a conditional; one of them changes the result."""
    value = _choose(rng, module, None)
    if value is None:
        return False
    users, is_root, editor = list(value.users), value.is_root, Editor(value)
    group = _group(rng, value, None)
    predicate = _predicate(rng, value)
    branches: list[HloComputation] = []
    operands: list[HloInstruction] = []
    for name in ("true_part", "false_part"):
        part, operands = _outline(module, value, group, name)
        branch = HloComputation(f"{name}_of_tuple")
        shape = Shape.make_tuple(tuple(o.shape for o in operands))
        argument = InstructionMaker(branch).parameter(0, shape, "state")
        inner = Editor(argument)
        elements = [inner.element(argument, number) for number in range(len(operands))]
        result = inner.add("call", value.shape, elements, {"to_apply": (part,)})
        if name == "false_part":
            result = inner.binary("add" if value.shape.element_type != "pred" else "xor", result, result)
        branch.root = result
        branches.append(module.add_computation(branch))
    state = editor.tuple(operands)
    called = {"true_computation": (branches[0],), "false_computation": (branches[1],)}
    made = editor.add("conditional", value.shape, [predicate, state, state], called)
    change_users(value, made, users, is_root)
    return True


def _predicate(rng: random.Random, value: HloInstruction) -> HloInstruction:
    editor = Editor(value)
    values = not_after(value)
    if not values or rng.random() < 0.2:
        return editor.constant(rng.random() < 0.5, "pred")
    return fit(rng.choice(values), Shape.array("pred", ()))


def loop(rng: random.Random, module: HloModule) -> bool:
    """Move a part into the body of a loop that runs it one to three times on the same operands, and sums its results."""
    value = _choose(rng, module, None)
    if value is None:
        return False
    users, is_root, editor = list(value.users), value.is_root, Editor(value)
    part, operands = _outline(module, value, _group(rng, value, None), "body_part")
    shapes = (Shape.array("s32", ()), value.shape, *(o.shape for o in operands))
    state_shape = Shape.make_tuple(shapes)
    body, condition = HloComputation("loop_body"), HloComputation("loop_condition")
    state = InstructionMaker(body).parameter(0, state_shape, "state")
    inner = Editor(state)
    elements = [inner.element(state, number) for number in range(len(shapes))]
    following = inner.binary("add", elements[0], inner.constant(1, "s32"))
    result = inner.add("call", value.shape, elements[2:], {"to_apply": (part,)})
    if rng.random() < 0.5:
        result = inner.binary("add" if value.shape.element_type != "pred" else "xor", result, elements[1])
    body.root = inner.tuple([following, result, *elements[2:]])
    state = InstructionMaker(condition).parameter(0, state_shape, "state")
    inner = Editor(state)
    condition.root = inner.compare(inner.element(state, 0), inner.constant(rng.choice((0, 1, 2, 3)), "s32"), "LT")
    for computation in (body, condition):
        module.add_computation(computation)
    start = editor.broadcast(editor.constant(0, value.shape.element_type), value.shape.dims)
    initial = editor.tuple([editor.constant(0, "s32"), start, *operands])
    called = {"condition": (condition,), "body": (body,)}
    made = editor.element(editor.add("while", state_shape, [initial], called), 1)
    change_users(value, made, users, is_root)
    return True


def splice(rng: random.Random, module: HloModule, donors: Sequence[HloModule]) -> bool:
    """Insert a part of another module: its inputs are values of this one, and its result is an operand."""
    value = pick_inner(rng, module)
    if value is None or value.parent is None or value.parent.is_fusion or not value.operands or not donors:
        return False
    place = rng.randrange(len(value.operands))
    sources = not_after(value)
    donor = rng.choice(donors)
    parts = [
        v
        for c in open_computations(donor)
        if not c.is_fusion
        for v in plain_values(c)
        if v.opcode not in _NEVER or v.opcode in ("fusion", "call", "conditional")
    ]
    if not parts or not sources or not is_plain(value.operands[place].shape):
        return False
    root = rng.choice(parts)
    group = _group(rng, root, None)
    assert root.parent is not None
    copies: dict[HloComputation, HloComputation] = {}
    made: dict[HloInstruction, HloInstruction] = {}
    for old in [i for i in root.parent.post_order() if i in group]:
        operands = [made[o] if o in made else _source(rng, o, value, sources) for o in old.operands]
        if any(o is None for o in operands):
            return False
        new = copy_instruction(old, [o for o in operands if o is not None])
        new.called = {key: tuple(_copy(module, c, copies) for c in called) for key, called in old.called.items()}
        made[old] = value.parent.add(new)
    found = fit(made[root], value.operands[place].shape)
    value.operands = (*value.operands[:place], found, *value.operands[place + 1 :])
    return True


def _source(
    rng: random.Random, wanted: HloInstruction, value: HloInstruction, sources: Sequence[HloInstruction]
) -> HloInstruction | None:
    """Return a value of this module in the shape that the part needs; a constant's copy for a constant."""
    assert value.parent is not None
    if wanted.opcode in ("constant", "iota"):
        return value.parent.add(copy_instruction(wanted, ()))
    return fit(rng.choice(sources), wanted.shape) if is_plain(wanted.shape) else None


def _copy(module: HloModule, computation: HloComputation, copies: dict[HloComputation, HloComputation]) -> HloComputation:
    if computation not in copies:
        copy, _ = copy_computation(computation, lambda callee: _copy(module, callee, copies))
        copies[computation] = module.add_computation(copy)
    return copies[computation]
