"""Parse attributes that are records: metadata, origin, statistics, accuracy, aliasing, sparsity, frontend attributes."""

from __future__ import annotations

import math
import re
from typing import Any

from hlo_run.hlo.attributes.lexer import Lexer
from hlo_run.hlo.attributes.literal_parser import ElidedFill, parse_literal
from hlo_run.hlo.attributes.shape_text import MAX_DEPTH, parse_shape
from hlo_run.hlo.attributes.text import (
    at_brace,
    attribute_name,
    comma_list,
    number,
    open_brace,
    parse_int32,
    parse_integer,
    parse_ints,
    parse_string,
    parse_string_or_json,
    shape_index,
    string_value,
    sub_attributes,
    word_value,
)
from hlo_run.hlo.attributes.windows import extents
from hlo_run.hlo.values.attribute_values import (
    BlockScalingConfig,
    FrontendAttributes,
    OperandAliasing,
    ResultAccuracy,
    ShapedLiteral,
    SparsityConfig,
    Statistics,
    TensorBlockScaling,
    TensorSparsity,
)
from hlo_run.hlo.values.metadata import OpMetadata
from hlo_run.hlo.values.original_value import OriginalArray, OriginalValue, OriginTree
from hlo_run.hlo.values.shape import Layout, Shape

_METADATA_READERS = {
    **dict.fromkeys(
        ("op_type", "op_name", "source_file", "deduplicated_name", "scheduling_name", "metadata_payload"), parse_string
    ),
    **dict.fromkeys(("source_line", "source_end_line", "source_column", "source_end_column", "stack_frame_id"), parse_int32),
    "profile_type": parse_ints,
}
_LAST_PROFILE_TYPE = 3
# The largest index in an origin: every element up to it takes memory, even those that the text does not have.
_MAX_ORIGIN_ELEMENTS = 1_000_000


_TEXTS = "op_type|op_name|source_file|deduplicated_name|scheduling_name"
_NUMBERS = "source_line|source_end_line|source_column|source_end_column|stack_frame_id"
_PLAIN_METADATA = re.compile(rf"""\{{(?:(?:(?:{_TEXTS})="[^"\\\n]*+"|(?:{_NUMBERS})=[0-9]{{1,9}}+)(?:[ ]|(?=\}})))*+\}}""")
_PLAIN_FIELD = re.compile(r"""(\w+)=(?:"([^"]*)"|(\d+))""")


def parse_metadata(lexer: Lexer) -> OpMetadata:
    """Read `{op_name="x" source_line=3}`, with blanks or commas between the fields."""
    # A fast path for metadata as XLA prints it, the largest part of most texts; other forms token by token.
    found = _PLAIN_METADATA.match(lexer.text, lexer.pos)
    if found is not None:
        fields: list[tuple[str, str, str]] = _PLAIN_FIELD.findall(found[0])
        values: dict[str, Any] = {name: int(digits) if digits else text for name, text, digits in fields}
        if len(values) == len(fields):
            lexer.jump(found.end())
            return OpMetadata(**values)
    lexer.advance()
    return _metadata(lexer)


def _metadata(lexer: Lexer) -> OpMetadata:
    start = lexer.start
    found = OpMetadata(**sub_attributes(lexer, _METADATA_READERS))
    if any(not 0 <= kind <= _LAST_PROFILE_TYPE for kind in found.profile_type):
        raise lexer.error(f"a profile type is from 0 to {_LAST_PROFILE_TYPE}", start)
    return found


def metadata_or_list(lexer: Lexer) -> tuple[OpMetadata, ...]:
    """Read `{..}`, or a list `{{..}, {..}}`; the current token is the first brace."""
    if lexer.value == "{" and lexer.text[lexer.pos : lexer.pos + 64].lstrip()[:1] == "{":
        return comma_list(lexer, "{", "}", lambda: _metadata(lexer))
    return (_metadata(lexer),)


def parse_frontend_attributes(lexer: Lexer) -> FrontendAttributes:
    """Read `{b="x",a={json}}`; the last value of a repeated name is used."""
    lexer.advance()
    entries = comma_list(lexer, "{", "}", lambda: (attribute_name(lexer), parse_string_or_json(lexer)))
    return FrontendAttributes(tuple(sorted(dict(entries).items())))


def parse_statistics(lexer: Lexer) -> Statistics:
    """Read `{visualizing_index=1,name=2.5}`; the first entry is the index, whatever its name is."""
    lexer.advance()
    open_brace(lexer, "to start statistics")
    if lexer.take("}"):
        return Statistics()
    attribute_name(lexer)
    lexer.advance()
    index = parse_integer(lexer)
    values: list[tuple[str, float]] = []
    while lexer.take(","):
        name = attribute_name(lexer)
        lexer.advance()
        if lexer.value in ("inf", "-inf"):
            raise lexer.error(f"expects decimal or integer, but sees {lexer.seen()}")
        values.append((name, number(lexer)))
    lexer.expect("}", "at the end of statistics")
    return Statistics(index, tuple(values))


