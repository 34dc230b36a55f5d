"""The custom calls of CUB's scans, `xla.gpu.ext.cub_scan`: running sums along the rows of an array."""

from __future__ import annotations

import re

from msgspec import Struct

from hlo_run.hlo.graph import HloInstruction

# The second is what XLA's `scan-rewriter` makes, before the size of the scratch memory is known.
SCAN = "xla.gpu.ext.cub_scan"
UNSIZED_SCAN = "xla.gpu.ext.cub_scan_unassigned_scratch_size"
SCAN_TARGETS = (SCAN, UNSIZED_SCAN)


class RowScan(Struct, frozen=True):
    """Running sums of an array whose memory, in order, is `columns` x `rows` x `vector` elements; they run along `rows`.

    `is_reverse` sums from the end of a row.
    """

    vector: int
    rows: int
    columns: int
    is_reverse: bool

    @property
    def element_count(self) -> int:
        """The elements of the array."""
        return self.vector * self.rows * self.columns


def row_scan(call: HloInstruction) -> RowScan | None:
    """Return the scan that a backend_config describes, as JSON or as attributes of a typed call; None unless it is a sum."""
    text = call.backend_config
    sizes = [re.search(rf'\b{name}"?\s*[:=]\s*"?(\d+)', text) for name in ("vector_length", "row_length", "column_length")]
    if re.search(r'\bkind"?\s*[:=]\s*("SUM"|1\b)', text) is None:
        return None
    vector, rows, columns = (int(found[1]) if found else 0 for found in sizes)
    return RowScan(vector, rows, columns, re.search(r'\bis_reverse"?\s*[:=]\s*true', text) is not None)
