"""The xDSL definitions of kernels. Importing any of them first makes xDSL read assembly formats only when they are used."""

from hlo_run.dialects.late_definitions import complete_late
from hlo_run.dialects.lean_operations import make_xdsl_lean

complete_late()
make_xdsl_lean()
