"""Check and complete parsed instructions as XLA's parser does: operand counts, defaults, shapes that it computes.

The verifier checks whether shapes, dimensions and called computations fit together.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from hlo_run.hlo.attributes.lexer import Lexer
from hlo_run.hlo.attributes.table import AttributeValue
from hlo_run.hlo.graph import HloComputation, HloInstruction
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo.opcodes.table import OPCODES
from hlo_run.hlo.opcodes.traits import DEVICE_ID, PERMUTE, REDUCING_COLLECTIVE
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo.values.sharding import NamedSharding, SingleSharding, for_leaves

_TOKEN = Shape("token")
_CONTEXT = Shape.array("u32", ())


class Draft(Struct):
    """An instruction before it is created. The shape may be unknown; a rule may change any field."""

    name: str
    opcode: Opcode
    shape: Shape
    operands: list[HloInstruction]
    attributes: dict[str, AttributeValue]
    called: dict[str, tuple[HloComputation, ...]]


def apply_rules(lexer: Lexer, start: int, draft: Draft) -> None:
    """Complete an instruction; raise ParseError at `start` if XLA's parser refuses it."""
    problem = complete(draft)
    if problem:
        raise lexer.error(f"'{draft.name}' ({draft.opcode}): {problem}", start)


def complete(draft: Draft) -> str:
    """Complete an instruction; return the reason why XLA's parser refuses it, or ""."""
    opcode = OPCODES[draft.opcode]
    for name, default in opcode.defaults.items():
        draft.attributes.setdefault(name, default)
    if len(draft.called) > 1:
        draft.called = {name: draft.called[name] for name in opcode.attributes if name in draft.called}
    rule = _RULES.get(draft.opcode)
    problem = rule(draft) if rule else ""
    if not problem and ("sharding" in draft.attributes or "parameter_replication" in draft.attributes):
        problem = _per_leaf(draft)
    return problem


def _is_known(shape: Shape) -> bool:
    return shape.element_type != "unknown"


def _per_leaf(draft: Draft) -> str:
    """Repeat a sharding for the leaves of a tuple, and check the number of entries of parameter_replication."""
    if not _is_known(draft.shape):
        return ""
    leaves = sum(1 for _ in draft.shape.leaves())
    sharding = draft.attributes.get("sharding")
    if draft.shape.is_tuple and isinstance(sharding, (SingleSharding, NamedSharding)):
        draft.attributes["sharding"] = for_leaves(sharding, leaves)
    replication = draft.attributes.get("parameter_replication")
    if not isinstance(replication, tuple):
        return ""
    if len(replication) != leaves:
        return f"parameter has {leaves} leaf buffers, but parameter_replication has {len(replication)} elements."
    return "" if draft.opcode == "parameter" else "only a parameter can have parameter_replication"


def _even(draft: Draft) -> str:
    count = len(draft.operands)
    return f"expects an even number of operands, but has {count} operands" if count % 2 else ""


def _odd(draft: Draft) -> str:
    count = len(draft.operands)
    return "" if count % 2 else f"expects an odd number of operands, but has {count} operands"


def _first_operands(count: int) -> Callable[[Draft], str]:
    """Return a rule that drops all operands after the first `count`: XLA parses any number and ignores the rest."""

    def rule(draft: Draft) -> str:
        if len(draft.operands) < count:
            return f"expects {count} operands, but has {len(draft.operands)} operands"
        del draft.operands[count:]
        return ""

    return rule


def _at_least(count: int) -> Callable[[Draft], str]:
    """Return a rule for any number of operands, but at least `count`."""

    def rule(draft: Draft) -> str:
        return "" if len(draft.operands) >= count else f"expects {count} operands, but has {len(draft.operands)} operands"

    return rule


def _first_dimension(draft: Draft) -> str:
    dimensions = draft.attributes["dimensions"]
    if not isinstance(dimensions, tuple) or not dimensions:
        return "expects a dimension, but the list is empty"
    draft.attributes["dimensions"] = dimensions[:1]
    return ""


def _one_dimension(draft: Draft) -> str:
    dimensions = draft.attributes.get("dimensions", (0,))
    count = len(dimensions) if isinstance(dimensions, tuple) else 0
    return "" if count == 1 else f"expects exactly one dimension, but sees {count}"


def _size_dimension(draft: Draft) -> str:
    dimensions = draft.attributes["dimensions"]
    count = len(dimensions) if isinstance(dimensions, tuple) else 0
    return "" if count == 1 else f"expects one dimension, but sees {count}"


def _shuffle(draft: Draft) -> str:
    return "" if "shifts" in draft.attributes else "expects shifts for a shuffle in rotate mode"


def _broadcast(draft: Draft) -> str:
    shape = draft.operands[0].shape
    if "dimensions" not in draft.attributes and _is_known(shape) and not (shape.is_array and not shape.rank):
        return "attribute dimensions is expected but not seen"
    draft.attributes.setdefault("dimensions", ())
    return ""


