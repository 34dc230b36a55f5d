"""Replace pairs of custom calls that a framework writes for asynchronous collectives by these collectives.

    s = f32[8] custom-call(p), custom_call_target="all-gather-start",
        frontend_attributes={async_collective_config={"all_gather_dimension":0,"replica_groups":[[0,1]]}}
    d = f32[8] custom-call(s), custom_call_target="all-gather-done"
    =>  s = ((f32[4]), f32[8]) async-start(p), calls=async_computation;  d = f32[8] async-done(s)

The computation holds an all-gather, all-reduce, reduce-scatter, all-to-all or collective-permute. The config may also be the
backend_config. A reduce-scatter that is not tiled drops its dimension, and an all-to-all may concatenate along another dimension
than it splits: instructions after the done do this. A start that another instruction reads too stays.
XLA's `AsyncCollectiveCustomCallRewriter`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, TypeVar

import msgspec
from msgspec import Struct

from hlo_run.errors import Unsupported
from hlo_run.hlo.edit import InstructionMaker
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo.values.attribute_values import AttributeValue
from hlo_run.hlo.values.replica_groups import ReplicaGroups
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo_passes.subgraphs.async_pairs import wrapped_start
from hlo_run.pass_support.hlo_pass import PassContext

_CONFIG = "async_collective_config"
_T = TypeVar("_T")


class _Config(Struct, frozen=True):
    """The record in which the framework describes a collective; a collective reads its own fields."""

    replica_groups: tuple[tuple[int, ...], ...] = ()
    channel_id: int | None = None
    use_global_device_ids: bool = False
    permutation: tuple[tuple[int, int], ...] = ()
    all_gather_dimension: int | None = None
    scatter_dimension: int | None = None
    tiled: bool | None = None
    split_dimension: int | None = None
    concat_dimension: int | None = None
    split_count: int | None = None


class _Collective(Struct, frozen=True):
    """The collective of a pair: its shape, its attributes, and what makes the result of the pair from the done's."""

    shape: Shape
    attributes: dict[str, AttributeValue]
    finish: Callable[[HloInstruction, InstructionMaker], HloInstruction] | None = None


