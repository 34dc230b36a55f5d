"""Let results that are parameters share their buffers.

    ROOT t = (f32[8], f32[8]) tuple(p0, s)   =>   HloModule m, input_output_alias={ {0}: (0, {}, may-alias) }

The first result of each parameter, if neither has an alias yet. XLA's `AliasPassthroughParams`, which XLA:GPU runs before
`copy-insertion` if the `alias_passthrough_params` of the module's config asks for it; run_hlo_module does not.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.hlo.graph import HloModule
from hlo_run.hlo.values.attribute_values import RawText
from hlo_run.hlo.values.braces import braces
from hlo_run.hlo.verify.config import aliases
from hlo_run.pass_support.hlo_pass import PassContext


class AliasPassthroughParams(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "alias_passthrough_params"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit the header attributes of `module`."""
        del ctx
        root = module.entry.root
        if root.opcode != "tuple":
            return
        entries = {
            output: f"({number}, {braces(index)}, {'must' if must else 'may'}-alias)"
            for output, number, index, must in aliases(module)
        }
        taken = {number for _, number, index, _ in aliases(module) if not index}
        new: dict[tuple[int, ...], str] = {}
        for place, value in enumerate(root.operands):
            if value.opcode == "parameter" and value.parameter_number not in taken and (place,) not in entries:
                taken.add(value.parameter_number)
                new[(place,)] = f"({value.parameter_number}, {{}}, may-alias)"
        if new:
            entries |= new
            text = ", ".join(f"{braces(output)}: {entries[output]}" for output in sorted(entries))
            module.attrs["input_output_alias"] = RawText("{ " + text + " }")
            module.version += 1
