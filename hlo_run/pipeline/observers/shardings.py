"""`--print_sharding`: draws which device holds which piece of the entry's parameters and result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hlo_run.analysis.sharding.drawing import draw, legend
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.shardings.make import MANUAL, REPLICATED
from hlo_run.hlo.values.sharding import Sharding
from hlo_run.hlo_passes.observer import Observer, Step

_PARTITIONER = "spmd-partitioning"


@dataclass(frozen=True)
class ShardingObserver(Observer):
    """Writes the drawings of `module` once its shardings are final, before the partitioner divides it.

    The drawings are those of the entry's parameters and result; with `every` also of its other instructions with a sharding.
    """

    module: HloModule
    every: bool
    write: Callable[[str], None]

    def before(self, step: Step) -> None:
        """Write the drawings if the partitioner comes next."""
        if step.row == _PARTITIONER:
            self.write(drawings(self.module, self.every))


def drawings(module: HloModule, every: bool) -> str:
    """Return the drawings of a module whose shardings are final; `every`: also those of instructions within the entry.

    Without any sharding the module is the program of one partition, and every device has arrays of its own.
    """
    partitions = int(module.attrs.get("num_partitions", 1))
    replicas = int(module.attrs.get("replica_count", 1))
    has_any = any(i.sharding is not None or i.custom_call_target.startswith("SPMD") for i in module.instructions)
    otherwise = REPLICATED if has_any else MANUAL
    entry = module.entry
    parts = [f"Shardings of {module.name} over {partitions} partitions" + (f" of each of {replicas} replicas" * (replicas > 1))]

    def add(title: str, instruction: HloInstruction, sharding: Sharding | None) -> None:
        parts.append(draw(f"{title}%{instruction.name}", instruction.shape, sharding or otherwise, partitions))

    for number, parameter in enumerate(entry.parameters):
        add(f"parameter {number} ", parameter, parameter.sharding)
    for instruction in entry.instructions if every else ():
        if instruction.sharding is not None and instruction.opcode != "parameter" and instruction is not entry.root:
            add("", instruction, instruction.sharding)
    add("result ", entry.root, entry.root.sharding)
    text = "\n\n".join(filter(None, parts))
    return "\n\n".join(filter(None, (text, legend(text)))) + "\n"
