"""The xDSL definitions of kernels; before any of them is imported, their assembly formats are told to be read late."""

from hlo_run.dialects.lazy_formats import read_formats_late
from hlo_run.dialects.lean_operations import make_xdsl_lean

read_formats_late()
make_xdsl_lean()
