"""The table of emitters. The first one that accepts a fusion emits it."""

from __future__ import annotations

from hlo_run.codegen.emitters.concatenate import ConcatenateEmitter
from hlo_run.codegen.emitters.in_place_dynamic_update_slice import InPlaceUpdateEmitter
from hlo_run.codegen.emitters.loop import LoopEmitter
from hlo_run.codegen.emitters.reduction import ReductionEmitter
from hlo_run.codegen.emitters.rows import RowsEmitter
from hlo_run.codegen.emitters.scatter import ScatterEmitter
from hlo_run.codegen.emitters.sort import SortEmitter
from hlo_run.codegen.emitters.transpose import TransposeEmitter

# The last emitter accepts every fusion.
EMITTERS = (
    RowsEmitter,
    ReductionEmitter,
    TransposeEmitter,
    ScatterEmitter,
    SortEmitter,
    ConcatenateEmitter,
    InPlaceUpdateEmitter,
    LoopEmitter,
)
