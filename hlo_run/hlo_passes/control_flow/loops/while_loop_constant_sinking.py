"""Sink constants of a loop's state into its body and condition.

    w = while(tuple(i, constant(2))), body: .. get-tuple-element(s), index=1   =>   body: .. constant(2)

Only for elements that the body does not change. XLA's `WhileLoopConstantSinking`.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.hlo.graph import HloModule
from hlo_run.hlo_passes.control_flow.loops.constants import ConstantSinking
from hlo_run.pass_support.hlo_pass import PassContext


class WhileLoopConstantSinking(Struct, frozen=True):
    """The pass; see the module's docstring.

    With `sink_broadcast_of_constants` broadcasts of scalar constants are sunk as well, with `sink_only_scalar_constants` only
    constants without dimensions.
    """

    name: ClassVar[str] = "while-loop-constant-sinking"

    sink_broadcast_of_constants: bool = False
    sink_only_scalar_constants: bool = False

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place, outer loops before inner ones."""
        del ctx
        ConstantSinking(self.sink_broadcast_of_constants, self.sink_only_scalar_constants).run(module)
