"""`hlo-tool print-indexing`: the indexing maps from the results of a module's root to its operands."""

from __future__ import annotations

from collections.abc import Iterator

import click

from hlo_run.errors import UsageError
from hlo_run.execution.console import Console
from hlo_run.hlo.graph import HloInstruction
from hlo_run.indexing import IndexingMap
from hlo_run.indexing.printer import map_to_string
from hlo_run.ops.index import fused_maps, operand_map
from hlo_run.tools.read import read

_HELP = """Print the indexing maps of the root of FILE: which elements of each operand an element of each result needs.

The parameters of a fusion get one map for each way in which it reads them."""


@click.command("print-indexing", help=_HELP)
@click.argument("file")
@click.option("--operand_id", default=-1, metavar="N", help="Print only the maps to this operand (-1: all).")
@click.option("--output_id", default=-1, metavar="N", help="Print only the maps of this result (-1: all).")
@click.pass_obj
def command(console: Console, file: str, operand_id: int, output_id: int) -> None:
    """Print the maps, each result and operand below a line that names them. Raises UsageError for a number that is too large."""
    root = read(file).entry.root
    outputs = len(root.shape.tuple_shapes) if root.shape.is_tuple else 1
    if output_id >= outputs or operand_id >= len(root.operands):
        raise UsageError(f"the root '{root.name}' has {outputs} results and {len(root.operands)} operands, counted from 0")
    for output in range(outputs) if output_id < 0 else (output_id,):
        for operand, maps in _maps(root, output):
            if operand_id in (-1, operand):
                console.out(f"Output {output} operand {operand}:")
                for indexing_map in maps:
                    console.out(map_to_string(indexing_map))


def _maps(root: HloInstruction, output: int) -> Iterator[tuple[int, tuple[IndexingMap | None, ...]]]:
    """Yield the number of each operand that the result needs, and the maps to it."""
    if root.opcode == "tuple":
        yield output, (operand_map(root, output),)
        return
    if root.opcode != "fusion":
        yield from ((number, (operand_map(root, number),)) for number in range(len(root.operands)))
        return
    body = root.fused_computation
    result = body.root.operands[output] if body.root.opcode == "tuple" else body.root
    found = fused_maps(result)
    yield from ((number, found[parameter]) for number, parameter in enumerate(body.parameters) if parameter in found)
