"""The measured speeds that the scheduler uses for a GPU: XLA's tables, or the user's tables in their place."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from hlo_run.analysis.latency.measured_tables import MeasuredTable, nearest, permutation_kind, read_table
from hlo_run.analysis.latency.speed_tables import collective_seconds, permute_seconds, product_seconds, table_of
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.options import CompileOptions
from hlo_run.target import TargetSpec


class Speeds(Struct, frozen=True):
    """The tables of a GPU. `own` is the name of XLA's; a table of the user replaces it for collectives or products."""

    own: str
    collectives: MeasuredTable | None = None
    products: MeasuredTable | None = None

    def collective(self, opcode: Opcode, groups: int, devices: int, size_bytes: int, element_type: str) -> float | None:
        """Return the seconds of a collective within a host; None for an opcode without a measurement.

        There are `groups` groups of `devices` devices each. `opcode` is that of the synchronous collective.
        """
        if self.collectives is None:
            return collective_seconds(self.own, opcode, devices, size_bytes)
        # XLA looks for a measurement of the same groups and type first, but finds those of reduce-scatters only.
        exact = self.collectives.exact.get((opcode, groups, devices, element_type)) if opcode == "reduce-scatter" else None
        if exact is not None:
            return size_bytes / nearest(exact, (size_bytes,))
        points = self.collectives.collectives.get(opcode)
        return None if points is None else size_bytes / nearest(points, (size_bytes, devices))

    def permutation(self, pairs: Sequence[Sequence[int]], size_bytes: int) -> float | None:
        """Return how many seconds a permutation within a host takes; None if no such permutation was measured."""
        if self.collectives is None:
            return permute_seconds(self.own, pairs, size_bytes)
        points = self.collectives.permutations.get(permutation_kind(pairs)) if pairs else None
        return None if points is None else size_bytes / nearest(points, (size_bytes,))

    def product(self, types: str, element_bytes: int, point: tuple[int, int, int, int]) -> float:
        """Return the seconds of `b` products of m by k and k by n elements, as `product_seconds` does."""
        if self.products is None:
            return product_seconds(self.own, types, element_bytes, point)
        batch, rows, inner, columns = point
        sized = batch, rows * element_bytes, inner * element_bytes, columns * element_bytes
        operations = 2 * sized[0] * sized[1] * sized[2] * sized[3]
        return operations / nearest(self.products.products, sized)


def speeds_of(target: TargetSpec, options: CompileOptions, devices_per_host: int) -> Speeds | None:
    """Return the speeds of a GPU; None if XLA has no tables for it.

    Raises UsageError for a table of the user that cannot be read.
    """
    own = table_of(target)
    if own is None:
        return None

    def given(path: str) -> MeasuredTable | None:
        return read_table(path, own, target.clock_rate_ghz, devices_per_host) if path else None

    collectives = given(options.xla_gpu_experimental_collective_perf_table_path)
    products = given(options.xla_gpu_experimental_matmul_perf_table_path)
    return Speeds(own, collectives, products if products is not None and products.products else None)
