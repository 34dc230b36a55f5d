"""`--print_sharding`: draws which device holds which piece of the entry's parameters and result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.values.sharding import Sharding
from hlo_run.pass_support.observer import Observer, Step
from hlo_run.sharding.analysis.drawing import draw, legend
from hlo_run.sharding.values.make import MANUAL, REPLICATED

_PARTITIONER = "spmd-partitioning"


@dataclass
class ShardingObserver(Observer):
    """Writes the drawings of `module` once its shardings are final, before the partitioner divides it.

    The drawings are those of the entry's parameters and result; with `every` also of its other instructions with a sharding.
    If the compilation stops at `stage` before the partitioner, the drawings show the module there.
    """

    module: HloModule
    every: bool
    stage: str
    write: Callable[[str], None]
    is_drawn: bool = False

    def before(self, step: Step) -> None:
        """Write the drawings if the partitioner comes next."""
        if step.row == _PARTITIONER:
            self._draw(is_final=True)

    def after(self, step: Step) -> None:
        """Write the drawings if the compilation stops here."""
        if self.stage in (step.row, f"{step.pipeline}/{step.row}"):
            self._draw(is_final=False)

    def _draw(self, *, is_final: bool) -> None:
        if not self.is_drawn:
            self.is_drawn = True
            self.write(drawings(self.module, self.every, is_final))


def drawings(module: HloModule, every: bool, is_final: bool = True) -> str:
    """Return the drawings of a module; `every`: also of instructions within the entry.

    If the shardings are final, a value without one is whole on every device. Without any sharding the module is the program of
    one partition, and every device has arrays of its own. If they are not final, the propagation chooses those that are missing.
    """
    partitions = module.num_partitions
    replicas = module.replica_count
    has_any = any(i.sharding is not None or i.custom_call_target.startswith("SPMD") for i in module.instructions)
    otherwise = REPLICATED if has_any else MANUAL
    entry = module.entry
    parts = [f"Shardings of {module.name} over {partitions} partitions" + (f" of each of {replicas} replicas" * (replicas > 1))]

    def add(title: str, instruction: HloInstruction, sharding: Sharding | None) -> None:
        if sharding is None and not is_final:
            parts.append(f"{title}%{instruction.name} {instruction.shape.to_string(layout=False)}: no sharding yet")
        else:
            parts.append(draw(f"{title}%{instruction.name}", instruction.shape, sharding or otherwise, partitions))

    for number, parameter in enumerate(entry.parameters):
        add(f"parameter {number} ", parameter, parameter.sharding)
    for instruction in entry.instructions if every else ():
        if instruction.sharding is not None and instruction.opcode != "parameter" and instruction is not entry.root:
            add("", instruction, instruction.sharding)
    add("result ", entry.root, entry.root.sharding)
    text = "\n\n".join(filter(None, parts))
    return "\n\n".join(filter(None, (text, legend(text)))) + "\n"
