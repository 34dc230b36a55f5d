"""Operations are made, read, edited and verified as xDSL does it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from xdsl.builder import ImplicitBuilder
from xdsl.dialects import arith, builtin, func, llvm, scf
from xdsl.dialects.builtin import IndexType, IntegerAttr, ModuleOp, f32, i1, i32
from xdsl.ir import Block, Operation, Region, SSAValue, SSAValues
from xdsl.utils.exceptions import VerifyException

from hlo_run.dialects.lean_operations import make_xdsl_lean

make_xdsl_lean()


def _constant(value: int) -> arith.ConstantOp:
    return arith.ConstantOp(IntegerAttr(value, i32))


def _uses(value: SSAValue) -> list[tuple[Operation, int]]:
    return [(use.operation, use.index) for use in value.uses]


def test_operands_can_be_set_one_by_one_and_together() -> None:
    one, two = _constant(1), _constant(2)
    add = arith.AddiOp(one, one)
    assert _uses(one.result) == [(add, 1), (add, 0)]
    add.operands[0] = two.result
    assert tuple(add.operands) == (two.result, one.result) == (add.lhs, add.rhs)
    assert _uses(two.result) == [(add, 0)]
    assert _uses(one.result) == [(add, 1)]
    add.operands = [one.result, two.result]
    add.operands[1] = one.result
    assert (add.lhs, add.rhs) == (one.result, one.result)
    assert _uses(two.result) == []


def test_a_replaced_value_has_no_users_and_gives_its_name() -> None:
    one, two = _constant(1), _constant(2)
    one.result.name_hint = "one_7"
    adds = [arith.AddiOp(one, one), arith.AddiOp(one, two)]
    one.result.replace_all_uses_with(two.result)
    assert _uses(one.result) == []
    assert _uses(two.result) == [(adds[0], 0), (adds[0], 1), (adds[1], 0), (adds[1], 1)]
    assert two.result.name_hint == "one"
    with pytest.raises(ValueError, match="Invalid"):
        two.result.name_hint = "7"


def test_variadic_and_optional_operands_are_divided_as_their_definition_says() -> None:
    call = func.CallOp("f", [_constant(1).result, _constant(2).result], [i32, f32])
    assert isinstance(call.arguments, SSAValues)
    assert isinstance(call.res, SSAValues)
    assert call.arguments.types == (i32, i32)
    assert call.res.types == (i32, f32)
    value = llvm.LLVMPointerType()
    pointer = llvm.ZeroOp.create(result_types=[value])
    called: Any = llvm.CallOp("g", pointer.results[0], return_type=i32)
    assert called.properties["operandSegmentSizes"] == builtin.DenseArrayBase.from_list(i32, [1, 0])
    assert tuple(called.args) == (pointer.results[0],)
    loop = scf.ForOp(_constant(0), _constant(4), _constant(1), [], Block([scf.YieldOp()], arg_types=[i32]))
    assert loop.lb.type == i32
    assert loop.body.block.args[0].type == i32


@pytest.mark.parametrize(
    ("operands", "results", "message"),
    [
        ([_constant(1)], [i32], "Expected 2"),
        ([_constant(1), None], [i32], "passed Sequence"),
        ([_constant(1), _constant(2)], [[i32, i32]], "passed Sequence"),
        ([[_constant(1), _constant(1)], _constant(2)], [i32], "passed Sequence"),
    ],
)
def test_wrong_arguments_are_refused_by_xdsl(operands: Sequence[Any], results: Sequence[Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        arith.AddiOp.build(operands=operands, result_types=results)


def test_an_operation_gets_the_defaults_of_its_definition() -> None:
    made = arith.AddiOp.create(operands=[_constant(1).result, _constant(2).result], result_types=[i32])
    assert made.overflow_flags == arith.IntegerOverflowAttr("none")


def test_an_implicit_builder_inserts_what_is_made() -> None:
    block = Block()
    with ImplicitBuilder(block):
        one = _constant(1)
        add = arith.AddiOp(one, one)
    alone = _constant(2)
    assert tuple(block.ops) == (one, add)
    assert alone.parent is None


def test_a_walk_goes_on_behind_an_operation_that_was_erased() -> None:
    branch = scf.IfOp(arith.ConstantOp(IntegerAttr(1, i1)), [], Region(Block([_constant(3), scf.YieldOp()])))
    module = ModuleOp([_constant(1), branch, _constant(2)])
    visited: list[str] = []
    for op in module.walk():
        visited.append(op.name)
        if isinstance(op, arith.ConstantOp) and op.parent is module.body.block:
            op.detach()
            op.erase()
    assert visited == ["builtin.module", "arith.constant", "scf.if", "arith.constant", "scf.yield", "arith.constant"]
    assert [op.name for op in module.body.block.ops] == ["scf.if"]
    backwards = [op.name for op in module.walk(reverse=True, region_first=True)]
    assert backwards == ["scf.yield", "arith.constant", "scf.if", "builtin.module"]


def test_an_operation_is_in_one_place_and_not_in_itself() -> None:
    one = _constant(1)
    block = Block([one])
    with pytest.raises(ValueError, match="already attached"):
        Block([one])
    function = func.FuncOp("f", ((), ()), Region(block))
    with pytest.raises(ValueError, match="contained in the operation"):
        block.add_op(function)


def test_a_wrong_operation_is_found_behind_right_ones_like_it() -> None:
    def compare(*types: Any) -> Operation:
        values = [builtin.UnrealizedConversionCastOp.get([], [type_]).results[0] for type_ in types]
        return arith.CmpiOp.create(operands=values, result_types=[i1], properties={"predicate": IntegerAttr(0, 64)})

    for _ in range(2):
        compare(i32, i32).verify()
        compare(IndexType(), IndexType()).verify()
        with pytest.raises(Exception, match="does not verify"):
            compare(i32, f32).verify()
    wrong = compare(i32, i32)
    wrong.properties["other"] = i32
    with pytest.raises(Exception, match="'other' is not defined"):
        wrong.verify()


def test_attributes_with_wrong_parameters_are_refused() -> None:
    assert IntegerAttr(3, i32) == IntegerAttr(3, i32)
    wrong: Any = f32
    for _ in range(2):
        with pytest.raises(VerifyException):
            IntegerAttr.new([builtin.StringAttr("3"), i32])
        with pytest.raises(VerifyException):
            llvm.LLVMArrayType.new([wrong, i32])
    with pytest.raises(VerifyException):
        IntegerAttr(300, builtin.i8)


def test_methods_of_xdsl_dataclasses_are_compiled_when_they_are_called() -> None:
    made = builtin.ComplexType(f32)
    assert repr(made) == "ComplexType(element_type=Float32Type())"
    assert made == builtin.ComplexType(f32)
    assert len({made, builtin.ComplexType(f32), builtin.ComplexType(builtin.f64)}) == 2
    with pytest.raises(AttributeError, match="cannot assign"):
        setattr(made, "element_type", i32)  # noqa: B010 - the type checker refuses the statement
    assert type(made).__setattr__.__code__.co_filename == "<string>"
