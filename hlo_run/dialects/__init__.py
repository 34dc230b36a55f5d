"""The xDSL definitions of kernels. Importing any of them first makes xDSL read assembly formats only when they are used."""

from hlo_run.dialects.lazy_formats import read_formats_late
from hlo_run.dialects.lean_operations import make_xdsl_lean

read_formats_late()
make_xdsl_lean()
