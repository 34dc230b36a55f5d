"""Shapes: element type, logical dimensions and layout; tuples of shapes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from msgspec import Struct

from hlo_run.hlo.values.dtype import DTYPES, DType
from hlo_run.records import replace

# XLA's value for the size of a dimension without a bound (`?`).
UNBOUNDED = -(2**63)

# The place of a part in a tuple shape: () is the whole, (1, 0) the first part of the second part.
ShapeIndex = tuple[int, ...]

_ELEMENT_SIZE = re.compile(r"E\((\d+)\)")


class Layout(Struct, frozen=True, cache_hash=True):
    """Physical order of an array: `minor_to_major[0]` is the dimension that varies fastest.

    `extra` is the text between `:` and `}` of a layout (tiles, memory space, element bits), as XLA prints it.
    """

    minor_to_major: tuple[int, ...]
    extra: str = ""

    @property
    def memory_space(self) -> int:
        """The number in `S(n)`; 0 is the device's own memory."""
        _, found, rest = self.extra.partition("S(")
        number = rest.partition(")")[0]
        return int(number) if found and number.isdecimal() else 0

    @property
    def element_size_bits(self) -> int:
        """The number in `E(n)`: the bits of an element in memory; 0 if the layout does not say."""
        found = _ELEMENT_SIZE.search(self.extra)
        return int(found[1]) if found is not None else 0

    def __str__(self) -> str:
        dims = ",".join(map(str, self.minor_to_major))
        return "{" + dims + (f":{self.extra}" if self.extra else "") + "}"


