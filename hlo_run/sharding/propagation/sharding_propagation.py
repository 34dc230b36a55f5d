"""Move the shardings of annotated instructions to all others, forwards and backwards, until none improves.

    x = f32[8] parameter(0), sharding={devices=[4]<=[4]}; y = f32[8] tanh(x)   =>   y = .., sharding={devices=[4]<=[4]}

Eagerness grows in four levels: elementwise instructions first, broadcasts last. Instructions with a sharding keep it;
custom calls `Sharding` become copies with theirs. The result of the entry gets one if the header's
`allow_spmd_sharding_propagation_to_output` says so. Parameters get a new one only by the option `to_parameters`: XLA:GPU does not
read the header's flags for them. XLA's `ShardingPropagation`, as XLA:GPU runs it.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from hlo_run.hlo.edit import InstructionMaker
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.values.sharding import Sharding, SingleSharding
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.sharding.propagation.annotations import clean, take_annotations
from hlo_run.sharding.propagation.fixpoint import related, run_to_fixpoint
from hlo_run.sharding.propagation.state import Propagation, is_barrier, is_call_to, set_sharding
from hlo_run.sharding.values.make import REPLICATED, divides_evenly, elements_of, for_shape, part_of
from hlo_run.sharding.values.merge import common, merged
from hlo_run.sharding.values.replicate import keep_dims

_LEVELS = 4


class ShardingPropagation(Struct, frozen=True):
    """The pass; see the module's docstring.

    `to_output` and `to_parameters` name the values that may get a sharding: `true` or `false` for all, or a flag for each
    element of the result and each parameter: `true+false`. Without `to_output` the header decides.
    """

    name: ClassVar[str] = "sharding-propagation"
    to_output: str = ""
    to_parameters: str = "false"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit `module` in place."""
        del ctx
        if module.is_propagated or not any(i.sharding is not None for i in module.instructions):
            return
        flags = module.propagates_to_output or (False,)
        to_output = _flags(self.to_output) if self.to_output else flags
        to_parameters = _flags(self.to_parameters)
        run = Propagation(any(to_output), any(to_parameters))
        clean(run, module)
        take_annotations(run, module)
        entry = module.entry
        saved = elements_of(entry.root.sharding) if entry.root.shape.is_tuple and entry.root.sharding is not None else ()
        of_parameters = [parameter.sharding for parameter in entry.parameters]
        _find_callers(run, module)
        _find_provided(run, module)
        for level in range(_LEVELS):
            run_to_fixpoint(run, module, level)
        if run.groups:
            _align_groups(run)
            run_to_fixpoint(run, module, _LEVELS - 1)
        _remove_barriers(module)
        _keep_outputs(entry, to_output, saved)
        if run.spreads_to_parameters:
            _keep_parameters(entry, to_parameters, of_parameters)


def _flags(text: str) -> tuple[bool, ...]:
    return tuple(part.strip().lower() == "true" for part in text.split("+"))


def _computations(module: HloModule) -> list[HloComputation]:
    return [c for c in module.computations if not c.is_fusion]


def _find_callers(run: Propagation, module: HloModule) -> None:
    """Note the callers of computations, and give one sharding to all values that must have the same."""
    for computation in _computations(module):
        for instruction in list(computation.instructions):
            if instruction.opcode not in ("while", "conditional", "call"):
                continue
            group = related(run, instruction)
            first = next((member for member in group if member.sharding is not None), None)
            for member in group if first is not None else ():
                assert first is not None
                member.attrs["sharding"] = first.given_sharding
            for called in instruction.called_computations:
                run.caller[called] = instruction


