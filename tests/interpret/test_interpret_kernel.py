"""The interpreter agrees with the reference after every row of kernels of several emitters, and sees a planted fault."""

from __future__ import annotations

import time
from functools import cache

import numpy as np
import pytest

from hlo_run import target as targets
from hlo_run.hlo.values.literal import Literal
from hlo_run.localize.interpreted import Trial, blame_by_interpreter
from hlo_run.localize.kernel_rows import KernelDumps
from hlo_run.localize.reproducer import Reproducer
from hlo_run.ops.parse import parse
from hlo_run.options import Options
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.pass_support.replacements import KernelIr
from hlo_run.pipeline.compile import compile_module
from hlo_run.records import replace

_ADD = "add { a = f32[] parameter(0)\n b = f32[] parameter(1)\n ROOT r = f32[] add(a, b) }\n"
_MODULES = {
    "loop": """ENTRY e {
 x = f32[3,64] parameter(0)
 y = f32[3,64] parameter(1)
 s = f32[3,64] sine(x)
 t = f32[3,64] tanh(s)
 ROOT r = f32[3,64] subtract(t, y) }""",
    "transpose": "ENTRY e { x = f32[33,40] parameter(0)\n ROOT r = f32[40,33] transpose(x), dimensions={1,0} }",
    "row reduction": _ADD
    + """ENTRY e { x = f32[5,300] parameter(0)
 z = f32[] constant(0)
 ROOT r = f32[5] reduce(x, z), dimensions={1}, to_apply=add }""",
    "column reduction": _ADD
    + """ENTRY e { x = f32[70,40] parameter(0)
 z = f32[] constant(0)
 ROOT r = f32[40] reduce(x, z), dimensions={0}, to_apply=add }""",
    "concatenate": """ENTRY e { x = f32[3,20] parameter(0)
 y = f32[4,20] parameter(1)
 ROOT r = f32[7,20] concatenate(x, y), dimensions={0} }""",
}


@cache
def _compiled(text: str) -> tuple[PassContext, Reproducer, list[KernelIr]]:
    """Return the dumps of the module's only kernel, after every row that changed it."""
    ctx = PassContext(targets.preset(targets.DEFAULT_TARGET), Options())
    module = parse(f"HloModule m\n{text}")
    values: list[Literal] = [
        np.random.default_rng(n).standard_normal(p.shape.dims).astype(np.float32) for n, p in enumerate(module.entry.parameters)
    ]
    working = parse(f"HloModule m\n{text}")
    (kernel,) = compile_module(ctx, working).kernels
    dumps = KernelDumps(kernel.name, ctx.target.name)
    compile_module(replace(ctx, observers=(dumps,)), parse(f"HloModule m\n{text}"))
    return ctx, Reproducer("m", module, (kernel.name,), values, {}, {}), dumps.dumps


@pytest.mark.parametrize("name", list(_MODULES))
def test_every_row_is_right(name: str) -> None:
    ctx, made, dumps = _compiled(_MODULES[name])
    assert [dump.row for dump in dumps][-1] == "lower-to-llvm-gpu"
    trial = Trial(ctx, made, Options())
    for dump in dumps:
        assert trial.agrees(dump, time.monotonic() + 5000), dump.row


def test_a_wrong_dump_is_named() -> None:
    """The text after one row is changed as a wrong row would change it; the rows before it are right."""
    ctx, made, dumps = _compiled(_MODULES["loop"])
    last = dumps[-1]
    broken = replace(last, text=last.text.replace("llvm.fsub", "llvm.fadd"))
    assert broken.text != last.text
    found = blame_by_interpreter(ctx, made, Options(), [*dumps[-4:-1], broken])
    assert found.startswith("look at kernel row 'lower-to-llvm-gpu': interpreted, the IR is right after")
    assert "look at what follows row 'lower-to-llvm-gpu'" in blame_by_interpreter(ctx, made, Options(), dumps[-4:])


def test_a_row_after_which_memory_is_left_is_named() -> None:
    """As of a row that makes a wrong offset: threads read far behind the end of the input."""
    ctx, made, dumps = _compiled(_MODULES["row reduction"])
    place = next(number for number, dump in enumerate(dumps) if dump.row == "scf-to-cf")
    text = dumps[place].text.replace("arith.constant 256 : i32", "arith.constant 1048576 : i32")
    assert text != dumps[place].text
    found = blame_by_interpreter(ctx, made, Options(), [*dumps[place - 2 : place], replace(dumps[place], text=text)])
    assert found == (
        f"look at kernel row 'scf-to-cf': interpreted, the IR is right after '{dumps[place - 1].row}', "
        "and stops at an access outside of the memory or without alignment after 'scf-to-cf'"
    )
