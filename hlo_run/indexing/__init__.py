"""Integer arithmetic on indices: intervals, affine expressions, and indexing maps with composition and simplification."""

from hlo_run.indexing.compose import compose
from hlo_run.indexing.expr import Expr, Kind, ceil_div, constant, dim, maximum, minimum, symbol
from hlo_run.indexing.indexing_map import Constraint, IndexingMap
from hlo_run.indexing.interval import Interval
from hlo_run.indexing.printer import attribute_text, expr_to_string, map_to_string
from hlo_run.indexing.reshape import bitcast_map, delinearize, linearize, reshape_map, transpose_map
from hlo_run.indexing.simplify import simplify_expr
from hlo_run.indexing.text import parse_indexing_map
from hlo_run.indexing.thread_map import thread_map
from hlo_run.indexing.variable import GRID_NAMES, Variable

__all__ = [
    "GRID_NAMES",
    "Constraint",
    "Expr",
    "IndexingMap",
    "Interval",
    "Kind",
    "Variable",
    "attribute_text",
    "bitcast_map",
    "ceil_div",
    "compose",
    "constant",
    "delinearize",
    "dim",
    "expr_to_string",
    "linearize",
    "map_to_string",
    "maximum",
    "minimum",
    "parse_indexing_map",
    "reshape_map",
    "simplify_expr",
    "symbol",
    "thread_map",
    "transpose_map",
]