def _find_provided(run: Propagation, module: HloModule) -> None:
    """Note the instructions whose sharding stays, and replicate those whose sharding is unknown."""
    entry = module.entry
    for computation in _computations(module):
        for instruction in computation.instructions:
            is_free = instruction is entry.root or instruction.opcode == "parameter" or _is_unknown(instruction)
            is_free = is_free or instruction in run.open
            if instruction.sharding is not None and not is_free:
                run.provided.add(instruction)
    root = entry.root
    if not run.spreads_to_output and not _is_unknown(root):
        if root.opcode == "while":
            copy = InstructionMaker(where=root.where).add("copy", root.shape, [root])
            if root.sharding is not None:
                copy.attrs["sharding"] = root.sharding
            root = entry.add(copy, is_root=True)
        run.provided.add(root)
    if not run.spreads_to_parameters:
        run.provided.update(p for p in entry.parameters if p.sharding is not None and not _is_unknown(p))
    for computation in _computations(module):
        for instruction in computation.instructions:
            if _is_unknown(instruction):
                set_sharding(instruction, REPLICATED)


def _is_unknown(instruction: HloInstruction) -> bool:
    return instruction.sharding is not None and all(leaf.kind == "unknown" for leaf in elements_of(instruction.sharding))


def _align_groups(run: Propagation) -> None:
    """Give the members of each group that must agree one sharding: the merge of all if they merge, else the first one."""
    for number, group in run.groups.items():
        if number in run.like_groups:
            continue
        shardings = [elements_of(member.sharding)[0] for member in group if member.sharding is not None]
        plain = [elements_of(m.sharding)[0] for m in group if m.sharding is not None and not is_call_to(m, "ShardBarrierFrom")]
        default = next((sharding for sharding in plain if not sharding.is_replicated), REPLICATED)
        agreed = common(shardings, default) if shardings else default
        for member in group:
            if is_call_to(member, "ShardBarrierTo"):
                continue
            dims = run.unspecified.get(member)
            if member in run.provided and dims is not None and isinstance(member.sharding, SingleSharding):
                old = member.sharding
                member.attrs["sharding"] = merged(keep_dims(agreed, dims), old, old.tile_count + 1) or old
            set_sharding(member, agreed)


def _remove_barriers(module: HloModule) -> None:
    for computation in _computations(module):
        for instruction in [i for i in computation.instructions if is_barrier(i)]:
            operand = instruction.operands[0]
            module.replace_uses(instruction, operand)
            computation.remove(instruction)


def _keep_outputs(entry: HloComputation, to_output: tuple[bool, ...], saved: tuple[SingleSharding, ...]) -> None:
    """Give elements of the result back the shardings that must stay, and replicate those that do not divide evenly."""
    root = entry.root
    if root.sharding is None:
        return
    leaves = list(elements_of(root.sharding))
    if saved and len(saved) == len(to_output) == len(leaves) and any(to_output):
        kept = zip(saved, leaves, to_output, strict=True)
        leaves = [old if not may and old.kind != "unknown" else new for old, new, may in kept]
        root.attrs["sharding"] = for_shape(root.shape, leaves)
    if root.shape.is_tuple and len(to_output) == len(root.shape.tuple_shapes) == len(leaves):
        for number, (may, shape) in enumerate(zip(to_output, root.shape.tuple_shapes, strict=True)):
            if may and not divides_evenly(shape, part_of(root.sharding, root.shape, number)):
                leaves[number] = REPLICATED
        root.attrs["sharding"] = for_shape(root.shape, leaves)
    elif not root.shape.is_tuple and to_output[0] and not divides_evenly(root.shape, root.sharding):
        root.attrs["sharding"] = REPLICATED


def _keep_parameters(entry: HloComputation, to_parameters: tuple[bool, ...], saved: list[Sharding | None]) -> None:
    """Give parameters back what must stay. A new sharding that does not divide a parameter evenly becomes replicated."""
    everywhere = to_parameters == (True,)
    for number, (parameter, old) in enumerate(zip(entry.parameters, saved, strict=True)):
        may = everywhere or (number < len(to_parameters) and to_parameters[number])
        if not may and old is not None and any(leaf.kind != "unknown" for leaf in elements_of(old)):
            parameter.attrs["sharding"] = old
        elif not may:
            parameter.attrs.pop("sharding", None)
        elif parameter.sharding is not None and not divides_evenly(parameter.shape, parameter.sharding):
            set_sharding(parameter, REPLICATED)
