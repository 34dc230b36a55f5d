"""Run calls that group collectives asynchronously, as one operation of the communication stream.

    c = call(p), to_apply=f, frontend_attributes={_collectives_group=""}
    =>  s = async-start(p), calls=f.collectives_group;  d = async-done(s)

XLA's `ExplicitCollectivesGroupAsyncWrapper`.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.hlo.edit import InstructionMaker, clone_with_fusions
from hlo_run.hlo.graph import HloModule
from hlo_run.hlo.values.attribute_values import FrontendAttributes
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo_passes.subgraphs.async_pairs import allow_late, replace_by_pair
from hlo_run.pass_support.hlo_pass import PassContext

_MARKER, _GROUP = "_collectives_group", "_scheduling_group_id"


class ExplicitCollectivesGroupAsyncWrapper(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "explicit-collectives-group-async-wrapper"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit `module` in place."""
        del ctx
        for call in module.instructions_of("call"):
            attributes = call.frontend_attributes
            if attributes is None or attributes.get(_MARKER) is None:
                continue
            body = clone_with_fusions(module, call.to_apply, "collectives_group")
            for instruction in body.instructions:
                old = instruction.frontend_attributes
                if old is not None and old.get(_GROUP) is not None:
                    instruction.attrs["frontend_attributes"] = FrontendAttributes(
                        tuple(entry for entry in old.entries if entry[0] != _GROUP)
                    )
            operands = Shape.make_tuple(tuple(operand.shape for operand in call.operands))
            shape = Shape.make_tuple((operands, call.shape))
            name = f"{body.root.opcode}-start"
            start = InstructionMaker(where=call.where).add("async-start", shape, call.operands, {"calls": (body,)}, name=name)
            allow_late(replace_by_pair(module, call, start, "async-done"))
