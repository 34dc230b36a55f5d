"""Exchange the pieces of a ragged-all-to-all in an all-to-all of whole arrays.

    out' = ragged-all-to-all(x, out, starts, sizes, places, received)
        =>   t = (f32[1,16,8], ..) all-to-all(x from starts[0], x from starts[1], ..)       16: the rows of x
             out' = select(places'[0] <= row < places'[0] + received[0], t[0] at places'[0], out), and so on

`places` says where a piece goes in the receiver's output, so devices exchange the places first. Arrays are padded, so that no
dynamic-slice clamps. XLA's `RaggedAllToAllDecomposer`.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from msgspec import Struct

from hlo_run.hlo.edit import Editor
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo_passes.collectives.communication.shards import participants
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.records import replace


class RaggedAllToAllDecomposer(Struct, frozen=True):
    """The pass; see the module's docstring. Takes offsets of 64 bits with one dimension."""

    name: ClassVar[str] = "ragged-all-to-all-decomposer"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        del ctx
        for exchange in module.in_post_order("ragged-all-to-all"):
            count, offsets = participants(exchange), exchange.operands[2].shape
            if not exchange.shape.is_array or count < 1 or offsets.element_type != "s64" or offsets.rank != 1:
                continue
            module.replace_uses(exchange, _Exchange(exchange, count, Editor(exchange, derives=False)).result())
            assert exchange.parent is not None, "it is in a computation"
            exchange.parent.remove(exchange)


class _Exchange(Struct):
    """The instructions that replace a ragged-all-to-all of `count` devices."""

    old: HloInstruction
    count: int
    editor: Editor

    def result(self) -> HloInstruction:
        """Return the output with the pieces that the device receives."""
        _, output, starts, _, places, received = self.old.operands
        places = self._exchanged_places(places)
        together = self._sent(starts)
        padded = self._padded(output, self.old.operands[0].shape.dims[0])
        pieces = starts.shape.dims[0]
        for piece in range(pieces // self.count * self.count):
            device, row = divmod(piece, pieces // self.count)
            padded = self._with_piece(padded, self._piece(together, device, row), piece, places, received)
        return self.editor.slice(padded, [0] * output.shape.rank, output.shape.dims)

    def _collective(self, shape: Shape, values: list[HloInstruction]) -> HloInstruction:
        made = self.editor.add("all-to-all", shape, values)
        for name in ("replica_groups", "channel_id"):
            if name in self.old.attrs:
                made.attrs[name] = self.old.attrs[name]
        return made

    def _exchanged_places(self, places: HloInstruction) -> HloInstruction:
        (pieces,) = places.shape.dims
        by_device = self.editor.add("reshape", Shape.array("s64", (self.count, pieces // self.count)), [places])
        exchanged = self._collective(by_device.shape, [by_device])
        exchanged.attrs["dimensions"] = (0,)
        return self.editor.add("reshape", Shape.array("s64", (pieces,)), [exchanged])

    def _sent(self, starts: HloInstruction) -> HloInstruction:
        """Return what each device sends to this one: for each of its pieces all rows from the start, some of them not meant."""
        value, per_device = self.old.operands[0], starts.shape.dims[0] // self.count
        dims = value.shape.dims
        sent: list[HloInstruction] = []
        for device in range(self.count):
            rows: list[HloInstruction] = []
            for piece in range(device * per_device, (device + 1) * per_device):
                index = self._index(starts, piece, len(dims))
                padded = self._padded(value, dims[0])
                row = self.editor.add("dynamic-slice", value.shape, [padded, *index], dynamic_slice_sizes=dims)
                rows.append(self.editor.add("reshape", Shape.array(value.shape.element_type, (1, *dims)), [row]))
            shape = Shape.array(value.shape.element_type, (per_device, *dims))
            sent.append(self.editor.add("concatenate", shape, rows, dimensions=(0,)))
        return self._collective(Shape.make_tuple(tuple(part.shape for part in sent)), sent)

    def _piece(self, together: HloInstruction, device: int, row: int) -> HloInstruction:
        part = self.editor.add("get-tuple-element", together.shape.tuple_shapes[device], [together], index=device)
        dims = part.shape.dims
        one = self.editor.slice(part, [row, *[0] * (len(dims) - 1)], [row + 1, *dims[1:]])
        return self.editor.add("reshape", Shape.array(part.shape.element_type, dims[1:]), [one])

    def _with_piece(
        self, padded: HloInstruction, piece: HloInstruction, number: int, places: HloInstruction, received: HloInstruction
    ) -> HloInstruction:
        """Write a piece: put it among zeros, and select the rows that were received."""
        editor, dims = self.editor, padded.shape.dims
        index = self._index(places, number, len(dims))
        zeros = editor.broadcast(editor.constant(0, padded.shape.element_type), dims)
        update = editor.add("dynamic-update-slice", padded.shape, [zeros, piece, *index])
        rows = editor.iota("s64", dims)
        first = editor.broadcast(self._scalar(places, number), dims)
        size = editor.broadcast(self._scalar(received, number), dims)
        end = editor.binary("add", first, size)
        is_received = editor.binary("and", editor.compare(rows, first, "GE"), editor.compare(rows, end, "LT"))
        return editor.add("select", padded.shape, [is_received, update, padded])

    def _index(self, offsets: HloInstruction, place: int, rank: int) -> list[HloInstruction]:
        zero = self.editor.constant(np.int64(0), "s64")
        return [self._scalar(offsets, place), *[zero] * (rank - 1)]

    def _scalar(self, values: HloInstruction, place: int) -> HloInstruction:
        one = self.editor.slice(values, [place], [place + 1])
        return self.editor.add("reshape", Shape.array(values.shape.element_type, ()), [one])

    def _padded(self, value: HloInstruction, rows: int) -> HloInstruction:
        """Append rows of zeros."""
        zero = self.editor.constant(0, value.shape.element_type)
        dims = (value.shape.dims[0] + rows, *value.shape.dims[1:])
        edges = ((0, rows, 0), *[(0, 0, 0)] * (len(dims) - 1))
        return self.editor.add("pad", replace(value.shape, dims=dims), [value, zero], padding=edges)
