"""Make a bare fusion computation runnable: add an entry with one fusion, as XLA's loader of emitter tests does."""

from __future__ import annotations

from hlo_run.hlo.edit import InstructionMaker
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.values.shape import Shape


def wrap_bare_module(module: HloModule) -> HloModule:
    """Add an `ENTRY generated_main` to `module` if its text had neither a header nor an ENTRY; return `module`.

    The new entry calls the last computation in one kLoop fusion on its parameters. Nested result tuples are flattened,
    as no kernel returns them. A last computation that contains a fusion remains the entry.
    """
    body = module.entry
    if module.has_header or module.has_entry or any(i.opcode == "fusion" for i in body.instructions):
        return module
    fusion = fusion_of_entry(module, "fusion.generated", "kLoop")
    entry = module.entry
    if any(shape.is_tuple for shape in fusion.shape.tuple_shapes):
        leaves = _leaves(entry, fusion, "gte")
        flat = Shape.make_tuple(tuple(leaf.shape for leaf in leaves))
        entry.root = InstructionMaker(entry, body.where).add("tuple", flat, leaves, name="tuple.generated")
    module.has_entry = True
    return module


def fusion_of_entry(module: HloModule, name: str, kind: str) -> HloInstruction:
    """Add a new entry to `module` that is one fusion of its old entry; return the fusion."""
    body = module.entry
    entry = HloComputation("generated_main", body.where)
    parameters: list[HloInstruction] = []
    for parameter in body.parameters:
        maker = InstructionMaker(entry, parameter.where)
        parameters.append(maker.parameter(parameter.parameter_number, parameter.shape, parameter.name))
    called = {"calls": (body,)}
    fusion = entry.root = InstructionMaker(entry, body.where).add("fusion", body.root.shape, parameters, called, name, kind=kind)
    module.add_computation(entry, is_entry=True)
    return fusion


def _leaves(entry: HloComputation, source: HloInstruction, name: str) -> list[HloInstruction]:
    """Add get-tuple-elements down to every leaf of `source` and return the leaves in order."""
    if not source.shape.is_tuple:
        return [source]
    leaves: list[HloInstruction] = []
    maker = InstructionMaker(entry, source.where)
    for index in range(len(source.shape.tuple_shapes)):
        leaves += _leaves(entry, maker.get_tuple_element(source, index, f"{name}.{index}"), f"{name}.{index}")
    return leaves
