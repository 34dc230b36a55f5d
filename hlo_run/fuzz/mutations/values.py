"""Mutations of single instructions: opcodes, element types, constants, operands, attributes, copies and layouts."""

from __future__ import annotations

import random
import re

import numpy as np

from hlo_run.fuzz.mutations.places import (
    adapt,
    change_users,
    fit,
    inner_values,
    is_plain,
    not_after,
    open_computations,
    pick_inner,
    plain_values,
    with_layout,
)
from hlo_run.hlo.edit import Editor, copy_instruction, has_side_effect
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.opcodes.names import Opcode, opcode_set
from hlo_run.hlo.opcodes.table import OPCODES
from hlo_run.hlo.opcodes.traits import ASSOCIATIVE
from hlo_run.module_edits.texts import PRINTED, dimension_sizes, element_types, with_size, with_type
from hlo_run.ops.infer import infer_shape
from hlo_run.ops.parse import parse

# Opcodes that may replace each other: elementwise, of one arity, with a result of the operands' type.
_GROUPS = [
    [o for o in OPCODES.values() if o.arity == arity and o.takes and o.gives == "same" and "elementwise" in o.traits]
    for arity in (1, 2)
]
# Results for all arguments are defined for these; the others of their arity are rare.
_TAME = ASSOCIATIVE | opcode_set(
    """abs negate sign not popcnt count-leading-zeros ceil floor round-nearest-afz round-nearest-even cosine sine tanh logistic
    subtract"""
)
_WILD_CHANCE = 0.15
_UNDEFINED: frozenset[Opcode] = frozenset(("divide", "remainder", "power", "atan2"))
# Reducers whose order does not matter.
_REDUCERS: tuple[Opcode, ...] = tuple(sorted(ASSOCIATIVE))
_REDUCES: frozenset[Opcode] = frozenset(("reduce", "reduce-window", "scatter", "all-reduce", "reduce-scatter"))
_DIRECTIONS = ("EQ", "NE", "GE", "GT", "LE", "LT")
_TYPES = "pred s8 u8 s16 u16 s32 u32 s64 u64 bf16 f16 f32 f64 f8e4m3fn f8e5m2 s4 u4 c64".split()
_NUMBERS = (0, 1, -1, 2, 3, 7, 0.5, -2.5, 100)
_SIZES = (1, 2, 3, 4, 5, 7, 8, 16, 17, 31, 32, 33, 64, 65, 128)
_NOT_MUTATED = frozenset(("metadata", "backend_config", "replica_groups", "channel_id", "literal", "parameter_number", "index"))


def opcode(rng: random.Random, module: HloModule) -> bool:
    """Replace an elementwise opcode, or a comparison's direction, by another one."""
    values = [v for v in inner_values(module) if "elementwise" in OPCODES[v.opcode].traits]
    if not values:
        return False
    value = rng.choice(values)
    if value.opcode == "compare":
        value.attrs["direction"] = rng.choice(_DIRECTIONS)
        return True
    group = next((g for g in _GROUPS if any(o.name == value.opcode for o in g)), None)
    if group is None:
        return False
    dtype = value.shape.dtype
    fitting: list[Opcode] = [o.name for o in group if dtype.kind in o.takes and o.name != value.opcode]
    if not dtype.is_float:
        fitting = [name for name in fitting if name not in _UNDEFINED]
    tame: list[Opcode] = [name for name in fitting if name in _TAME]
    chosen = fitting if rng.random() < _WILD_CHANCE else tame
    if not chosen:
        return False
    value.opcode = rng.choice(chosen)
    value.attrs.pop("result_accuracy", None)
    value.touch()
    return True


