"""Definitions of operations and attributes are made when they are first needed, and are then those of xDSL."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import xdsl.irdl
from xdsl.dialects.builtin import IntegerAttr, i32
from xdsl.ir import ParametrizedAttribute
from xdsl.irdl import IRDLOperation, operand_def, prop_def, result_def, traits_def
from xdsl.traits import Commutative, NoTerminator, Pure
from xdsl.utils.exceptions import PyRDLOpDefinitionError

import hlo_run
from hlo_run.dialects.all_dialects import DIALECTS

_PACKAGE = Path(hlo_run.__file__).parent


def test_every_definition_of_the_dialects_can_be_made() -> None:
    for dialect in DIALECTS.values():
        for operation in dialect.operations:
            if issubclass(operation, IRDLOperation):
                assert operation.get_irdl_definition() is operation.get_irdl_definition()
        for attribute in dialect.attributes:
            if issubclass(attribute, ParametrizedAttribute):
                assert attribute.get_irdl_definition() is attribute.get_irdl_definition()


class Base(IRDLOperation):
    """Has a trait that its operations share."""

    traits = traits_def(Pure())


def example() -> Any:
    @xdsl.irdl.irdl_op_definition
    class Example(Base):
        """Is ours, as its module says."""

        __module__ = "hlo_run.example"
        name = "test.example"
        operand = operand_def(i32)
        count = prop_def(IntegerAttr)
        result = result_def(i32)
        traits = traits_def(Commutative())

    return Example


def test_a_class_has_its_traits_before_its_definition() -> None:
    kind = example()
    assert kind.has_trait(Pure)
    assert kind.has_trait(Commutative)
    assert not hasattr(kind.__dict__["operand"], "__get__")


def test_the_first_operation_completes_its_class() -> None:
    kind, count = example(), IntegerAttr(1, i32)
    first = kind.create(result_types=[i32], properties={"count": count})
    second = kind(operands=[first.result], result_types=[i32], properties={"count": count})
    assert second.operand is first.result
    assert second.count == count
    assert kind.has_trait(Pure)
    second.verify()


def test_a_trait_that_is_added_early_stays() -> None:
    kind = example()
    kind.traits.add_trait(NoTerminator())
    kind.create(result_types=[i32])
    assert kind.has_trait(NoTerminator)


def test_operations_of_other_packages_are_defined_at_once() -> None:
    with pytest.raises(PyRDLOpDefinitionError, match=r"Wrong\.number is neither"):

        @xdsl.irdl.irdl_op_definition
        class Wrong(IRDLOperation):  # pyright: ignore[reportUnusedClass] - its definition fails
            name = "test.wrong"
            number = 3


@pytest.mark.parametrize("module", ["hlo_run.pipeline.kernels", "hlo_run.pipeline.gpu_modules"])
def test_the_builtin_dialect_is_late_if_the_compiler_of_kernels_is_imported_first(module: str) -> None:
    program = f"""
import {module}
from xdsl.dialects.builtin import UnrealizedConversionCastOp
print(vars(UnrealizedConversionCastOp)["get_irdl_definition"].__func__.__module__)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, encoding="utf-8", check=False)
    assert done.stdout.strip() == "hlo_run.dialects.late_definitions", done.stderr


def test_no_module_imports_a_dialect_of_xdsl_before_ours() -> None:
    early: list[str] = []
    for path in sorted(_PACKAGE.rglob("*.py")):
        folders = list(path.relative_to(_PACKAGE).parents)
        if any("complete_late()" in (_PACKAGE / folder / "__init__.py").read_text(encoding="utf-8") for folder in folders):
            continue
        imports = [node for node in ast.parse(path.read_bytes()).body if isinstance(node, ast.ImportFrom)]
        names = [str(node.module) for node in imports]
        first = next((name for name in names if name.startswith(("xdsl.", "hlo_run.dialects", "hlo_run.codegen"))), "")
        if first.startswith("xdsl."):
            early.append(str(path.relative_to(_PACKAGE)))
    assert early == [], "xDSL defines all its operations at once, which costs half of the imports; import a dialect of ours first"
