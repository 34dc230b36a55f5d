"""Replace collectives of one kind by one with several operands.

XLA's rule: walk in post-order and take instructions with the key of the first one, until a threshold is passed or the next one
depends on one that was taken. Combine these, and begin again with the rest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence

from msgspec import Struct

from hlo_run.analysis.latency.async_kinds import collective_config
from hlo_run.hlo.edit import Editor
from hlo_run.hlo.frontend_attributes import frontend_attribute
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo.values.attribute_values import AttributeValue, FrontendAttributes
from hlo_run.hlo.values.metadata import OpMetadata
from hlo_run.hlo.values.shape import Layout, Shape
from hlo_run.hlo_passes.subgraphs.async_pairs import set_collective_config
from hlo_run.hlo_passes.subgraphs.library_calls import NO_RECORD, to_json
from hlo_run.options import CompileOptions
from hlo_run.options.collective_flags import UNSPECIFIED_DOMAIN
from hlo_run.records import replace

# Attributes of one collective that a combined one does not take over.
_OWN = ("constrain_layout", "sharding", "metadata", "frontend_attributes", "backend_config")
Key = Callable[[HloInstruction], "Hashable | None"]


class Limits(Struct, frozen=True):
    """The most bytes of results, and the most collectives, that one collective replaces. Zero: combine none.

    If `bytes` is the default, a module's attribute `suggested_combiner_threshold` replaces it for pipelined and synchronous
    collectives. `gathers_more`: those that depend on a group wait for a later one while others join it, and permutes send an
    operand once.
    """

    bytes: int
    count: int
    default_bytes: int | None = None
    gathers_more: bool = False


def limits_of(options: CompileOptions, most_bytes: int, default_bytes: int | None = None) -> Limits:
    """Return the limits that the options have for collectives of one kind, of which at most `most_bytes` are combined."""
    return Limits(
        most_bytes, options.xla_gpu_collective_combine_threshold_count, default_bytes, options.xla_enable_enzyme_comms_opt
    )


def combine_all(module: HloModule, opcode: Opcode, key: Key, limits: Limits) -> None:
    """Combine collectives whose keys are equal. Collectives with the key None stay."""
    suggested = _suggested_bytes(module) if limits.bytes == limits.default_bytes else 0
    if suggested > 0 and limits.count > 0:
        _combine(module, opcode, _key_of_urgent(key), replace(limits, bytes=suggested))
    if limits.bytes > 0 and limits.count > 0:
        _combine(module, opcode, key, limits)


def _suggested_bytes(module: HloModule) -> int:
    text = frontend_attribute(module, "suggested_combiner_threshold")
    return int(text) if text is not None and text.isdecimal() else 0


def _key_of_urgent(key: Key) -> Key:
    """Return the key of collectives that are pipelined or synchronous; all others stay."""

    def urgent(instruction: HloInstruction) -> Hashable | None:
        is_sync = frontend_attribute(instruction, "sync_collective") == "true"
        found = key(instruction) if is_sync or combiner_key(instruction)[1] else None
        return None if found is None else (found, is_sync)

    return urgent


def _combine(module: HloModule, opcode: Opcode, key: Key, limits: Limits) -> None:
    for computation in list(dict.fromkeys(i.parent for i in module.instructions_of(opcode))):
        if computation is not None:
            _combine_in(module, computation, opcode, key, limits)


def _combine_in(module: HloModule, computation: HloComputation, opcode: Opcode, key: Key, limits: Limits) -> None:
    left = {i: found for i in computation.instructions if i.opcode == opcode and (found := key(i)) is not None}
    while left:
        group = _next_group(computation.post_order(), left, limits)
        if len(group) > 1:
            _combine_group(module, group, limits.gathers_more)


def _next_group(order: Sequence[HloInstruction], left: dict[HloInstruction, Hashable], limits: Limits) -> list[HloInstruction]:
    """Return the next group, and remove from `left` its members and all that is never combined."""
    group: list[HloInstruction] = []
    wanted: Hashable = None
    size = 0
    after: set[HloInstruction] = set()
    for instruction in order:
        if any(before in after for before in (*instruction.operands, *instruction.control_predecessors)):
            after.add(instruction)
        if instruction not in left:
            continue
        if not group:
            wanted = left[instruction]
        if left[instruction] != wanted:
            continue
        own = instruction.shape.size_bytes if instruction.shape.is_array else 0
        if len(instruction.operands) != 1 or own > limits.bytes:
            del left[instruction]
            continue
        if size + own > limits.bytes or (instruction in after and not limits.gathers_more):
            break
        if instruction in after:
            continue
        group.append(instruction)
        after.add(instruction)
        size += own
        del left[instruction]
        if len(group) >= limits.count:
            break
    return group


def _combine_group(module: HloModule, group: Sequence[HloInstruction], merges: bool) -> None:
    """Replace the collectives by elements of one; those along another dimension than most get it by bitcasts.

    With `merges`, one permute sends each operand once.
    """
    first = group[0]
    dim = _usual_dim(group) if "dimensions" in first.attrs else None
    editor, computation = Editor(first, keeps_frontend_attributes=False), first.parent
    assert computation is not None, "the collectives are in a computation"
    swaps = [None if dim is None or i.dimensions == (dim,) else (dim, i.dimensions[0]) for i in group]
    operands = [
        editor.bitcast(o, _swapped(o.shape, s)) if s else o for i, s in zip(group, swaps, strict=True) for o in i.operands
    ]
    shapes = [_swapped(i.shape, s) if s else i.shape for i, s in zip(group, swaps, strict=True)]
    places = list(range(len(group)))
    if merges and first.opcode == "collective-permute":
        sent = list(dict.fromkeys(operands))
        places = [sent.index(operand) for operand in operands]
        operands, shapes = sent, [operand.shape for operand in sent]
    attributes = {name: value for name, value in first.attrs.items() if name not in _OWN} | merged_notes(group)
    if dim is not None:
        attributes["dimensions"] = (dim,)
    combiner = Editor(first, derives=False)
    shape = Shape.make_tuple(tuple(shapes)) if len(shapes) > 1 else shapes[0]
    made = combiner.add_with(first.opcode, shape, operands, attributes, dict(first.called))
    if first.opcode != "collective-permute":
        made.attrs["backend_config"] = to_json(dict(NO_RECORD))
    is_pipelined = any(combiner_key(i)[1] for i in group)
    # XLA marks no permute.
    is_made = first.opcode != "collective-permute" and any(map(_is_of_partitioner, group))
    if is_pipelined or is_made:
        set_collective_config(made, is_pipelined=is_pipelined, is_spmd_generated=is_made)
    domains = [str(collective_config(i).get("communication_domain", UNSPECIFIED_DOMAIN)) for i in group]
    for domain in [found for found in domains if found != UNSPECIFIED_DOMAIN][:1]:
        set_collective_config(made, communication_domain=domain)
    for number, old, swap in zip(places, group, swaps, strict=True):
        editor = Editor(old, keeps_frontend_attributes=False)
        element = editor.element(made, number) if made.shape.is_tuple else made
        module.replace(old, editor.bitcast(element, old.shape) if swap else element)
        computation.remove(old)


def _usual_dim(group: Sequence[HloInstruction]) -> int:
    """Return the dimension of most collectives, the first of several, or 0 if some array lacks it."""
    counts = Counter(i.dimensions[0] for i in group)
    dim = max(sorted(counts), key=counts.__getitem__)
    return dim if all(dim < i.shape.rank for i in group) else 0


def _swapped(shape: Shape, dims: tuple[int, int]) -> Shape:
    """Return the shape with two dimensions swapped, and the layout that leaves the bytes where they are."""
    names = {dims[0]: dims[1], dims[1]: dims[0]}
    order = [names.get(d, d) for d in range(shape.rank)]
    extra = shape.layout.extra if shape.layout else ""
    layout = Layout(tuple(names.get(d, d) for d in shape.minor_to_major), extra)
    return replace(shape, dims=tuple(shape.dims[d] for d in order), layout=layout)


def merged_notes(group: Sequence[HloInstruction]) -> dict[str, AttributeValue]:
    """Return the metadata and the frontend attributes of an instruction that does the work of several."""
    notes: dict[str, AttributeValue] = {}
    values: dict[str, set[str]] = {}
    for name, value in (entry for i in group for entry in (i.frontend_attributes or FrontendAttributes()).entries):
        values.setdefault(name, set()).add(value)
    if values:
        entries = tuple((name, ",".join(sorted(found))) for name, found in sorted(values.items()))
        notes["frontend_attributes"] = FrontendAttributes(entries)
    origins = [i.metadata if isinstance(i.metadata, OpMetadata) else OpMetadata() for i in group]
    places = [f"{origin.source_file}:{origin.source_line}" for origin in origins if origin.source_file]
    names = [origin.op_name for origin in origins if origin.op_name]
    merged = replace(origins[0], op_name=_merged_name(names)) if names else origins[0]
    if places:
        merged = replace(merged, source_file=",".join(places), source_line=0, source_end_line=0)
    if merged.says_something:
        notes["metadata"] = merged
    return notes


def _merged_name(names: Sequence[str]) -> str:
    """Return `a/(b:c)` for `a/b` and `a/c`."""
    if len(set(names)) == 1:
        return names[0]
    common = next((n for n, letters in enumerate(zip(*names, strict=False)) if len(set(letters)) > 1), min(map(len, names)))
    prefix = names[0][: names[0].rfind("/", 0, common) + 1]
    return f"{prefix}({':'.join(name[len(prefix) :] for name in names)})"


def _is_of_partitioner(instruction: HloInstruction) -> bool:
    """True if the partitioner made a collective, or one of those that it combines."""
    marked = frontend_attribute(instruction, "is_spmd_generated") == "true"
    return marked or bool(collective_config(instruction).get("is_spmd_generated", False))


def combiner_key(instruction: HloInstruction) -> tuple[str, bool, str]:
    """Return what must be equal to combine collectives, and whether they are pipelined.

    These are the names that a framework gave collectives that may be combined, and that start together; "" without one.
    """
    name, group = (frontend_attribute(instruction, key) or "" for key in ("combiner_key", "collective_group_key"))
    config = instruction.backend_config
    return name, '"is_pipelined":true' in config.replace(" ", ""), group