def parse_result_accuracy(lexer: Lexer) -> ResultAccuracy:
    """Read `{mode=highest}` or `{tolerance={atol=1,rtol=0.5,ulps=2}}`."""
    lexer.advance()
    open_brace(lexer, "to start result_accuracy")
    start, name = lexer.start, attribute_name(lexer)
    lexer.advance()
    if name == "mode":
        accuracy = ResultAccuracy(word_value(lexer, ("default", "highest"), fold_case=True))
    elif name == "tolerance":
        accuracy = _tolerance(lexer, start)
    else:
        raise lexer.error(f"invalid attribute name: {name}", start)
    lexer.expect("}", "to end result_accuracy")
    return accuracy


def _tolerance(lexer: Lexer, start: int) -> ResultAccuracy:
    fields = comma_list(lexer, "{", "}", lambda: _tolerance_field(lexer))
    pairs = {name: value for name, value in fields if value is not None}
    atol, rtol, ulps = (pairs.get(name, 0.0) for name in ("atol", "rtol", "ulps"))
    if not (atol >= 0 and rtol >= 0 and ulps > -1 and ulps < 2**63):
        raise lexer.error("Invalid result accuracy: a tolerance must not be negative", start)
    return ResultAccuracy("", atol, rtol, math.trunc(ulps))


def _tolerance_field(lexer: Lexer) -> tuple[str, float | None]:
    name, start = attribute_name(lexer), lexer.start
    if name not in ("atol", "rtol", "ulps"):
        raise lexer.error(f"invalid attribute name: {name}", start)
    lexer.advance()
    # XLA ignores a field without a value.
    return name, None if lexer.value in (",", "}") else number(lexer)


def parse_sparsity_config(lexer: Lexer) -> SparsityConfig:
    """Read `{lhs={sparsity=2x4 dimension=1 stride=1}}`; the last value of a repeated field is used."""
    lexer.advance()
    open_brace(lexer, "to start SparsityConfig")
    found: dict[str, TensorSparsity] = {}
    while not lexer.take("}"):
        name = attribute_name(lexer)
        if name not in ("lhs", "rhs"):
            raise lexer.error(f"unknown attribute {name}", hint="allowed: lhs, rhs")
        lexer.advance()
        found[name] = _tensor_sparsity(lexer)
    return SparsityConfig(**found)


def _tensor_sparsity(lexer: Lexer) -> TensorSparsity:
    open_brace(lexer, "to start TensorSparsityConfig")
    found: dict[str, int] = {}
    while not lexer.take("}"):
        name = attribute_name(lexer)
        start = lexer.start
        lexer.advance()
        if name == "sparsity":
            values = extents(lexer)
            if len(values) != 2:
                raise lexer.error("expects 'num_non_zero:block_size', written like 2x4", start)
            found["non_zeros"], found["block_size"] = values
        elif name in ("dimension", "stride", "idx"):
            found[name] = parse_integer(lexer)
        else:
            raise lexer.error(f"unknown attribute {name}", start, hint="allowed: sparsity, dimension, stride, idx")
    return TensorSparsity(**found)


def parse_block_scaling_config(lexer: Lexer) -> BlockScalingConfig:
    """Read `{lhs={scale_idx=2 strides=1x32}}`; the last value of a repeated field is used."""
    lexer.advance()
    open_brace(lexer, "to start BlockScalingConfig")
    found: dict[str, TensorBlockScaling] = {}
    while not lexer.take("}"):
        name = attribute_name(lexer)
        if name not in ("lhs", "rhs"):
            raise lexer.error(f"unknown attribute {name}", hint="allowed: lhs, rhs")
        lexer.advance()
        found[name] = _tensor_block_scaling(lexer)
    return BlockScalingConfig(**found)


def _tensor_block_scaling(lexer: Lexer) -> TensorBlockScaling:
    open_brace(lexer, "to start TensorBlockScalingConfig")
    numbers = {"scale_idx": 0, "zero_idx": 0}
    sizes: dict[str, tuple[int, ...]] = {"strides": (), "steps": ()}
    while not lexer.take("}"):
        name = attribute_name(lexer)
        start = lexer.start
        lexer.advance()
        if name in numbers:
            numbers[name] = parse_integer(lexer)
        elif name in sizes:
            sizes[name] = extents(lexer)
        else:
            raise lexer.error(f"unknown attribute {name}", start, hint="allowed: scale_idx, zero_idx, strides, steps")
    return TensorBlockScaling(numbers["scale_idx"], numbers["zero_idx"], sizes["strides"], sizes["steps"])


