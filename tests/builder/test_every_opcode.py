"""Every opcode has a builder method; its instruction equals the parsed text, also after real XLA has read it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import cast

import pytest
from opcode_cases import CASES, COMPUTATIONS, Case, computations, method_name
from released_xla import needs_released_xla

import hlo_run
from hlo_run import HloBuilder
from hlo_run.builder.elementwise import plain_method
from hlo_run.hlo.graph import HloModule
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo.opcodes.table import OPCODES
from hlo_run.hlo.print_options import FULL
from hlo_run.hlo.printer import module_to_string


def written(case: Case) -> str:
    """Return the module of a case as text, with the computations it names."""
    root, *before = case.text.split("\n")
    parameters = [f"  p{number} = {shape} parameter({number})" for number, shape in enumerate(case.shapes)]
    bodies = [body for body in re.split(r"(?m)^(?=\w+ \{)", COMPUTATIONS) if body.strip()]
    named = [body for body in bodies if re.search(rf"[={{ ]{body.split()[0]}(?![\w(\-])", case.text)]
    name = "p" if " parameter(" in root else "r"
    body = [*parameters, *(f" {line}" for line in before), f"  ROOT {name} = {root}"]
    return "HloModule m\n\n" + "".join(named) + "ENTRY m {\n" + "\n".join(body) + "\n}\n"


def built(case: Case) -> HloModule:
    builder = HloBuilder("m")
    parameters = [builder.parameter(number, shape) for number, shape in enumerate(case.shapes)]
    root = case.build(builder, parameters, computations(builder))
    # Some end with an async start, which no valid module does.
    return builder.build(root if root.name == "p" else root.annotate(name="r"), verified=False)


def opcode_of(case: Case) -> Opcode:
    found = re.match(r"(?:\([^()]*(?:\([^()]*\)[^()]*)*\)|\S+) ([a-z0-9\-]+)\(", case.text)
    assert found is not None, case.text
    return cast("Opcode", found[1])


def test_every_opcode_has_a_method_and_a_case() -> None:
    missing = [opcode for opcode in OPCODES if not callable(getattr(HloBuilder, method_name(opcode), None))]
    assert not missing
    assert not OPCODES.keys() - {opcode_of(case) for case in CASES}


def test_every_public_method_is_an_opcode_or_documented_machinery() -> None:
    machinery = {
        "as_value build build_computation computation_of constant_of copy_of elementwise free_name instruction leaf operand scope"
        " set_attributes sub_builder lgamma digamma"
    }
    names = {name for name in dir(HloBuilder) if not name.startswith("_")}
    assert names - {method_name(opcode) for opcode in OPCODES} == set(" ".join(machinery).split())


@pytest.mark.parametrize("case", CASES, ids=opcode_of)
def test_a_method_makes_what_the_text_says(case: Case) -> None:
    assert module_to_string(built(case), FULL) == module_to_string(hlo_run.parse(written(case), verified=False), FULL)


@pytest.mark.parametrize("case", CASES, ids=opcode_of)
def test_a_shape_that_xla_infers_need_not_be_given(case: Case) -> None:
    """The methods of opcodes whose shape the text may omit infer it too."""
    opcode = opcode_of(case)
    if OPCODES[opcode].can_infer_shape and opcode not in ("broadcast", "convert"):
        assert built(case).entry.root.shape == hlo_run.parse(written(case), verified=False).entry.root.shape


# A failed check in XLA aborts the process, so it runs in a child process.
_PRINT_BOTH = """
import json, sys
from jaxlib import _hlo
for ours, theirs in json.load(sys.stdin):
    ours, theirs = (_hlo.hlo_module_from_text(text).to_string() for text in (ours, theirs))
    assert ours == theirs, f"{ours} is not {theirs}"
"""


def test_real_xla_reads_what_is_built_as_the_text() -> None:
    needs_released_xla()
    pairs = [(module_to_string(built(case), FULL), written(case)) for case in CASES if case.xla]
    command = [sys.executable, "-c", _PRINT_BOTH]
    done = subprocess.run(command, input=json.dumps(pairs), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("opcode", ["cbrt", "atan2"])
def test_an_elementwise_opcode_needs_no_method_of_its_own(opcode: Opcode) -> None:
    def made(spelled: bool) -> str:
        builder = HloBuilder("m")
        operands = [builder.parameter(number, "f32[2,3]") for number in range(OPCODES[opcode].arity or 0)]
        method = getattr(HloBuilder, method_name(opcode)) if spelled else plain_method(OPCODES[opcode])
        return module_to_string(builder.build(method(builder, *operands)), FULL)

    assert made(spelled=False) == made(spelled=True)
