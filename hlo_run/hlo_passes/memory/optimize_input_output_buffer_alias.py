"""Alias donated parameters to results of the same size that have no alias yet.

    HloModule m, buffer_donor={ (0, {}) }   =>   HloModule m, input_output_alias={ {}: (0, {}, may-alias) }

The largest first, then in the order of parameters and results. A donor without a matching result stays a donor. Mirrors XLA's
pass of this name as its GPU compiler runs it: for registered donors only.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.analysis.buffers.dataflow_values import subshape
from hlo_run.hlo.graph import HloModule
from hlo_run.hlo.values.attribute_values import RawText
from hlo_run.hlo.values.braces import braces
from hlo_run.hlo.verify.config import aliases, donors
from hlo_run.pass_support.hlo_pass import PassContext

_Index = tuple[int, ...]


class OptimizeInputOutputBufferAlias(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "optimize_input_output_buffer_alias"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit the header attributes of `module`."""
        del ctx
        given = donors(module)
        if not given:
            return
        known = aliases(module)
        pairs = _match(module, given, {output for output, *_ in known})
        if not pairs:
            return
        new = {donor: output for output, donor in pairs}
        entries = {
            output: f"({number}, {braces(index)}, {'must' if must else 'may'}-alias)" for output, number, index, must in known
        }
        entries.update({output: f"({number}, {braces(index)}, may-alias)" for (number, index), output in new.items()})
        text = ", ".join(f"{braces(output)}: {entries[output]}" for output in sorted(entries))
        module.attrs["input_output_alias"] = RawText("{ " + text + " }")
        left = [f"({number}, {braces(index)})" for number, index in given if (number, index) not in new]
        if left:
            module.attrs["buffer_donor"] = RawText("{ " + ", ".join(left) + " }")
        else:
            del module.attrs["buffer_donor"]
        module.version += 1


def _match(module: HloModule, given: list[tuple[int, _Index]], taken: set[_Index]) -> list[tuple[_Index, tuple[int, _Index]]]:
    """Return pairs (output index, donor) of equal size."""
    parameters = module.entry.parameters
    givers = [(subshape(parameters[number].shape, index).size_bytes, (number, index)) for number, index in sorted(given)]
    leaves = [(shape.size_bytes, index) for index, shape in module.entry.root.shape.leaves() if shape.is_array]
    takers = [(size, index) for size, index in leaves if index not in taken]
    givers.sort(key=lambda giver: -giver[0])
    takers.sort(key=lambda taker: -taker[0])
    pairs: list[tuple[_Index, tuple[int, _Index]]] = []
    while givers and takers:
        if givers[0][0] > takers[0][0]:
            givers.pop(0)
        elif givers[0][0] < takers[0][0]:
            takers.pop(0)
        else:
            pairs.append((takers.pop(0)[1], givers.pop(0)[1]))
    return pairs