def reducer(rng: random.Random, module: HloModule) -> bool:
    """Replace the op of a reducer by another one whose order does not matter."""
    callers = [i for i in module.instructions if i.opcode in _REDUCES and len(i.called_computations) == 1]
    if not callers:
        return False
    caller = rng.choice(callers)
    root = caller.called_computations[0].root
    if root.opcode not in _REDUCERS or any(o.opcode != "parameter" for o in root.operands) or not root.shape.is_array:
        return False
    kind = root.shape.dtype.kind
    root.opcode = rng.choice([name for name in _REDUCERS if kind in OPCODES[name].takes])
    root.touch()
    # With another init value than the identity the result may depend on the order.
    for start in _starts(caller):
        literal = np.asarray(_identity(root.opcode, start))
        change_users(start, Editor(start).constant(literal, start.shape.element_type), [caller], is_root=False)
    return True


def _starts(caller: HloInstruction) -> list[HloInstruction]:
    if caller.opcode not in ("reduce", "reduce-window"):
        return []
    return [o for o in caller.operands[len(caller.operands) // 2 :] if is_plain(o.shape)]


def _identity(name: str, like: HloInstruction) -> float | int | bool:
    dtype = like.shape.dtype
    if name in ("add", "or", "xor"):
        return 0
    if name == "multiply":
        return 1
    if name == "and":
        return -1 if dtype.kind == "signed" else (1 << dtype.bits) - 1 if dtype.kind == "unsigned" else 1
    is_max = name == "maximum"
    if dtype.kind == "pred":
        return not is_max
    if dtype.is_float:
        return -float("inf") if is_max else float("inf")
    if dtype.kind == "unsigned":
        return 0 if is_max else (1 << dtype.bits) - 1
    return -(1 << (dtype.bits - 1)) if is_max else (1 << (dtype.bits - 1)) - 1


def element_type(rng: random.Random, module: HloModule) -> bool | str:
    """Compute one instruction in another type, or replace one type of the whole module."""
    if rng.random() < 0.3:
        text = module.to_string(PRINTED)
        names = element_types(text)
        return with_type(text, rng.choice(names), rng.choice(_TYPES)) if names else False
    value = pick_inner(rng, module)
    if value is None or not value.operands or not all(is_plain(o.shape) for o in value.operands):
        return False
    old, users, is_root = value.shape, list(value.users), value.is_root
    new = rng.choice(_TYPES)
    value.operands = tuple(
        [fit(o, o.shape.with_element_type(new)) if o.shape.element_type == old.element_type else o for o in value.operands]
    )
    value.shape = infer_shape(value) if OPCODES[value.opcode].can_infer_shape else old.with_element_type(new)
    return adapt(old, value, users, is_root)


def constant(rng: random.Random, module: HloModule) -> bool:
    """Change the numbers of a constant, unless a loop counts with them."""
    found = [
        i
        for c in open_computations(module)
        for i in c.instructions
        if i.opcode == "constant" and is_plain(i.shape) and not any(caller.opcode == "while" for caller in c.callers)
    ]
    if not found:
        return False
    value = rng.choice(found)
    numbers = np.asarray([rng.choice(_NUMBERS) for _ in range(max(1, value.shape.element_count))])
    if not (value.shape.dtype.is_float or value.shape.dtype.is_complex):
        numbers = np.abs(np.trunc(numbers)) % (1 << min(6, max(1, value.shape.dtype.bits - 1)))
    value.attrs["literal"] = numbers[: value.shape.element_count].reshape(value.shape.dims).astype(value.shape.dtype.numpy)
    return True


def operand(rng: random.Random, module: HloModule) -> bool:
    """Use another value of the computation as an operand, in the shape of the old one."""
    value = pick_inner(rng, module)
    if value is None or not value.operands:
        return False
    place = rng.randrange(len(value.operands))
    others = not_after(value)
    if not others or not is_plain(value.operands[place].shape):
        return False
    new = fit(rng.choice(others), value.operands[place].shape)
    value.operands = (*value.operands[:place], new, *value.operands[place + 1 :])
    return True


def attribute(rng: random.Random, module: HloModule) -> bool | str:
    """Change a number in an attribute (dimensions, paddings, windows, slices), and adapt the users to the new shape."""
    values = [
        v for v in inner_values(module) if any(n not in _NOT_MUTATED and re.search(r"\d", str(a)) for n, a in v.attrs.items())
    ]
    if not values:
        return False
    value = rng.choice(values)
    name, users, is_root, old = value.name, list(value.users), value.is_root, value.shape
    line = re.compile(rf"(?m)^(\s*(?:ROOT )?{re.escape(name)} = )(\S+)( [\w-]+\([^)]*\))(, .*)$")
    text = module.to_string(PRINTED)
    found = line.search(text)
    if found is None or (not users and not is_root):
        return False
    changed = _other_number(rng, found[4])
    shape = f"{found[2]}" if not OPCODES[value.opcode].can_infer_shape else ""
    made = parse(text[: found.start()] + f"{found[1]}{shape}{found[3]}{changed}" + text[found.end() :], verified=False)
    new = next(i for i in made.instructions if i.name == name)
    if shape:
        new.shape = infer_shape(new)
    if not adapt(old, new, list(new.users), new.is_root):
        return False
    return made.to_string(PRINTED)


def _other_number(rng: random.Random, text: str) -> str:
    """Change one number, or swap two, in the text of the attributes."""
    ends = list(re.finditer(r"(?<![\w.%])-?\d+|(?<=x)-?\d+|(?<=_)-?\d+", text))
    names = [m.span() for m in re.finditer(r"(to_apply|calls|select|scatter|condition|body)=[^,}]*", text)]
    ends = [m for m in ends if not any(a <= m.start() < b for a, b in names)]
    if not ends:
        return text
    if len(ends) > 1 and rng.random() < 0.3:
        one, two = sorted(rng.sample(ends, 2), key=lambda m: m.start())
        return text[: one.start()] + two[0] + text[one.end() : two.start()] + one[0] + text[two.end() :]
    chosen = rng.choice(ends)
    number = int(chosen[0])
    new = rng.choice((number + 1, number - 1, number + 2, 0, 1, 2, 3, -number))
    return text[: chosen.start()] + str(new) + text[chosen.end() :]


def size(rng: random.Random, module: HloModule) -> bool | str:
    """Change one size of dimensions in all shapes."""
    text = module.to_string(PRINTED)
    sizes = dimension_sizes(text)
    return with_size(text, rng.choice(sizes), rng.choice(_SIZES), rng.random() < 0.5) if sizes else False


def layout(rng: random.Random, module: HloModule) -> bool:
    """Give a value another layout, by a copy or by itself."""
    values = [v for c in open_computations(module) if not c.is_fusion for v in plain_values(c) if v.shape.rank > 1]
    if not values:
        return False
    value = rng.choice(values)
    order = list(value.shape.minor_to_major)
    rng.shuffle(order)
    users, is_root = list(value.users), value.is_root
    copy = Editor(value).add("copy", with_layout(value.shape, tuple(order)), [value])
    change_users(value, copy, users, is_root)
    return True


def copy(rng: random.Random, module: HloModule) -> bool:
    """Compute a value twice, and let one of its users use the copy; or return it too."""
    value = pick_inner(rng, module)
    if value is None or value.parent is None or not value.users or has_side_effect(value):
        return False
    users = list(value.users)
    twin = value.parent.add(copy_instruction(value, value.operands))
    change_users(value, twin, [rng.choice(users)], is_root=False)
    if value.parent is module.entry and rng.random() < 0.3:
        root = module.entry.root
        results = root.operands if root.opcode == "tuple" else (root,)
        module.entry.root = Editor(root).tuple((*results, value))
    return True


def bypass(rng: random.Random, module: HloModule) -> bool:
    """Use an operand of an instruction in its place."""
    value = pick_inner(rng, module)
    operands = [o for o in value.operands if is_plain(o.shape)] if value is not None else []
    if value is None or not operands:
        return False
    users, is_root = list(value.users), value.is_root
    change_users(value, fit(rng.choice(operands), value.shape), users, is_root)
    return True
