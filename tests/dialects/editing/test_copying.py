"""Copies of a block compute what the block does, and equal attributes have one number."""

from __future__ import annotations

from xdsl.dialects import func
from xdsl.dialects.builtin import IntegerAttr, StringAttr, i32

from hlo_run.dialects.editing.functions import functions
from hlo_run.dialects.editing.merging import AttributeNumbers
from hlo_run.dialects.editing.rewriting import copy_block
from hlo_run.dialects.parse import parse_module

TEXT = """
func.func @f(%n: index, %x: f32) -> f32 {
  %zero = arith.constant 0 : index
  %one = arith.constant 1 : index
  %sum = scf.for %i = %zero to %n step %one iter_args(%acc = %x) -> (f32) {
    %is_first = arith.cmpi eq, %i, %zero : index
    %next = scf.if %is_first -> (f32) {
      scf.yield %x : f32
    } else {
      %more = arith.addf %acc, %x : f32
      scf.yield %more : f32
    }
    scf.yield %next : f32
  }
  func.return %sum : f32
}
func.func @g(%n: index, %x: f32) -> f32 {
  func.return %x : f32
}
"""


def test_a_copy_of_a_block_has_its_nested_ops_with_the_new_arguments() -> None:
    module = parse_module(TEXT, "test")
    one, two = functions(module)
    end = two.body.block.last_op
    assert isinstance(end, func.ReturnOp)
    copies, values = copy_block(one.body.block, end, two.body.block.args)
    end.operands = values
    assert [copy.parent for copy in copies] == [two.body.block] * 3
    module.verify()
    assert one.body.is_structurally_equivalent(two.body)
    copied = {id(inner) for copy in copies for inner in copy.walk()}
    assert not copied & {id(inner) for inner in one.walk()}


def test_equal_attributes_have_one_number() -> None:
    numbers = AttributeNumbers()
    assert numbers.of(IntegerAttr(1, i32)) == numbers.of(IntegerAttr(1, i32))
    assert numbers.of(IntegerAttr(1, i32)) != numbers.of(IntegerAttr(2, i32)) != numbers.of(StringAttr("1"))
