"""Lower every `xla_gpu.loop` to nested `scf.for` loops around a check of the domain.

    %r = xla_gpu.loop (%th)[%i] -> (%a) in #map iter_args(%iter = %t) -> (tensor<..>) { BODY; xla_gpu.yield %x }
      =>
    %r = scf.for %i = %c0 to %c4 step %c1 iter_args(%iter = %t) -> (tensor<..>) {
      %1 = arith.cmpi sge, %th, %c0 : index         one pair for each constraint, then for each dim
      %2 = arith.cmpi sle, %th, %c127 : index
      %inbounds = arith.andi %1, %2 : i1
      %3 = scf.if %inbounds -> (tensor<..>) {
        %a = xla_gpu.apply_indexing #map(%th)[%i]   one for each result of the map
        BODY
        scf.yield %x
      } else {
        scf.yield %iter
      }
      scf.yield %3
    }

The first range variable becomes the outermost loop. simplify-arith removes the checks that `xla.range` decides.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct, field
from xdsl.context import Context
from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import IndexType, ModuleOp
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from hlo_run.dialects.editing.loops import hand_on_origin
from hlo_run.dialects.editing.rewriting import bool_constant, index_constant, inline_block, ops_in, replace_op
from hlo_run.dialects.xla_gpu import ApplyIndexingOp, LoopOp
from hlo_run.indexing.expr import Expr
from hlo_run.indexing.interval import Interval
from hlo_run.indexing.printer import constraints_as_printed
from hlo_run.records import replace


class LowerXlaGpuToScf(ModulePass):
    """Lowers `xla_gpu.loop` to nested `scf.for` loops with a check of the domain."""

    name = "lower-xla-gpu-to-scf"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Lower every `xla_gpu.loop`."""
        for loop in [inner for inner in ops_in(op) if type(inner) is LoopOp]:
            _Lowering(loop).run()


class _Lowering(Struct):
    """The lowering of one loop. `constants` holds the index constants inserted before it."""

    loop: LoopOp
    constants: dict[int, SSAValue] = field(default_factory=dict[int, SSAValue])

    def run(self) -> None:
        loop = self.loop
        if loop.map.is_known_empty:
            replace_op(loop, loop.inits)
            return
        values = self._emit_loops((), loop.inits, InsertPoint.before(loop))
        for result, value in zip(loop.res, values, strict=True):
            value.name_hint = result.name_hint or "xla_loop"
        replace_op(loop, values)

    def _insert(self, op: Operation, place: InsertPoint) -> SSAValue:
        Rewriter.insert_op(hand_on_origin(self.loop, op), place)
        return op.results[0]

    def _index(self, value: int) -> SSAValue:
        if value not in self.constants:
            self.constants[value] = self._insert(index_constant(value), InsertPoint.before(self.loop))
        return self.constants[value]

    def _emit_loops(self, ivs: tuple[SSAValue, ...], carried: Sequence[SSAValue], place: InsertPoint) -> Sequence[SSAValue]:
        """Emit the loops inside the loops with induction variables `ivs`, and return the values after them."""
        ranges = self.loop.map.ranges
        if len(ivs) == len(ranges):
            return self._emit_guarded_body(ivs, carried, place)
        variable, arg = ranges[len(ivs)], self.loop.induction_variables[len(ivs)]
        bounds = (self._index(variable.bounds.lower), self._index(variable.bounds.upper + 1), self._index(1))
        body = Block(arg_types=[IndexType(), *(value.type for value in carried)])
        body.args[0].name_hint = arg.name_hint or variable.name or None
        for inner, old in zip(body.args[1:], self.loop.iteration_values, strict=True):
            inner.name_hint = old.name_hint or "iter"
        values = self._emit_loops((*ivs, body.args[0]), body.args[1:], InsertPoint.at_end(body))
        body.add_op(scf.YieldOp.create(operands=values))
        nest = hand_on_origin(self.loop, scf.ForOp(*bounds, carried, body))
        Rewriter.insert_op(nest, place)
        return nest.results

    def _emit_guarded_body(self, ivs: Sequence[SSAValue], carried: Sequence[SSAValue], place: InsertPoint) -> Sequence[SSAValue]:
        condition = self._check_domain((*self.loop.dims, *ivs), place)
        then = Block()
        indices = self._apply_map((*self.loop.dims, *ivs), InsertPoint.at_end(then))
        then.add_op(end := scf.YieldOp.create())
        end.operands = inline_block(self.loop.body.block, end, (*ivs, *indices, *carried))
        otherwise = Region(Block([scf.YieldOp.create(operands=carried)])) if carried else Region()
        types = [value.type for value in carried]
        choice = scf.IfOp.create(operands=(condition,), result_types=types, regions=[Region(then), otherwise])
        Rewriter.insert_op(hand_on_origin(self.loop, choice), place)
        return choice.results

    def _apply_map(self, variables: Sequence[SSAValue], place: InsertPoint) -> list[SSAValue]:
        """Emit one apply_indexing per result of the map, over all variables."""
        used_map, indices = self.loop.map, list[SSAValue]()
        for expr, arg in zip(used_map.results, self.loop.map_results, strict=True):
            indices.append(self._evaluate(expr, variables, place))
            indices[-1].name_hint = arg.name_hint
        return indices

    def _evaluate(self, expr: Expr, variables: Sequence[SSAValue], place: InsertPoint) -> SSAValue:
        plain = replace(self.loop.map, results=(expr,), constraints=())
        return self._insert(ApplyIndexingOp(plain, variables), place)

    def _check_domain(self, variables: Sequence[SSAValue], place: InsertPoint) -> SSAValue:
        """Emit the checks of the constraints, then of the dims. Range variables need none: they have the loops' bounds."""
        used_map = self.loop.map
        checked = [(self._evaluate(expr, variables, place), bounds) for expr, bounds in constraints_as_printed(used_map)]
        checked += [(value, variable.bounds) for value, variable in zip(self.loop.dims, used_map.dims, strict=True)]
        condition: SSAValue | None = None
        for value, bounds in checked:
            holds = self._check(value, bounds, place)
            condition = holds if condition is None else self._insert(arith.AndIOp(condition, holds), place)
        if condition is None:
            return self._insert(bool_constant(True), place)
        condition.name_hint = "inbounds"
        return condition

    def _check(self, value: SSAValue, bounds: Interval, place: InsertPoint) -> SSAValue:
        if bounds.is_point:
            return self._insert(arith.CmpiOp(value, self._index(bounds.lower), "eq"), place)
        lower = self._insert(arith.CmpiOp(value, self._index(bounds.lower), "sge"), place)
        upper = self._insert(arith.CmpiOp(value, self._index(bounds.upper), "sle"), place)
        return self._insert(arith.AndIOp(lower, upper), place)
