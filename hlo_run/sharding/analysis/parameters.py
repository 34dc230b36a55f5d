"""The division of a module's parameters by their shardings, before anything is propagated."""

from __future__ import annotations

from hlo_run.artifact.division import Division
from hlo_run.hlo.frontend_attributes import frontend_attribute
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.values.sharding import Sharding, SingleSharding, TupleSharding
from hlo_run.sharding.analysis.division import division_of
from hlo_run.sharding.values import shardy
from hlo_run.sharding.values.make import as_tiles, elements_of


def parameter_divisions(module: HloModule, partitions: int) -> list[tuple[Division | None, ...]]:
    """Return the divisions of the leaves of each parameter of the entry, in the order of `Shape.leaves`.

    None: partitions have arrays of their own there. A leaf without a sharding, or with one for another number of partitions,
    is whole. Attributes of Shardy count like shardings of HLO.
    """
    return [_divisions(module, parameter, partitions) for parameter in module.entry.parameters]


def _divisions(module: HloModule, parameter: HloInstruction, partitions: int) -> tuple[Division | None, ...]:
    leaves = [leaf for _, leaf in parameter.shape.leaves()]
    sharding = parameter.sharding or _shardy_sharding(module, parameter)
    parts = elements_of(as_tiles(sharding)) if sharding is not None else (SingleSharding("replicated"),)
    if len(parts) != len(leaves):
        parts = parts[:1] * len(leaves)
    found: list[Division | None] = []
    for leaf, part in zip(leaves, parts, strict=True):
        is_own = part.is_manual or "manual" in part.subgroups
        fits = part.kind == "tiled" and part.device_count == partitions and part.data_rank == leaf.rank
        used = part if fits or part.kind == "unreduced" else SingleSharding("replicated")
        found.append(None if is_own or not leaf.is_array else division_of(leaf, used, partitions))
    return tuple(found)


def _shardy_sharding(module: HloModule, parameter: HloInstruction) -> Sharding | None:
    """Return the sharding in a parameter's attribute of Shardy; None without one, or if it cannot be read."""
    text = frontend_attribute(parameter, shardy.SHARDING)
    if not text:
        return None
    try:
        return TupleSharding(shardy.read_shardings(text, shardy.read_meshes(frontend_attribute(module, shardy.MESHES) or "{}")))
    except ValueError:
        return None  # the pass over Shardy's attributes says what is wrong