class Shape(Struct, frozen=True, cache_hash=True):
    """One HLO shape.

    `element_type` is a dtype name of `DTYPES`, or `tuple`, `buffer`, `token`, `opaque`. Arrays have `dims` (logical order;
    for a dynamic dimension the bound, or `UNBOUNDED` without one) and a layout (None if neither the text nor a pass set
    one). Tuples have `tuple_shapes`; those of a buffer `b(f32[2])` are its array. `dynamic_dims` says per dimension whether
    its size is dynamic (`<=N`, `?`); empty means none is.
    """

    element_type: str
    dims: tuple[int, ...] = ()
    layout: Layout | None = None
    tuple_shapes: tuple[Shape, ...] = ()
    dynamic_dims: tuple[bool, ...] = ()

    @staticmethod
    def array(element_type: str, dims: tuple[int, ...], minor_to_major: tuple[int, ...] | None = None) -> Shape:
        """Return an array shape; the default layout is the descending one (row-major)."""
        order = tuple(reversed(range(len(dims)))) if minor_to_major is None else minor_to_major
        return Shape(element_type, dims, Layout(order))

    @staticmethod
    def make_tuple(shapes: tuple[Shape, ...]) -> Shape:
        """Return a tuple shape."""
        return Shape("tuple", tuple_shapes=shapes)

    @property
    def is_tuple(self) -> bool:
        """True for tuples."""
        return self.element_type == "tuple"

    @property
    def is_array(self) -> bool:
        """True for arrays, scalars included; false for tuples, buffers, tokens and opaque values."""
        return self.element_type in DTYPES

    @property
    def rank(self) -> int:
        """The number of dimensions; 0 for scalars."""
        return len(self.dims)

    @property
    def dtype(self) -> DType:
        """The element type's record; the shape must be an array."""
        return DTYPES[self.element_type]

    @property
    def element_count(self) -> int:
        """The number of elements of an array; a dynamic dimension counts with its bound."""
        count = 1
        for size in self.dims:
            count *= size
        return count

    @property
    def minor_to_major(self) -> tuple[int, ...]:
        """The layout's order, or the descending one if there is no layout."""
        return self.layout.minor_to_major if self.layout else tuple(reversed(range(self.rank)))

    @property
    def has_default_layout(self) -> bool:
        """True if the layout is descending (row-major), including dimensions of size 1."""
        return self.minor_to_major == tuple(reversed(range(self.rank)))

    @property
    def size_bytes(self) -> int:
        """Bytes of the array's buffer: types below 8 bits are packed, pred takes one byte; 0 for tuples.

        A dynamic shape has its run-time sizes after the elements, an s32 per dimension.
        """
        dtype = DTYPES.get(self.element_type)
        if dtype is None:
            return 0
        size = (self.element_count * dtype.bits + 7) // 8
        return size + 4 * len(self.dims) if self.dynamic_dims and any(self.dynamic_dims) else size

    def leaves(self) -> Iterator[tuple[tuple[int, ...], Shape]]:
        """Yield (shape index, shape) of every leaf that is not a tuple, depth first; an array yields itself at ()."""
        waiting: list[tuple[tuple[int, ...], Shape]] = [((), self)]
        while waiting:
            index, shape = waiting.pop()
            if shape.is_tuple:
                waiting += reversed([((*index, number), element) for number, element in enumerate(shape.tuple_shapes)])
            else:
                yield index, shape

    def in_layout_of(self, other: Shape) -> Shape:
        """Return this shape in the layouts of a shape of the same tuples and ranks."""
        if self.is_tuple:
            pairs = zip(self.tuple_shapes, other.tuple_shapes, strict=True)
            return replace(self, tuple_shapes=tuple(own.in_layout_of(part) for own, part in pairs))
        return replace(self, layout=other.layout)

    def with_element_type(self, element_type: str) -> Shape:
        """Return the shape with another element type; `E(bits)` is removed from the layout if the width differs."""
        changed = replace(self, element_type=element_type)
        if self.layout is None or "E(" not in self.layout.extra or changed.dtype.bits == self.dtype.bits:
            return changed
        return replace(changed, layout=replace(self.layout, extra=_ELEMENT_SIZE.sub("", self.layout.extra)))

    def in_default_order(self) -> Shape:
        """Return the shape with every layout in descending order; the rest of the layouts is unchanged."""
        return self.map_leaves(_in_default_order)

    def map_leaves(self, change: Callable[[Shape], Shape]) -> Shape:
        """Return the shape with `change(leaf)` for each leaf; tuples may be nested to any depth."""
        done: list[Shape] = []
        waiting: list[tuple[Shape, bool]] = [(self, False)]
        while waiting:
            shape, has_elements = waiting.pop()
            if not shape.is_tuple:
                done.append(change(shape))
            elif has_elements:
                first = len(done) - len(shape.tuple_shapes)
                done[first:] = [replace(shape, tuple_shapes=tuple(done[first:]))]
            else:
                waiting.append((shape, True))
                waiting += [(element, False) for element in reversed(shape.tuple_shapes)]
        return done[0]

    def same_dims(self, other: Shape) -> bool:
        """True if both are arrays of equal dimensions; element type and layout are ignored."""
        return self.is_array and other.is_array and self.dims == other.dims

    def compatible(self, other: Shape) -> bool:
        """True if the shapes are equal up to layouts (XLA's `Compatible`)."""
        waiting: list[tuple[Shape, Shape]] = [(self, other)]
        while waiting:
            one, two = waiting.pop()
            if one.element_type != two.element_type or one.dims != two.dims:
                return False
            if one.tuple_shapes or two.tuple_shapes:
                if len(one.tuple_shapes) != len(two.tuple_shapes):
                    return False
                waiting += zip(one.tuple_shapes, two.tuple_shapes, strict=True)
        return True

    def same_dynamic_dims(self, other: Shape) -> bool:
        """True if this shape and a compatible one have the same dynamic dimensions."""
        pairs = zip(self.leaves(), other.leaves(), strict=True)
        return all(one is two or one._dynamic_numbers() == two._dynamic_numbers() for (_, one), (_, two) in pairs)

    def covers_dynamic_dims(self, other: Shape) -> bool:
        """True if this shape is dynamic wherever a compatible one is."""
        if self is other:
            return True
        pairs = zip(self.leaves(), other.leaves(), strict=True)
        return all(one is two or one._dynamic_numbers() >= two._dynamic_numbers() for (_, one), (_, two) in pairs)

    def _dynamic_numbers(self) -> set[int]:
        return {number for number, is_dynamic in enumerate(self.dynamic_dims) if is_dynamic}

    def to_string(self, layout: bool = True) -> str:
        """Return HLO text: `f32[2,3]{1,0}`, `(f32[], s32[4]{0})`; without `layout`, XLA's human string.

        Scalars and tokens have no plain layout. Tuples get `/*index=5*/` before every fifth element, as in XLA.
        """
        if self.element_type not in ("tuple", "buffer"):
            return self._leaf_text(layout)
        parts: list[str] = []
        waiting: list[Shape | str] = [self]
        while waiting:
            item = waiting.pop()
            if isinstance(item, str):
                parts.append(item)
            elif item.element_type == "buffer":
                waiting += (")", item.tuple_shapes[0], "b(")
            elif item.is_tuple:
                parts.append("(")
                waiting.append(")")
                for number in reversed(range(len(item.tuple_shapes))):
                    waiting.append(item.tuple_shapes[number])
                    if number:
                        waiting.append(", " if number % 5 else f", /*index={number}*/")
            else:
                parts.append(item._leaf_text(layout))
        return "".join(parts)

    def _leaf_text(self, layout: bool) -> str:
        if self.dynamic_dims:
            pairs = zip(self.dims, self.dynamic_dims, strict=True)
            dims = ",".join("?" if d == UNBOUNDED else f"<={d}" if dynamic else str(d) for d, dynamic in pairs)
        else:
            dims = ",".join(map(str, self.dims))
        text = f"{self.element_type}[{dims}]"
        if layout and self.layout and (self.dims or self.layout.extra):
            text += str(self.layout)
        return text

    def __str__(self) -> str:
        return self.to_string()


def _in_default_order(leaf: Shape) -> Shape:
    if leaf.layout is None:
        return leaf
    return replace(leaf, layout=replace(leaf.layout, minor_to_major=tuple(reversed(range(leaf.rank)))))
