"""`hlo-tool extract`: an instruction and the instructions that it needs, as a module."""

from __future__ import annotations

import difflib

import click

from hlo_run.errors import UsageError
from hlo_run.execution.console import Console
from hlo_run.execution.output_files import write_output
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.isolate import isolate_between
from hlo_run.hlo.print_options import FULL
from hlo_run.hlo.printer import module_to_string
from hlo_run.tools.read import read

_HELP = """Print the instruction NAME of FILE, and all instructions that it depends on, as a module.

With --height=N only instructions at most N steps before NAME are in it; what they need becomes parameters. 0: NAME alone.
Computations that it calls are copied."""


@click.command("extract", help=_HELP)
@click.argument("file")
@click.option("--instruction", required=True, metavar="NAME", help="The instruction, of any computation of the module.")
@click.option("--height", default=-1, metavar="N", help="Take N steps of operands (-1: all).")
@click.option("--output", "-o", default="", metavar="FILE", help="Write the module here instead of stdout.")
@click.pass_obj
def command(console: Console, file: str, instruction: str, height: int, output: str) -> None:
    """Print the module. Raises UsageError if no instruction has the name."""
    if height < -1:
        raise UsageError("--height must be at least -1")
    text = module_to_string(extract(read(file), instruction, height), FULL)
    if output:
        write_output(output, text.encode())
    else:
        console.artefact(text.rstrip("\n"))


def extract(module: HloModule, name: str, height: int = -1) -> HloModule:
    """Return the module of the instruction `name` and `height` steps of operands, -1 for all. Raises UsageError."""
    wanted = name.removeprefix("%")
    instructions = {i.name: i for computation in module.computations for i in computation.instructions}
    root = instructions.get(wanted)
    if root is None:
        close = difflib.get_close_matches(wanted, instructions, n=1)
        raise UsageError(f"no instruction is called '{name}'", hint=f"did you mean {close[0]}?" if close else "")
    return isolate_between(root, _inputs(root, height), wanted)


def _inputs(root: HloInstruction, height: int) -> list[HloInstruction]:
    """Return the values that become parameters: the parameters that `root` needs, then those beyond `height` steps."""
    inside: dict[HloInstruction, None] = {}
    inputs: dict[HloInstruction, None] = {}
    level, steps = [root], 0
    while level:
        following: list[HloInstruction] = []
        for instruction in dict.fromkeys(level):
            if instruction in inside or instruction in inputs:
                continue
            if instruction.opcode == "parameter" or steps > height >= 0:
                inputs[instruction] = None
            else:
                inside[instruction] = None
                following += instruction.operands
        level, steps = following, steps + 1
    parameters = sorted((i for i in inputs if i.opcode == "parameter"), key=lambda i: i.parameter_number)
    return [*parameters, *(i for i in inputs if i.opcode != "parameter")]
