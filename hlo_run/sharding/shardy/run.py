"""The steps of Shardy on one module: import, propagation, export."""

from __future__ import annotations

from hlo_run.hlo.edit import bypass, remove_dead
from hlo_run.hlo.graph import HloComputation, HloInstruction, HloModule
from hlo_run.hlo.values.sharding import NamedSharding
from hlo_run.sharding.shardy.annotations import GROUP, RESULT, Annotations, all_dims, is_call
from hlo_run.sharding.shardy.branches import capture_arguments
from hlo_run.sharding.shardy.constants import merge_constants, sink_constants, split_constants
from hlo_run.sharding.shardy.constraints import Given, apply_constraints, open_in_loops
from hlo_run.sharding.shardy.export import Export, close
from hlo_run.sharding.shardy.graph import ShardingSlot, ValueGraph, arguments_of_regions
from hlo_run.sharding.shardy.loops import put_invariants_last
from hlo_run.sharding.shardy.propagate import Propagation
from hlo_run.sharding.shardy.round_trip.names import rename, write_origins
from hlo_run.sharding.shardy.round_trip.shapes import round_trip
from hlo_run.sharding.shardy.unreduced import complete_sums


def run_shardy(module: HloModule) -> None:
    """Propagate the shardings of a module by Shardy's rules, and write them as shardings of HLO.

    The module's call graph must be flat. Raises Unsupported for annotations that cannot be read or do not fit.
    """
    taken = module.instruction_names.copy(), module.computation_names.copy()
    write_origins(module)
    annotations = Annotations.of(module)
    wanted = _take_results(module, annotations)
    _share_elements(module)
    for computation in _control_flow(module):
        merge_constants(computation)
    sink_constants(module)
    changing = put_invariants_last(module)
    given = _given(module, annotations)
    open_in_loops(given, arguments_of_regions(_control_flow(module), annotations), changing)
    for computation in _control_flow(module):
        split_constants(computation, given)
    given = _given(module, annotations, given)
    sums = apply_constraints(module, given, annotations)
    graph = ValueGraph(annotations, given, changing)
    results = graph.build(module.entry)
    _give_unreduced(graph, sums)
    places = [ShardingSlot(sharding) for sharding in wanted]
    Propagation(graph, results, places).run()
    parameters = [value for parameter in module.entry.parameters for value in graph.values[parameter]]
    close(graph, parameters, results, places)
    complete_sums(module, graph, places)
    Export(module, graph).run(places)
    for computation in _control_flow(module):
        merge_constants(computation)
    remove_dead(module)
    capture_arguments(module)
    round_trip(module)
    # XLA makes a new module, so the names given above are free.
    module.instruction_names, module.computation_names = taken
    rename(module, changing)


def _give_unreduced(graph: ValueGraph, sums: Given) -> None:
    """Give values of loops and branches the unreduced axes that constraints on them have: those do not propagate."""
    for value, (sharding,) in sums.items():
        place = graph.values[value][0].place
        old = place.sharding or all_dims(sharding.mesh, value.shape.rank, is_closed=False)
        place.sharding = place.given = NamedSharding(old.mesh, old.dims, old.replicated, sharding.unreduced)


def _take_results(module: HloModule, annotations: Annotations) -> list[NamedSharding | None]:
    """Return the shardings that the custom calls of the entry's results say, one per array, and remove the calls."""
    entry = module.entry
    root = entry.root
    found: list[NamedSharding | None] = []
    for value in root.operands if root.opcode == "tuple" else (root,):
        count = len(list(value.shape.leaves()))
        shardings = annotations.shardings(value, count) if is_call(value, RESULT) else None
        found += shardings if shardings is not None else [None] * count
    for call in [i for i in entry.post_order() if is_call(i, RESULT)]:
        for name in ("sharding", "frontend_attributes"):
            call.attrs.pop(name, None)
        bypass(module, call)
    return found


def _share_elements(module: HloModule) -> None:
    """Let each element of a tuple be read once, as a value has one name in Shardy."""
    for computation in _control_flow(module):
        for source in list(computation.instructions):
            if not source.shape.is_tuple:
                continue
            first: dict[int, HloInstruction] = {}
            for user in [user for user in source.users if user.opcode == "get-tuple-element"]:
                kept = first.setdefault(user.tuple_index, user)
                if kept is not user and not user.is_root:
                    module.replace_uses(user, kept)
                    computation.remove(user)


def _given(module: HloModule, annotations: Annotations, known: Given | None = None) -> Given:
    """Return the shardings in attributes; `known` has the shardings of instructions without an attribute."""
    found: Given = dict(known or {})
    for computation in _control_flow(module):
        for instruction in computation.instructions:
            # The elements of a tuple have no attributes of their own in StableHLO.
            if instruction in found or instruction.opcode == "get-tuple-element" or is_call(instruction, RESULT, GROUP):
                continue
            shardings = annotations.shardings(instruction, len(list(instruction.shape.leaves())))
            if shardings is not None:
                found[instruction] = shardings
    return found


def _control_flow(module: HloModule) -> list[HloComputation]:
    """Return the entry and the computations that control flow calls."""
    found: dict[HloComputation, None] = {}

    def visit(computation: HloComputation) -> None:
        if computation in found:
            return
        found[computation] = None
        for instruction in computation.instructions:
            if instruction.opcode in ("while", "conditional", "call"):
                for called in instruction.called_computations:
                    visit(called)

    visit(module.entry)
    return list(found)
