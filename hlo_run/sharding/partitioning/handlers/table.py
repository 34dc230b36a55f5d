"""The handler of each opcode. An instruction without one is computed whole on all devices."""

from __future__ import annotations

from hlo_run.analysis.elementwise import is_elementwise
from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.sharding.partitioning.handlers import (
    convolutions,
    dots,
    dynamic,
    feeds,
    gathers,
    plain,
    reductions,
    rotate,
    scatters,
    shapes,
)
from hlo_run.sharding.partitioning.handlers.ragged import ragged_dot
from hlo_run.sharding.partitioning.handlers.select_and_scatter import select_and_scatter
from hlo_run.sharding.partitioning.handlers.top_k import top_k
from hlo_run.sharding.partitioning.handlers.transforms import fft
from hlo_run.sharding.partitioning.handlers.visit import Handler, Visit
from hlo_run.sharding.partitioning.preparation import ROTATE
from hlo_run.sharding.partitioning.state import Part

_HANDLERS: dict[Opcode, Handler] = {
    "all-reduce": plain.elementwise,
    "bitcast-convert": plain.bitcast_convert,
    "broadcast": plain.broadcast,
    "call": plain.call,
    "cholesky": plain.matrix_solve,
    "concatenate": plain.concatenate,
    "conditional": plain.conditional,
    "constant": plain.constant,
    "convolution": convolutions.convolution,
    "custom-call": plain.custom_call,
    "dot": dots.dot,
    "dynamic-slice": dynamic.dynamic_slice,
    "dynamic-update-slice": dynamic.dynamic_update_slice,
    "fft": fft,
    "gather": gathers.gather,
    "get-tuple-element": plain.element,
    "infeed": feeds.infeed,
    "iota": plain.iota,
    "opt-barrier": plain.elementwise,
    "outfeed": feeds.outfeed,
    "pad": shapes.pad,
    "parameter": plain.parameter,
    "ragged-dot": ragged_dot,
    "reduce": reductions.reduce,
    "reduce-window": reductions.reduce_window,
    "reshape": shapes.reshape,
    "reverse": shapes.reverse,
    "rng": plain.rng,
    "scatter": scatters.scatter,
    "select-and-scatter": select_and_scatter,
    "slice": shapes.slice_values,
    "sort": reductions.sort,
    "transpose": plain.transposed,
    "triangular-solve": plain.matrix_solve,
    "tuple": plain.make_tuple,
    "while": plain.loop,
}


def handler_of(instruction: HloInstruction) -> Handler:
    """Return the handler of an instruction's opcode."""
    if instruction.opcode == "collective-permute" and instruction.channel_id is not None:
        return plain.elementwise
    if instruction.opcode == "custom-call" and instruction.custom_call_target == ROTATE and not instruction.shape.is_tuple:
        return rotate.rotate
    if instruction.opcode == "custom-call" and instruction.custom_call_target == "TopK":
        return top_k
    found = _HANDLERS.get(instruction.opcode)
    if found is not None:
        return found
    return plain.elementwise if is_elementwise(instruction) and instruction.operands else _default


def _default(v: Visit) -> Part:
    return v.by_default()
