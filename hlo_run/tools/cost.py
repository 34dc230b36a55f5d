"""`hlo-tool cost`: XLA's cost analysis of a module, and of its instructions."""

from __future__ import annotations

import json

import click

from hlo_run.analysis.cost.module_cost import BYTES, FLOPS, TRANSCENDENTALS, ModuleCost, cost_analysis
from hlo_run.columns import aligned
from hlo_run.execution.console import Console
from hlo_run.hlo.graph import HloModule
from hlo_run.hlo.opcodes.names import opcode_set
from hlo_run.tools.read import read

_HELP = """Print the cost of FILE by XLA's HloCostAnalysis: flops, transcendental functions and bytes accessed.

A loop counts one iteration. Custom calls count -1 flop and -1 byte, as XLA does not know their cost. The module is not compiled:
'hlo-run --stage=hlo --output_file=OPT.hlo FILE' writes the optimised module."""
_FREE = opcode_set("parameter constant tuple get-tuple-element bitcast")
_COLUMNS = (FLOPS, TRANSCENDENTALS, BYTES)


@click.command("cost", help=_HELP)
@click.argument("file")
@click.option("--all", "each", is_flag=True, help="Also print the cost of every instruction, the dearest first.")
@click.option("--format", "form", type=click.Choice(("text", "json")), default="text", help="Print in this format.")
@click.pass_obj
def command(console: Console, file: str, each: bool, form: str) -> None:
    """Print the sums, and with --all one line per instruction that costs something."""
    module = read(file)
    cost = cost_analysis(module)
    if form == "json":
        console.artefact(json.dumps(_record(module, cost, each), indent=1))
        return
    if each:
        rows = [(name, opcode, *(f"{value:,.0f}" for value in values)) for name, opcode, values in _rows(cost)]
        table = [("instruction", "opcode", *_COLUMNS), *rows]
        console.out("\n".join([*aligned(table, right=range(2, len(table[0]))), ""]))
    sums = [cost.properties.get(name, 0.0) for name in _COLUMNS]
    console.out(f"{module.name}: {', '.join(f'{value:,.0f} {name}' for value, name in zip(sums, _COLUMNS, strict=True))}")


def _rows(cost: ModuleCost) -> list[tuple[str, str, tuple[float, ...]]]:
    rows = [
        (f"%{instruction.name}", instruction.opcode, tuple(values.get(name, 0.0) for name in _COLUMNS))
        for instruction, values in cost.instructions.items()
        if instruction.opcode not in _FREE
    ]
    return sorted(rows, key=lambda row: (-row[2][-1], -row[2][0], row[0]))


def _record(module: HloModule, cost: ModuleCost, each: bool) -> dict[str, object]:
    record: dict[str, object] = {"module": module.name, "properties": dict(cost.properties)}
    if each:
        record["instructions"] = {
            instruction.name: {"opcode": instruction.opcode, **values} for instruction, values in cost.instructions.items()
        }
    return record