class AsyncCollectiveCustomCallRewriter(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "async-collective-custom-call-rewriter"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit `module` in place."""
        del ctx
        for done in module.in_post_order("custom-call"):
            opcode = _opcode(done, "-done")
            start = done.operands[0] if opcode is not None and done.operands else None
            started = _opcode(start, "-start") if start is not None else None
            if start is not None and started is not None:
                _replace(module, started, start, done)


def _opcode(instruction: HloInstruction, suffix: str) -> Opcode | None:
    """Return the opcode of the collective that a custom call starts or ends, as the suffix of its target says."""
    if instruction.opcode != "custom-call":
        return None
    target = instruction.custom_call_target
    return next((opcode for opcode in _RULES if target == f"{opcode}{suffix}"), None)


def _replace(module: HloModule, opcode: Opcode, start: HloInstruction, done: HloInstruction) -> None:
    computation = done.parent
    assert computation is not None, "the instruction is in a computation"
    collective = _RULES[opcode](start, done, _config(start))
    called: dict[str, list[HloComputation]] = {}
    if opcode in ("all-reduce", "reduce-scatter"):
        if len(start.called_computations) != 1:
            raise Unsupported(f"'{start.name}' must call one computation to reduce with", start.where)
        called["to_apply"] = [start.called_computations[0]]
    whole = InstructionMaker(where=start.where).add_with(opcode, collective.shape, start.operands, collective.attributes, called)
    new_start = computation.add(wrapped_start(module, whole, computation.execution_thread))
    whole.operands, whole.called = (), {}
    maker = InstructionMaker(computation, done.where)
    new_done = result = maker.add("async-done", collective.shape, [new_start], name=f"{opcode}-done")
    if collective.finish is not None:
        result = collective.finish(new_done, maker)
    for new, old in ((new_start, start), (new_done, done), (result, done)):
        if "metadata" in old.attrs:
            new.attrs["metadata"] = old.attrs["metadata"]
    new_start.control_predecessors = list(start.control_predecessors)
    for other in computation.instructions:
        if done in other.control_predecessors:
            other.control_predecessors = [result if first is done else first for first in other.control_predecessors]
    module.replace_uses(done, result)
    done.control_predecessors = []
    computation.remove(done)
    if not start.users:
        start.control_predecessors = []
        computation.remove(start)


def _config(start: HloInstruction) -> _Config:
    """Return the config in the frontend attributes, or else in the backend_config. Raises Unsupported if it cannot be read."""
    attributes = start.frontend_attributes
    text = attributes.get(_CONFIG) if attributes is not None else None
    text = start.backend_config if text is None else text
    try:
        return msgspec.json.decode(text, type=_Config) if text else _Config()
    except msgspec.MsgspecError as error:
        raise Unsupported(f"the {_CONFIG} of '{start.name}' cannot be read: {error}", start.where) from None


def _given(value: _T | None, field: str, start: HloInstruction) -> _T:
    if value is None:
        raise Unsupported(f"the {_CONFIG} of '{start.name}' has no {field}", start.where)
    return value


def _shared(config: _Config, **attributes: AttributeValue) -> dict[str, AttributeValue]:
    """Return attributes, with those that all collectives of groups have."""
    if config.channel_id is not None:
        attributes["channel_id"] = config.channel_id
    return {"replica_groups": ReplicaGroups(config.replica_groups), **attributes}


def _of_devices(config: _Config, **attributes: AttributeValue) -> dict[str, AttributeValue]:
    if config.use_global_device_ids:
        attributes["use_global_device_ids"] = True
    return _shared(config, **attributes)


def _all_gather(start: HloInstruction, done: HloInstruction, config: _Config) -> _Collective:
    dim = _given(config.all_gather_dimension, "all_gather_dimension", start)
    return _Collective(done.shape, _of_devices(config, dimensions=(dim,)))


def _all_reduce(start: HloInstruction, done: HloInstruction, config: _Config) -> _Collective:
    del start
    return _Collective(done.shape, _of_devices(config))


def _reduce_scatter(start: HloInstruction, done: HloInstruction, config: _Config) -> _Collective:
    dim = _given(config.scatter_dimension, "scatter_dimension", start)
    attributes = _of_devices(config, dimensions=(dim,))
    if _given(config.tiled, "tiled", start):
        return _Collective(done.shape, attributes)

    def without_dim(value: HloInstruction, maker: InstructionMaker) -> HloInstruction:
        return maker.add("reshape", done.shape, [value])

    size = len(config.replica_groups[0]) if config.replica_groups else 1
    return _Collective(_resized(start, dim, (_part(start, dim, size),)), attributes, without_dim)


def _all_to_all(start: HloInstruction, done: HloInstruction, config: _Config) -> _Collective:
    split_dim = _given(config.split_dimension, "split_dimension", start)
    concat_dim = _given(config.concat_dimension, "concat_dimension", start)
    count = _given(config.split_count, "split_count", start)
    attributes = _shared(config, dimensions=(split_dim,))
    if split_dim == concat_dim:
        return _Collective(done.shape, attributes)
    if not 0 <= concat_dim < start.operands[0].shape.rank:
        raise Unsupported(f"the operand of '{start.name}' has no dimension {concat_dim} to concatenate in", start.where)

    def concatenate(value: HloInstruction, maker: InstructionMaker) -> HloInstruction:
        # The dimension of the senders moves before the dimension that they are concatenated in.
        by_sender = maker.add("reshape", senders, [value])
        order = [dim for dim in range(senders.rank) if dim != split_dim]
        order.insert(concat_dim, split_dim)
        return maker.add("reshape", done.shape, [maker.transpose(by_sender, order)])

    senders = _resized(start, split_dim, (count, _part(start, split_dim, count)))
    return _Collective(start.operands[0].shape, attributes, concatenate)


def _collective_permute(start: HloInstruction, done: HloInstruction, config: _Config) -> _Collective:
    del start
    attributes = _shared(config, source_target_pairs=config.permutation)
    del attributes["replica_groups"]
    return _Collective(done.shape, attributes)


def _part(start: HloInstruction, dim: int, count: int) -> int:
    """Return the size of each part if dimension `dim` of the operand is split into `count` parts."""
    dims = start.operands[0].shape.dims
    if not 0 <= dim < len(dims) or count <= 0 or dims[dim] % count:
        raise Unsupported(f"dimension {dim} of the operand of '{start.name}' cannot be split into {count} parts", start.where)
    return dims[dim] // count


def _resized(start: HloInstruction, dim: int, sizes: tuple[int, ...]) -> Shape:
    """Return the shape of the operand, in the default layout, with other sizes instead of that of dimension `dim`."""
    shape = start.operands[0].shape
    return Shape.array(shape.element_type, (*shape.dims[:dim], *sizes, *shape.dims[dim + 1 :]))


_RULES: dict[Opcode, Callable[[HloInstruction, HloInstruction, _Config], _Collective]] = {
    "all-gather": _all_gather,
    "all-reduce": _all_reduce,
    "reduce-scatter": _reduce_scatter,
    "all-to-all": _all_to_all,
    "collective-permute": _collective_permute,
}
