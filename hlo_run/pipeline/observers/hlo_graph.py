"""Draws a module as a graph: DOT, and a page that shows it."""

from __future__ import annotations

import html
from collections.abc import Iterator

from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule

# Colours by kind of instruction.
_COLOURS = {
    "parameter": "orange",
    "constant": "gray90",
    "fusion": "gray75",
    "dot": "steelblue1",
    "convolution": "steelblue1",
    "custom-call": "plum",
    "reduce": "mediumpurple1",
    "while": "salmon",
    "conditional": "salmon",
}
_PLAIN = "white"


def dot_text(module: HloModule, label: str, with_fusions: bool = True) -> str:
    """Return the entry computation as a graph in DOT; fusions and called computations are boxes around their instructions.

    `with_fusions` False: fusions are single nodes.
    """
    lines = ["digraph G {", "rankdir = TB;", "compound = true;", f"label = {_quoted(label)};", "labelloc = t;"]
    lines += _computation(module.entry, with_fusions)
    return "\n".join([*lines, "}"]) + "\n"


def html_text(module: HloModule, label: str, with_fusions: bool = True) -> str:
    """Return a page that lists the instructions of the graph with links between them, and holds its DOT."""
    rows = "\n".join(_rows(module, with_fusions))
    source = html.escape(dot_text(module, label, with_fusions))
    return f"""<!DOCTYPE html>
<html><head><meta charset="utf-8"><title>{html.escape(label)}</title>
<style>body {{ font: 14px sans-serif }} td {{ padding: 2px 8px; vertical-align: top; font-family: monospace }}
tr:target {{ background: #ffec99 }}</style></head>
<body><h1>{html.escape(label)}</h1>
<table>
{rows}
</table>
<details><summary>DOT</summary><pre>{source}</pre></details>
</body></html>
"""


def _rows(module: HloModule, with_fusions: bool) -> Iterator[str]:
    for computation in _shown(module.entry, with_fusions):
        yield f'<tr><th colspan="3">{html.escape(computation.name)}</th></tr>'
        for instruction in computation.instructions:
            operands = ", ".join(
                f'<a href="#{_anchor(operand)}">{html.escape(operand.name)}</a>' for operand in instruction.operands
            )
            yield (
                f'<tr id="{_anchor(instruction)}"><td>{html.escape(instruction.name)}</td>'
                f"<td>{html.escape(str(instruction.shape))}</td><td>{instruction.opcode}({operands})</td></tr>"
            )


def _shown(computation: HloComputation, with_fusions: bool) -> Iterator[HloComputation]:
    yield computation
    for instruction in computation.instructions:
        if with_fusions or instruction.opcode != "fusion":
            for called in instruction.called_computations:
                yield from _shown(called, with_fusions)


def _computation(computation: HloComputation, with_fusions: bool) -> Iterator[str]:
    for instruction in computation.instructions:
        inside = instruction.called_computations if with_fusions or instruction.opcode != "fusion" else ()
        if inside:
            yield f"subgraph {_quoted(f'cluster_{instruction.name}')} {{"
            yield f"label = {_quoted(f'{instruction.name} ({instruction.opcode})')};"
        colour = _COLOURS.get(instruction.opcode, _PLAIN)
        text = f"{instruction.opcode} {instruction.name}\n{instruction.shape}"
        yield f"{_quoted(_anchor(instruction))} [label={_quoted(text)}, shape=rect, style=filled, fillcolor={_quoted(colour)}];"
        for called in inside:
            yield from _computation(called, with_fusions)
        if inside:
            yield "}"
    for instruction in computation.instructions:
        for operand in instruction.operands:
            yield f"{_quoted(_anchor(operand))} -> {_quoted(_anchor(instruction))};"


def _anchor(instruction: HloInstruction) -> str:
    return html.escape(instruction.name)


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