def _reduction_groups(draft: Draft) -> str:
    attributes = draft.attributes
    if attributes.get("use_global_device_ids") is True and "channel_id" not in attributes and "mode" not in attributes:
        return "Cannot have use_global_device_ids=true without channel_id"
    return _first_dimension(draft) if draft.opcode == "reduce-scatter" else ""


def _ragged_all_to_all(draft: Draft) -> str:
    """Check the optional dimension and drop it: it has no meaning."""
    problem = _one_dimension(draft)
    draft.attributes.pop("dimensions", None)
    return problem


def _permute(draft: Draft) -> str:
    if "slice_sizes" in draft.attributes and len(draft.operands) != 4:
        return (
            "CollectivePermute and CollectivePermuteStart must have exactly four operands for dynamic-slice and in-place update."
        )
    return ""


def _at_least_one(draft: Draft) -> str:
    return "" if draft.operands else "DynamicReshape requires at least one operand."


def _starts(draft: Draft, before: int) -> str:
    """Check the number of operands: starts are one scalar per dimension, or one array of rank 1."""
    operands = draft.operands
    if len(operands) < before:
        return "Expected at least one operand." if before == 1 else "Expected at least two operands."
    if not all(_is_known(operand.shape) for operand in operands):
        return ""
    is_list = len(operands) == before + 1 and operands[before].shape.is_array and operands[before].shape.rank == 1
    shape = operands[0].shape
    rank = shape.tuple_shapes[0].rank if shape.element_type == "buffer" else shape.rank
    return "" if is_list or len(operands) == before + rank else "Wrong number of operands."


def _dynamic_slice(draft: Draft) -> str:
    return _starts(draft, 1)


def _dynamic_update_slice(draft: Draft) -> str:
    return _starts(draft, 2)


def _tuple(draft: Draft) -> str:
    if not _is_known(draft.shape):
        return ""
    if not draft.shape.is_tuple:
        return f"Expected a tuple shape. Got {draft.shape.to_string(layout=False)}"
    expected, count = len(draft.shape.tuple_shapes), len(draft.operands)
    return "" if expected == count else f"expects {expected} operands, but has {count} operands"


def _map(draft: Draft) -> str:
    """Set the dimensions to all dimensions, as XLA does whatever the text says."""
    shapes = (draft.shape, *(operand.shape for operand in draft.operands))
    shape = next((shape for shape in shapes if _is_known(shape)), None)
    if shape is not None:
        draft.attributes["dimensions"] = tuple(range(shape.rank))
    return ""


def _compare(draft: Draft) -> str:
    """Replace the older spelling of the order, and drop an order that the elements have without it."""
    attributes = draft.attributes
    kind = attributes.pop("type", None)
    if kind is not None:
        if "order" in attributes:
            return "Cannot specify both 'type' and 'order' attributes on compare"
        attributes["order"] = "PARTIAL" if kind == "FLOAT" else "TOTAL"
    shape = draft.operands[0].shape
    if shape.is_array and attributes.get("order") == default_order(shape):
        del attributes["order"]
    return ""


def default_order(shape: Shape) -> str:
    """Return the order by which the elements of an array compare without an `order`."""
    return "PARTIAL" if shape.dtype.kind in ("float", "complex") else "TOTAL"


def _scan(draft: Draft) -> str:
    if problem := _one_dimension(draft):
        return problem
    body, carries, count = draft.called["to_apply"][0], draft.attributes["num_carries"], len(draft.operands)
    if count != len(body.parameters):
        parameters = len(body.parameters)
        return f"expects {count} operands to match the number of parameters of to_apply, but to_apply has {parameters} parameters"
    if not isinstance(carries, int) or not 0 <= carries <= count:
        return f"expects at least {carries} operands to match the number of carries, but has {count} operands"
    return ""


def _conditional(draft: Draft) -> str:
    if not draft.operands:
        return "expects a selector as the first operand"
    selector = draft.operands[0].shape
    if _is_known(selector):
        if not selector.is_array or selector.rank:
            return "The first operand must be a scalar"
        if selector.element_type not in ("pred", "s32"):
            return "The first operand must be a scalar of PRED or S32"
        wanted = ("true_computation", "false_computation") if selector.element_type == "pred" else ("branch_computations",)
        if problem := _only_called(draft, wanted):
            return problem
    elif "branch_computations" in draft.called and len(draft.called) > 1:
        return 'unexpected attribute "true_computation" beside branch_computations'
    branches = sum(len(group) for group in draft.called.values())
    if not branches or len(draft.operands) != branches + 1:
        return f"expects one operand for each of {branches} branches after the selector, but has {len(draft.operands) - 1}"
    return ""


def _only_called(draft: Draft, wanted: tuple[str, ...]) -> str:
    unexpected = next((name for name in draft.called if name not in wanted), None)
    if unexpected:
        return f'unexpected attribute "{unexpected}". For this selector the branches are given as {" and ".join(wanted)}'
    missing = next((name for name in wanted if name not in draft.called), None)
    return f"attribute {missing} is expected but not seen" if missing else ""


