"""The xDSL definitions of kernels; before any of them is imported, xDSL is told to complete them late."""

from hlo_run.dialects.late_definitions import complete_late
from hlo_run.dialects.lean_operations import make_xdsl_lean

complete_late()
make_xdsl_lean()
