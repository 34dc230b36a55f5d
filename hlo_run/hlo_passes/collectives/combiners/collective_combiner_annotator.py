"""Note in the module's header how many bytes the combiners may use, and which collectives would run beside no other work.

    HloModule m                        =>   HloModule m, frontend_attributes={suggested_combiner_threshold="80635830118"}
    a = f32[8] all-reduce(x), ..       =>   a = f32[8] all-reduce(x), .., frontend_attributes={sync_collective="true"}

A trial decides: a copy of the module gets asynchronous collectives and a schedule. The limit is the device's memory, by the slop
factor of the scheduler, without the peak of the trial. Nothing happens if no memory is left, or for devices of one host: those
are fast enough without. XLA's `CollectiveCombinerAnnotator`.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.analysis.executed_computations import executed_computations
from hlo_run.analysis.latency.async_kinds import is_sync
from hlo_run.analysis.latency.collective_times import network_of
from hlo_run.analysis.latency.least_memory import least_memory_orders
from hlo_run.hlo.frontend_attributes import frontend_attribute, set_frontend_attribute
from hlo_run.hlo.graph import HloModule
from hlo_run.hlo.opcodes.traits import COLLECTIVE
from hlo_run.pass_support.hlo_pass import HloPass, PassContext

_NUMBER = "collective_id"


class CollectiveCombinerAnnotator(Struct, frozen=True):
    """The pass; see the module's docstring.

    `conversion` makes the collectives of the trial asynchronous. `overlap` lets them run beside work, and makes the others
    synchronous again.
    """

    name: ClassVar[str] = "collective-combiner-annotator"
    conversion: tuple[HloPass, ...] = ()
    overlap: tuple[HloPass, ...] = ()

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        network = network_of(ctx.target, ctx.options.xla_gpu_analytical_latency_estimator_options)
        if module.replica_count * module.num_partitions <= network.devices_per_host:
            return
        collectives = module.instructions_of(*COLLECTIVE)
        for number, collective in enumerate(collectives):
            set_frontend_attribute(collective, _NUMBER, str(number))
        trial = module.clone()
        for collective in collectives:
            set_frontend_attribute(collective, _NUMBER, None)
        peak_bytes = self._schedule(ctx, trial)
        left = ctx.target.device_memory_size_bytes * ctx.options.xla_gpu_memory_limit_slop_factor // 100 - peak_bytes
        if left <= 0:
            return
        set_frontend_attribute(module, "suggested_combiner_threshold", str(left))
        alone = {frontend_attribute(each, _NUMBER) for each in trial.instructions_of(*COLLECTIVE) if is_sync(each)}
        for number, collective in enumerate(collectives):
            if str(number) in alone:
                set_frontend_attribute(collective, "sync_collective", "true")
        module.version += 1

    def _schedule(self, ctx: PassContext, trial: HloModule) -> int:
        """Schedule the trial as the module will be, and return the peak in bytes of the order that saves memory."""
        for each in self.conversion:
            each.apply(ctx, trial)
        orders, peak_bytes = least_memory_orders(trial, set(executed_computations(trial)), {})
        trial.schedule = orders
        trial.attrs["is_scheduled"] = True
        for each in self.overlap:
            each.apply(ctx, trial)
        return peak_bytes