def _custom_call(draft: Draft) -> str:
    """Check the operand layouts; make one list of the computations, or drop them if there are layouts (as XLA)."""
    constraints = draft.attributes.get("operand_layout_constraints")
    called = draft.called
    computations = called.get("to_apply") or called.get("called_computations", ())
    draft.called = {"called_computations": computations} if computations and constraints is None else {}
    if not isinstance(constraints, tuple):
        return ""
    if len(constraints) != len(draft.operands):
        return f"Expected {len(draft.operands)} operand layout constraints, {len(constraints)} given"
    for number, (shape, operand) in enumerate(zip(constraints, draft.operands, strict=True)):
        found = operand.shape
        if isinstance(shape, Shape) and _is_known(found) and not shape.compatible(found):
            what = f"Operand layout constraint shape {shape} for operand {number}"
            return f"{what} is not compatible with operand shape {found}"
    return ""


def _id(draft: Draft) -> str:
    if not _is_known(draft.shape) or (draft.shape.element_type == "u32" and draft.shape.is_array and not draft.shape.rank):
        return ""
    shape = draft.shape.to_string(layout=False)
    return f"HloInstruction {draft.opcode} must have a shape of u32[], but {shape} is specified"


def _done_channel(draft: Draft) -> str:
    started = draft.operands[0]
    if "channel_id" in OPCODES[started.opcode].attributes:
        expected, found = started.channel_id, draft.attributes.get("channel_id")
        if expected != found:
            return f"expects channel_id {expected} of '{started.name}', but sees {found}"
    return ""


def _send(draft: Draft) -> str:
    shape = draft.operands[0].shape
    if _is_known(shape):
        draft.shape = Shape.make_tuple((shape, _CONTEXT, _TOKEN))
    return ""


def _recv(draft: Draft) -> str:
    if not draft.shape.tuple_shapes:
        return f"expects a tuple shape that begins with what is received, but sees {draft.shape}"
    draft.shape = Shape.make_tuple((draft.shape.tuple_shapes[0], _CONTEXT, _TOKEN))
    return ""


def _send_done(draft: Draft) -> str:
    draft.shape = _TOKEN
    return _done_channel(draft)


def _recv_done(draft: Draft) -> str:
    shape = draft.operands[0].shape
    if not _is_known(shape):
        return _done_channel(draft)
    if not shape.tuple_shapes:
        return f"expects an operand of a tuple shape, but '{draft.operands[0].name}' has shape {shape}"
    draft.shape = Shape.make_tuple((shape.tuple_shapes[0], _TOKEN))
    return _done_channel(draft)


def _infeed(draft: Draft) -> str:
    if not draft.shape.tuple_shapes:
        return "infeed must have a non-empty tuple shape"
    draft.shape = Shape.make_tuple((draft.shape.tuple_shapes[0], _TOKEN))
    return ""


def _outfeed(draft: Draft) -> str:
    shape = draft.operands[0].shape
    if _is_known(shape):
        draft.attributes.setdefault("outfeed_shape", shape)
    draft.shape = _TOKEN
    return ""


def _after_all(draft: Draft) -> str:
    draft.shape = _TOKEN
    return ""


def _add_dependency(draft: Draft) -> str:
    draft.shape = draft.operands[0].shape
    return ""


# Rules that compute the shape ignore the one in the text, as XLA does.
_RULES: dict[Opcode, Callable[[Draft], str]] = {
    **dict.fromkeys(("reduce", "reduce-window"), _even),
    "scatter": _odd,
    "dot": _at_least(2),
    "rng-bit-generator": _first_operands(1),
    **dict.fromkeys(("concatenate", "sort", "all-to-all"), _one_dimension),
    "ragged-all-to-all": _ragged_all_to_all,
    "broadcast": _broadcast,
    "dynamic-reshape": _at_least_one,
    "dynamic-slice": _dynamic_slice,
    "dynamic-update-slice": _dynamic_update_slice,
    "tuple": _tuple,
    "map": _map,
    "scan": _scan,
    "compare": _compare,
    "conditional": _conditional,
    "custom-call": _custom_call,
    **dict.fromkeys(sorted(DEVICE_ID), _id),
    **dict.fromkeys(sorted(REDUCING_COLLECTIVE), _reduction_groups),
    **dict.fromkeys(("all-gather", "all-gather-start"), _first_dimension),
    **dict.fromkeys(("get-dimension-size", "set-dimension-size"), _size_dimension),
    "shuffle": _shuffle,
    **dict.fromkeys(sorted(PERMUTE), _permute),
    "send": _send,
    "recv": _recv,
    "send-done": _send_done,
    "recv-done": _recv_done,
    "infeed": _infeed,
    "outfeed": _outfeed,
    "after-all": _after_all,
    "add-dependency": _add_dependency,
}
