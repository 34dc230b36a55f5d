"""The steps of a reduction, in order: each yields edits of the present module, the most promising ones first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeAlias

from msgspec import Struct

from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.isolate import isolate_between
from hlo_run.hlo.opcodes.names import opcode_set
from hlo_run.module_edits import attributes, structure, texts, values
from hlo_run.module_edits.texts import PRINTED

Edit: TypeAlias = "Callable[[HloModule], bool | str]"

# They depend on more than their operands.
_NOT_ALONE = opcode_set("get-tuple-element tuple while conditional call infeed recv after-all")

# How far away a value may be that replaces an instruction.
_ANCESTORS = 4


class Step(Struct, frozen=True):
    """A kind of edit.

    With `is_search`, an edit keeps the failure if one before it does, so the first one is found by bisection. If `shrinks`, an
    edit that was taken leaves the list of edits, so the next one has its number.
    """

    name: str
    edits: Callable[[HloModule], Iterator[Edit]]
    is_search: bool = False
    shrinks: bool = True


def _on(work: Callable[..., bool], *arguments: object) -> Edit:
    """Return an edit that ignores the module, since its arguments are parts of it."""
    return lambda module: work(*arguments)


def _bare(module: HloModule) -> bool:
    return attributes.without_header(module) | attributes.without_remarks(module) | attributes.without_order(module)


def _first_cut(module: HloModule) -> Iterator[Edit]:
    """Cut a module without its header, which names parameters and results that a cut removes."""
    for count in range(1, len(module.entry.instructions)):
        yield lambda m, n=count: _bare(m) | values.cut_after(m, n)


def _alone(module: HloModule) -> Iterator[Edit]:
    """Keep one instruction, then one with its operands, then with operands up to some distance: one of each kind and types.

    Such modules are small. While the module is large, they cost less than one question about half of it.
    """
    kinds: dict[tuple[str, ...], HloInstruction] = {}
    for instruction in module.instructions:
        if instruction.opcode in values.LEAVES or instruction.opcode in _NOT_ALONE or not instruction.shape.is_array:
            continue
        types = (str(each.shape.element_type) for each in (instruction, *instruction.operands) if each.shape.is_array)
        kind = (instruction.opcode, *types)
        known = kinds.get(kind)
        if known is None or instruction.shape.element_count < known.shape.element_count:
            kinds[kind] = instruction
    for distance in (0, 1, 3):
        for instruction in kinds.values():
            yield lambda m, i=instruction, d=distance: _cut_out(i, d)


def _cut_out(root: HloInstruction, distance: int) -> str:
    """Return the text of a module that computes a value from the operands at a distance."""
    level = list(dict.fromkeys(root.operands))
    inputs: dict[HloInstruction, None] = {}
    for step in range(distance + 1):
        whole = step < distance
        inputs |= dict.fromkeys(each for each in level if not whole or each.opcode == "parameter")
        level = list(dict.fromkeys(o for each in level if each.opcode != "parameter" for o in each.operands))
    given = [each for each in inputs if each.opcode != "constant"]
    return isolate_between(root, given, root.name).to_string(PRINTED)


def _header(module: HloModule) -> Iterator[Edit]:
    yield _bare
    yield attributes.without_header
    yield attributes.without_remarks
    yield attributes.without_order
    for name in list(module.attrs):
        yield partial(attributes.without_header, names=(name,))


def _computations(module: HloModule) -> Iterator[Edit]:
    for computation in sorted(module.computations, key=lambda c: len(c.instructions)):
        if len(computation.instructions) > 3:
            yield lambda m, c=computation: structure.make_entry(m, c)


def _after(module: HloModule) -> Iterator[Edit]:
    for count in range(1, len(module.entry.instructions)):
        yield partial(values.cut_after, count=count)


def _before(module: HloModule) -> Iterator[Edit]:
    for count in range(len(module.entry.instructions) - 1, 0, -1):
        yield partial(values.cut_before, count=count)


def _roots(module: HloModule) -> Iterator[Edit]:
    root = module.entry.root
    operands = list(dict.fromkeys(root.operands))
    if root.opcode == "tuple" and len(operands) > 8:
        for part in _chunks(len(root.operands)):
            yield partial(values.without_outputs, dropped=set(range(len(root.operands))) - set(part))
    for operand in operands:
        yield lambda m, o=operand: values.root_is(m, o)


def _outputs(module: HloModule) -> Iterator[Edit]:
    for part in _chunks(len(module.entry.root.operands)):
        yield partial(values.without_outputs, dropped=set(part))


def _parameters(module: HloModule) -> Iterator[Edit]:
    order = [i for i in module.entry.post_order() if i.opcode not in values.LEAVES]
    for part in _chunks(len(order)):
        yield lambda m, group=[order[n] for n in part]: values.by_parameters(m, group)


def _inner(module: HloModule) -> Iterator[HloInstruction]:
    """Yield the instructions that are not leaves, larger computations first, users before operands."""
    for computation in sorted(module.computations, key=lambda c: (c is not module.entry, -len(c.instructions))):
        yield from (i for i in reversed(computation.post_order()) if i.opcode not in values.LEAVES)


def _operands(module: HloModule) -> Iterator[Edit]:
    for instruction in _inner(module):
        for operand in dict.fromkeys(instruction.operands):
            yield _on(values.by_operand, instruction, operand)
        for other in _ancestors(instruction):
            yield _on(values.by_operand, instruction, other)


def _ancestors(instruction: HloInstruction) -> list[HloInstruction]:
    """Return the operands of operands, up to some distance, that have the shape of an instruction."""
    found: dict[HloInstruction, None] = {}
    level = list(dict.fromkeys(instruction.operands))
    for _ in range(_ANCESTORS):
        level = list(dict.fromkeys(operand for each in level for operand in each.operands))
        found.update(dict.fromkeys(level))
    return [other for other in found if other not in instruction.operands and other.shape.compatible(instruction.shape)]


def _constants(module: HloModule) -> Iterator[Edit]:
    for instruction in _inner(module):
        if not (instruction.opcode == "broadcast" and instruction.operands[0].opcode == "constant"):
            yield _on(values.by_constant, instruction)


def _control_flow(module: HloModule) -> Iterator[Edit]:
    for instruction in module.instructions:
        match instruction.opcode:
            case "while":
                yield _on(structure.run_once, instruction)
            case "conditional":
                for number in range(len(instruction.called_computations)):
                    yield _on(structure.take_branch, instruction, number)
            case "call" | "fusion":
                yield _on(structure.inline, instruction)
            case _:
                pass


def _inline_all(module: HloModule) -> Iterator[Edit]:
    def work(m: HloModule) -> bool:
        changed = False
        while found := [i for i in m.instructions if i.opcode == "call" and i.parent is not None and not i.parent.is_fusion]:
            for instruction in found:
                changed |= structure.inline(instruction)
                assert instruction.parent is not None
                values.drop_unneeded(instruction.parent)
        return changed

    if module.instructions_of("call"):
        yield work


def _state(module: HloModule) -> Iterator[Edit]:
    for loop in module.instructions_of("while"):
        for part in _chunks(len(loop.shape.tuple_shapes)):
            yield _on(structure.without_state, loop, set(part))


def _sizes(module: HloModule) -> Iterator[Edit]:
    text = module.to_string(PRINTED)
    for size in texts.dimension_sizes(text)[:24]:
        for new in dict.fromkeys((1, 2, 4, size // 4, size // 2, size - 1)):
            if 0 < new < size:
                for multiples in (True, False):
                    yield lambda m, n=new, s=size, x=multiples: texts.with_size(m.to_string(PRINTED), s, n, x)


def _types(module: HloModule) -> Iterator[Edit]:
    for old in texts.element_types(module.to_string(PRINTED)):
        for new in texts.SIMPLER[old]:
            yield lambda m, o=old, n=new: texts.with_type(m.to_string(PRINTED), o, n)


def _layouts(module: HloModule) -> Iterator[Edit]:
    del module
    yield lambda m: texts.without_layouts(m.to_string(PRINTED))


def _attributes(module: HloModule) -> Iterator[Edit]:
    for name in attributes.attribute_names(module):
        yield partial(attributes.without_attribute, name=name)


def _numbers(module: HloModule) -> Iterator[Edit]:
    for instruction in module.instructions:
        number = attributes.integer_of(instruction)
        for new in dict.fromkeys((0, 1, 2, (number or 0) // 2)):
            if number is not None and abs(new) < abs(number):
                yield _on(attributes.with_integer, instruction, new)


def _chunks(count: int) -> Iterator[range]:
    """Yield ranges that cover 0 to `count`: halves, then quarters, down to single numbers."""
    size = max(count // 2, 1)
    while count:
        for start in range(0, count, size):
            yield range(start, min(start + size, count))
        if size == 1:
            return
        size //= 2


# The first steps of all, taken once: while the module is large, each question takes long.
FIRST = (
    Step("one instruction with some operands", _alone),
    Step("later instructions are gone", _first_cut, is_search=True),
)
STEPS = (
    Step("header and metadata", _header),
    Step("a called computation is the entry", _computations),
    Step("later instructions are gone", _after, is_search=True),
    Step("one result", _roots),
    Step("earlier values are parameters", _before, is_search=True),
    Step("results are gone", _outputs),
    Step("calls are inlined", _inline_all),
    Step("control flow is inlined", _control_flow, shrinks=False),
    Step("groups of values are parameters", _parameters),
    Step("state of loops is gone", _state),
    Step("values are their operands", _operands),
    Step("values are constants", _constants),
    Step("layouts", _layouts),
    Step("sizes", _sizes, shrinks=False),
    Step("element types", _types, shrinks=False),
    Step("attributes", _attributes),
    Step("integers", _numbers, shrinks=False),
)
