"""A module that cannot be compiled, or a program that does what it must not, is refused where its text is at fault."""

from __future__ import annotations

import pytest
from gpu_programs import DATA, EXAMPLES, compiled, interpreted, made_arguments, on_host, planned

from hlo_run.errors import DeviceError, HloRunError, ParseError, Unsupported, UsageError
from hlo_run.interpret.gpu_kernel import Fault

SAXPY = (EXAMPLES / "saxpy.mlir").read_text()
TRANSPOSE = (DATA / "transpose_tile.mlir").read_text()


def _changed(text: str, old: str, new: str, count: int = -1) -> str:
    assert old in text
    return text.replace(old, new, count)


@pytest.mark.parametrize(
    ("text", "kind", "line", "message"),
    [
        (_changed(SAXPY, "gpu.terminator", 'gpu.printf "x"\n gpu.terminator'), Unsupported, 18, "'gpu.printf' in a kernel"),
        (_changed(SAXPY, "%threads = arith.constant 128", "%threads = arith.constant 2048"), ParseError, 6, "CUDA's limit"),
        (_changed(TRANSPOSE, "@kernels::@transpose", "@kernels::@turn"), ParseError, 28, "has no kernel @turn"),
        (_changed(TRANSPOSE, "@kernels::@transpose", "@other::@transpose"), ParseError, 28, "no gpu.module @other"),
        (_changed(TRANSPOSE, "kernel {", "{"), ParseError, 28, "is not a kernel"),
        ("func.func @main() {\n  return\n}", ParseError, 1, "no gpu.launch and no kernel"),
        (
            _changed(SAXPY, "%blocks = arith", "%z = memref.load %x[%c1] : memref<?xf32>\n %blocks = arith"),
            Unsupported,
            5,
            "does not see",
        ),
        (
            _changed(SAXPY, "%blocks = arith", "%z = arith.mulf %a, %a : f32\n  %blocks = arith"),
            Unsupported,
            5,
            "that the run gives",
        ),
        (_changed(SAXPY, "%x: memref<?xf32>, ", "%x: memref<?xf32>, %o: complex<f32>, "), Unsupported, 2, "of type complex"),
    ],
)
def test_wrong_modules(text: str, kind: type[HloRunError], line: int, message: str) -> None:
    with pytest.raises(kind, match=message) as error:
        compiled(text)
    assert error.value.where is not None
    assert error.value.where.line == line


@pytest.mark.parametrize(
    ("text", "sizes", "message"),
    [
        (SAXPY, "n=1100", "index 1024 is out of bounds in dimension 0 of a memref of 1024, thread"),
        (_changed(SAXPY, "%xi = memref", "gpu.barrier\n %xi = memref"), "n=1000", "'gpu.barrier' is not reached by all threads"),
        (_changed(SAXPY, "%xi = memref", "%r = gpu.all_reduce add %a {} : (f32) -> f32\n %xi = memref"), "n=1000", "not reached"),
    ],
)
def test_faults_of_programs(text: str, sizes: str, message: str) -> None:
    placed, program, executable = compiled(text, sizes)
    with pytest.raises(Fault, match=message) as fault:
        interpreted(placed, program, executable, made_arguments(program))
    assert placed.where(fault.value.op).line == 12


def test_host_sees_accesses_out_of_bounds_and_races() -> None:
    _, program, executable = compiled(SAXPY, "n=1100")
    with pytest.raises(DeviceError, match="out-of-bounds global load"):
        on_host(executable, made_arguments(program), "emulator")
    _, program, executable = compiled(_changed(TRANSPOSE, "      gpu.barrier\n", ""))
    with pytest.raises(DeviceError, match="race in shared memory"):
        on_host(executable, made_arguments(program), "emulator", ["race"])


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ("m=4", "has no argument 'm'"),
        ("n=x", "is not a size"),
        ("n=4x4", "'n' is one number"),
        ("x=4x4", r"has the sizes \?"),
        ("1,2", "names no argument"),
    ],
)
def test_wrong_sizes(sizes: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        planned(SAXPY, sizes)


def test_a_lone_kernel_needs_its_launch() -> None:
    text = (DATA / "kernel_only.mlir").read_text()
    with pytest.raises(UsageError, match="no function that launches it"):
        planned(text)
    with pytest.raises(UsageError, match="not a grid and a block"):
        planned(text, launch="8")
    with pytest.raises(UsageError, match="launches its kernels itself"):
        planned(SAXPY, launch="8,128")
