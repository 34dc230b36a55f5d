"""Propagate Shardy's annotations by Shardy's rules, and write them as shardings of HLO for `spmd-partitioning`.

    x = f32[8] parameter(0), frontend_attributes={xla.sdy.sharding="#sdy.sharding<@mesh, [{\\"a\\"}]>"}; y = f32[8] tanh(x)
        =>   x = f32[8] parameter(0), sharding={devices=[4]<=[4]}; y = f32[8] tanh(x), sharding={devices=[4]<=[4]}

Constraints become copies with their sharding, manual computations become regions between `SPMDFullToShardShape` and
`SPMDShardToFullShape`. Each use of an unreduced value, of which the devices hold addends, completes the sum by an all-reduce in
such a region, unless the use is unreduced too. Values that no loop changes go to the end of its state, and branches take what
they use. A module without annotations is for `sharding-propagation`, and with `--use_shardy_partitioner=false` one without
Shardy's custom calls. XLA's `ShardyXLA`.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.errors import Unsupported
from hlo_run.hlo.graph import HloModule
from hlo_run.pass_support.call_graph import flatten_call_graph
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.sharding.analysis.shardy_attributes import has_shardy_attributes
from hlo_run.sharding.shardy.run import run_shardy
from hlo_run.sharding.values.shardy import PREFIX


class ShardyXla(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "shardy-xla"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit `module` in place.

        Raises Unsupported for annotations that cannot be read, do not fit, or may not be used, and for arrays of dynamic size.
        """
        if not has_shardy_attributes(module):
            return
        if not ctx.options.use_shardy_partitioner:
            _refuse_calls(module)
            return
        _refuse_dynamic_sizes(module)
        flatten_call_graph(module)
        run_shardy(module)
        module.is_propagated = True


def _refuse_dynamic_sizes(module: HloModule) -> None:
    """Raise Unsupported for an array of dynamic size, as XLA's Shardy does."""
    for instruction in module.instructions:
        if any(any(leaf.dynamic_dims) for _, leaf in instruction.shape.leaves()):
            reason = f"Shardy's annotations in a module with arrays of dynamic size (%{instruction.name})"
            raise Unsupported(reason, instruction.where, hint="sharding={..} of GSPMD divides them")


def _refuse_calls(module: HloModule) -> None:
    for call in module.instructions_of("custom-call"):
        if call.custom_call_target.startswith(PREFIX):
            raise Unsupported(f"{call.custom_call_target} without Shardy", call.where, hint="--use_shardy_partitioner")