def parse_operand_aliasing(lexer: Lexer) -> OperandAliasing:
    """Read `{{0}: (1, {}), {1}: (0, {2})}`: output index, operand, operand index."""
    lexer.advance()
    open_brace(lexer, "at the start of output_to_operand_aliasing")
    pairs: list[tuple[tuple[int, ...], int, tuple[int, ...]]] = []
    while lexer.value != "}":
        output = shape_index(lexer)
        lexer.expect(":", "in <output_shape_index>: (<operand_index>, <operand_shape_index>)")
        lexer.expect("(", "in <output_shape_index>: (<operand_index>, <operand_shape_index>)")
        operand = parse_integer(lexer)
        lexer.expect(",", "in <output_shape_index>: (<operand_index>, <operand_shape_index>)")
        pairs.append((output, operand, shape_index(lexer)))
        lexer.expect(")", "in <output_shape_index>: (<operand_index>, <operand_shape_index>)")
        if not lexer.take(","):
            break
    lexer.expect("}", "at the end of output_to_operand_aliasing")
    return OperandAliasing(tuple(pairs))


def parse_shaped_literal(lexer: Lexer) -> ShapedLiteral:
    """Read `s32[2]{0} {1, 2}`, or a tuple `( f32[] 1, f32[] 2 )`."""
    lexer.advance()
    return _shaped_literal(lexer, 0)


def _shaped_literal(lexer: Lexer, depth: int) -> ShapedLiteral:
    if lexer.value != "(":
        shape = parse_shape(lexer)
        if not shape.is_array:
            raise lexer.error(f"a literal cannot have the shape {shape}")
        # The layout of a literal has an order of dimensions, but no tiles and no memory space.
        plain = Shape(shape.element_type, shape.dims, Layout(shape.minor_to_major))
        return ShapedLiteral(plain, parse_literal(lexer, plain, ElidedFill()))
    if depth > MAX_DEPTH:
        raise lexer.error("maximum recursion depth exceeded", hint=f"tuples nest at most {MAX_DEPTH} deep")
    elements = comma_list(lexer, "(", ")", lambda: _shaped_literal(lexer, depth + 1))
    return ShapedLiteral(Shape.make_tuple(tuple(e.shape for e in elements)), tuple(e.value for e in elements))


def parse_origin(lexer: Lexer) -> OriginalValue:
    """Read `{({"a"}, {"b" {1}})}`, with the calls around it `{{"a"},["calls"]}`, or the older `{[synthetic_call]}`.

    As in XLA, the parentheses only give the position of a leaf: those at the end may be missing, the last of two leaves at
    one position is used, and a position without a leaf is an empty tuple.
    """
    lexer.advance()
    open_brace(lexer, "to start original value")
    if lexer.take("["):
        if not (lexer.kind == "ident" and lexer.value == "synthetic_call"):
            raise lexer.error("Expects 'synthetic_call' after '[' for a synthetic_call value.")
        lexer.advance()
        lexer.expect("]", "to end '[synthetic_call]'")
        lexer.expect("}", "to end original value")
        return OriginalValue(call_hierarchy="")
    root = _Place()
    path: list[int] = []
    hierarchy: str | None = None
    while lexer.value != "}":
        start = lexer.start
        if lexer.take("["):
            hierarchy = string_value(lexer)
            lexer.expect("]", "to end the call hierarchy")
        elif lexer.take("("):
            path.append(0)
            if len(path) > 4 * MAX_DEPTH:
                raise lexer.error("maximum recursion depth exceeded", start)
        elif lexer.value == ")" and not path:
            # An unmatched parenthesis: XLA reads nothing after it.
            while lexer.take(")"):
                pass
            if not lexer.sees("}"):
                raise lexer.error(f"expects the end of the original value, but sees {lexer.seen()}")
        elif lexer.take(")"):
            path.pop()
        elif lexer.take(","):
            # Outside of a tuple it comes before the hierarchy, or means nothing.
            if path:
                path[-1] += 1
                if path[-1] > _MAX_ORIGIN_ELEMENTS:
                    raise lexer.error("the tuple has too many elements", start)
        elif at_brace(lexer):
            root.put(path, _original_array(lexer))
        else:
            raise lexer.error("Expects '[synthetic]' or a tuple tree of original arrays in original_value field.")
    lexer.advance()
    return OriginalValue(root.tree(), hierarchy)


class _Place:
    """A node in the tree of an original value: a leaf, or a tuple of nodes."""

    def __init__(self) -> None:
        self.is_leaf = False
        self.leaf: OriginalArray | None = None
        self.elements: list[_Place] = []

    def put(self, path: list[int], leaf: OriginalArray | None) -> None:
        place = self
        for index in path:
            place.is_leaf = False
            place.elements += [_Place() for _ in range(len(place.elements), index + 1)]
            place = place.elements[index]
        place.is_leaf, place.leaf, place.elements = True, leaf, []

    def tree(self) -> OriginTree:
        return self.leaf if self.is_leaf else tuple(element.tree() for element in self.elements)


def _original_array(lexer: Lexer) -> OriginalArray | None:
    open_brace(lexer, "at the start of an original array")
    name, index = "", ()
    if lexer.kind == "string":
        name = string_value(lexer)
        if at_brace(lexer):
            index = shape_index(lexer)
    lexer.expect("}", "at the end of an original array")
    return OriginalArray(name, index) if name else None
