"""Kernels judged alone: faults that are planted into the PTX of kernels which the result of the module does not show."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from host_cuda import install_stand_ins

from hlo_run.artifact import Executable, Kernel
from hlo_run.backends import Backend
from hlo_run.backends.cuda import device, graphs, libraries
from hlo_run.backends.cuda.backend import CudaBackend
from hlo_run.backends.host.backend import HostBackend
from hlo_run.backends.literals import Literal
from hlo_run.kernel_checks import checks as kernel_checks
from hlo_run.kernel_checks.checks import KernelChecks
from hlo_run.kernel_checks.outcomes import Outcome, rows_of, summary
from hlo_run.kernel_checks.verdicts import Verdicts
from hlo_run.ops.parse import parse
from hlo_run.options import CompileOptions
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.pipeline.compile import compile_module
from hlo_run.records import replace
from hlo_run.reference.compare.compare import ErrorSpec, compare
from hlo_run.target import preset

# Each fusion stays a kernel of its own. The last one hides what the first one computes.
HIDDEN = """HloModule m, is_scheduled=true
f {
  x = f32[40] parameter(0)
  y = f32[40] parameter(1)
  ROOT s = f32[40] add(x, y)
}
g {
  a = f32[40] parameter(0)
  b = f32[40] parameter(1)
  ROOT p = f32[40] multiply(a, b)
}
ENTRY e {
  x = f32[40] parameter(0)
  y = f32[40] parameter(1)
  z = f32[40] parameter(2)
  first = f32[40] fusion(x, y), kind=kLoop, calls=f
  ROOT second = f32[40] fusion(first, z), kind=kLoop, calls=g
}
"""
EQUAL = """HloModule m, is_scheduled=true
f {
  x = f32[40] parameter(0)
  y = f32[40] parameter(1)
  ROOT s = f32[40] add(x, y)
}
g {
  u = f32[40] parameter(0)
  v = f32[40] parameter(1)
  ROOT t = f32[40] add(u, v)
}
ENTRY e {
  x = f32[40] parameter(0)
  y = f32[40] parameter(1)
  first = f32[40] fusion(x, y), kind=kLoop, calls=f
  second = f32[40] fusion(y, x), kind=kLoop, calls=g
  ROOT both = (f32[40], f32[40]) tuple(first, second)
}
"""
LOOP = """HloModule m, is_scheduled=true
f {
  x = f32[6,8] parameter(0)
  row = f32[1,8] parameter(1)
  i = s32[] parameter(2)
  zero = s32[] constant(0)
  twice = f32[1,8] add(row, row)
  ROOT u = f32[6,8] dynamic-update-slice(x, twice, i, zero)
}
g {
  i = s32[] parameter(0)
  one = s32[] constant(1)
  ROOT j = s32[] add(i, one)
}
h {
  i = s32[] parameter(0)
  n = s32[] constant(5)
  ROOT c = pred[] compare(i, n), direction=LT
}
body {
  state = (s32[], f32[6,8], f32[1,8]) parameter(0)
  i = s32[] get-tuple-element(state), index=0
  x = f32[6,8] get-tuple-element(state), index=1
  row = f32[1,8] get-tuple-element(state), index=2
  updated = f32[6,8] fusion(x, row, i), kind=kLoop, calls=f
  next = s32[] fusion(i), kind=kLoop, calls=g
  ROOT t = (s32[], f32[6,8], f32[1,8]) tuple(next, updated, row)
}
cond {
  state = (s32[], f32[6,8], f32[1,8]) parameter(0)
  i = s32[] get-tuple-element(state), index=0
  ROOT goes_on = pred[] fusion(i), kind=kLoop, calls=h
}
ENTRY e {
  i = s32[] parameter(0)
  x = f32[6,8] parameter(1)
  row = f32[1,8] parameter(2)
  state = (s32[], f32[6,8], f32[1,8]) tuple(i, x, row)
  ROOT w = (s32[], f32[6,8], f32[1,8]) while(state), condition=cond, body=body
}
"""
NUMBERS = np.linspace(-2, 3, 40, dtype=np.float32)
ZEROS = np.zeros(40, np.float32)
NANS = np.full(40, np.nan, np.float32)


def unchanged(kernel: Kernel) -> Kernel:
    """Return the kernel."""
    return kernel


def judged(
    text: str,
    arguments: Sequence[Literal],
    plant: Callable[[Kernel], Kernel] = unchanged,
    checks_all: bool = False,
    engine: str = "auto",
    make_backend: Callable[[], Backend] | None = None,
    reads_stale_memory: bool = False,
) -> dict[str, Outcome]:
    """Compile, change the kernels, run with checks, and return the outcomes.

    A run without checks gives the same result, unless a kernel reads what it has not written: checks poison that.
    """
    module = parse(text)
    made = compile_module(PassContext(preset("h100"), CompileOptions()), module)
    executable: Executable = replace(made, kernels=tuple(map(plant, made.kernels)))
    backend = make_backend() if make_backend is not None else HostBackend(engine=engine)
    bounds = ErrorSpec(abs=1e-3, rel=1e-3)
    checks = KernelChecks(module, executable, Verdicts(bounds, fixed_bounds=False), backend.run_aside, checks_all)
    backend.watch_next_run(checks)
    watched = backend.run(executable, arguments)
    exact = ErrorSpec(abs=0.0, rel=0.0)
    is_same = compare(backend.run(executable, arguments), watched, module.entry.root.shape, exact).ok
    assert is_same is not reads_stale_memory
    checks.finish()
    return {unit.name: outcome for unit, outcome in checks.outcomes.items()}


def subtracting(kernel: Kernel) -> Kernel:
    """Return the kernel with a subtraction in place of each addition of floats."""
    return replace(kernel, ptx=re.sub(r"\badd(\.rn)?(\.ftz)?\.f32", r"sub\1\2.f32", kernel.ptx))


def test_all_kernels_agree() -> None:
    outcomes = judged(HIDDEN, [NUMBERS, NUMBERS, NUMBERS])
    assert [outcome.verdict for outcome in outcomes.values()] == ["agrees", "agrees"]
    assert summary(list(outcomes.values())) == "2 of 2 kernels agree alone, worst error 0"


@pytest.mark.parametrize("hiding", [ZEROS, NANS])
def test_a_fault_that_later_kernels_hide(hiding: Literal) -> None:
    outcomes = judged(HIDDEN, [NUMBERS, NUMBERS, hiding], subtracting)
    assert [(name, outcome.verdict) for name, outcome in outcomes.items()] == [("first", "differs"), ("second", "agrees")]
    assert outcomes["second"].own_operands, "its operand in the run says nothing"


@pytest.mark.parametrize("hiding", [ZEROS, NANS])
def test_a_fault_that_its_own_operands_hide(hiding: Literal) -> None:
    """Zero minus zero is zero, and NaN stays NaN."""
    outcomes = judged(HIDDEN, [hiding, hiding, NUMBERS], subtracting)
    assert outcomes["first"].verdict == "differs"
    assert outcomes["first"].place.startswith("on operands of its own")


def test_equal_kernels_are_judged_once() -> None:
    outcomes = judged(EQUAL, [NUMBERS, NUMBERS])
    assert (outcomes["first"].runs, outcomes["second"].runs, outcomes["second"].equal) == (2, 0, "first")
    assert summary(list(outcomes.values())).startswith("2 of 2 kernels agree alone")
    every = judged(EQUAL, [NUMBERS, NUMBERS], checks_all=True)
    assert (every["first"].runs, every["second"].runs) == (2, 2)


WRAPPED = """HloModule m, is_scheduled=true
f {
  x = f32[9] parameter(0)
  i = s32[40,1] parameter(1)
  z = s32[] constant(0)
  n = s32[] constant(9)
  zeros = s32[40,1] broadcast(z), dimensions={}
  sizes = s32[40,1] broadcast(n), dimensions={}
  negative = pred[40,1] compare(i, zeros), direction=LT
  later = s32[40,1] add(i, sizes)
  at = s32[40,1] select(negative, later, i)
  ROOT g = f32[40] gather(x, at), offset_dims={}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1,
    slice_sizes={1}
}
ENTRY e {
  x = f32[9] parameter(0)
  i = s32[40,1] parameter(1)
  ROOT first = f32[40] fusion(x, i), kind=kLoop, calls=f
}
"""
CLAMPED = """HloModule m, is_scheduled=true
f {
  x = f32[40] parameter(0)
  z = f32[] constant(0)
  zeros = f32[40] broadcast(z), dimensions={}
  ROOT m = f32[40] maximum(x, zeros)
}
ENTRY e {
  x = f32[40] parameter(0)
  ROOT first = f32[40] fusion(x), kind=kLoop, calls=f
}
"""


@pytest.mark.parametrize(
    ("text", "arguments", "old", "new"),
    [
        (WRAPPED, [NUMBERS[:9], np.arange(40, dtype=np.int32).reshape(40, 1) % 9], r"(add\.s(32|64) .*), 9;", r"\1, 8;"),
        (CLAMPED, [np.abs(NUMBERS)], r"max\.(NaN\.)?f32 (.*), (.*), 0f0*;", r"mov.f32 \2, \3;"),
    ],
)
def test_a_fault_where_the_run_never_comes(text: str, arguments: list[Literal], old: str, new: str) -> None:
    """The run has no negative index and no negative number; the kernel's own operands have some."""

    def plant(kernel: Kernel) -> Kernel:
        changed = re.sub(old, new, kernel.ptx)
        assert changed != kernel.ptx, kernel.ptx
        return replace(kernel, ptx=changed)

    assert judged(text, arguments)["first"].verdict == "agrees"
    outcome = judged(text, arguments, plant)["first"]
    assert outcome.verdict == "differs"
    assert outcome.place.startswith("on operands of its own")


STALE = LOOP.replace(
    """g {
  i = s32""",
    """t {
  row = f32[1,8] parameter(0)
  i = s32[] parameter(1)
  number = f32[] convert(i)
  zero = f32[] constant(0)
  nothing = f32[] multiply(number, zero)
  nothings = f32[1,8] broadcast(nothing), dimensions={}
  ROOT twice = f32[1,8] add(row, nothings)
}
g {
  i = s32""",
).replace(
    "updated = f32[6,8] fusion(x, row, i)",
    """same = f32[1,8] fusion(row, i), kind=kLoop, calls=t
  updated = f32[6,8] fusion(x, same, i)""",
)


def test_a_kernel_that_leaves_the_result_of_an_earlier_iteration(monkeypatch: pytest.MonkeyPatch) -> None:
    """That is right by luck, as its operands are the same again."""

    def plant(kernel: Kernel) -> Kernel:
        late = r"\1setp.gt.s32 %late, \3, 0;\n @%late ret;\n"
        ptx = re.sub(r"(\.reg \.b32[^;]*;\n)", r"\1.reg .pred %late;\n", kernel.ptx, count=1)
        ptx = re.sub(r"(cvt\.rn\.f32\.s32\s+(%r\d+), (%r\d+);\n)", late, ptx)
        return replace(kernel, ptx=ptx) if "@%late" in ptx else kernel

    monkeypatch.setattr(kernel_checks, "_ASIDE_ELEMENTS", 0)
    monkeypatch.setattr(kernel_checks, "_EARLY", (1, 2, 3))
    arguments = [np.array(0, np.int32), np.ones((6, 8), np.float32), NUMBERS[:8].reshape(1, 8)]
    assert {outcome.verdict for outcome in judged(STALE, arguments).values()} == {"agrees"}
    outcomes = judged(STALE, arguments, plant, reads_stale_memory=True)
    assert [name for name, outcome in outcomes.items() if outcome.differs] == ["same"]
    assert outcomes["same"].place.startswith("iteration")


@pytest.mark.parametrize("engine", ["emulator", "jit"])
@pytest.mark.parametrize("config", ["", ', backend_config={"known_trip_count":{"n":"5"}}'])
def test_a_fault_in_a_kernel_that_updates_its_operand_in_a_loop(engine: str, config: str) -> None:
    """Native code runs the iterations that are not judged."""
    loop = LOOP.replace(", body=body", f", body=body{config}")
    arguments = [np.array(0, np.int32), np.zeros((6, 8), np.float32), np.ones((1, 8), np.float32)]
    right = judged(loop, arguments, engine=engine)
    assert {outcome.verdict for outcome in right.values()} == {"agrees"}
    assert right["updated"].unit.in_place
    assert 8 <= right["updated"].runs <= 11, "and seven times on operands of its own"
    assert judged(loop, arguments, checks_all=True, engine=engine)["updated"].runs == 5 + 7
    wrong = judged(loop, arguments, subtracting, engine=engine)
    assert [name for name, outcome in wrong.items() if outcome.differs] == ["updated"]


@pytest.mark.parametrize("engine", ["emulator", "jit"])
def test_the_last_iteration_of_a_loop_is_judged_once_its_number_is_known(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_checks, "_EARLY", (1, 2, 3))
    monkeypatch.setattr(kernel_checks, "_ASIDE_ELEMENTS", 0)
    module = parse(LOOP)
    executable = compile_module(PassContext(preset("h100"), CompileOptions()), module)
    backend = HostBackend(engine=engine)
    checks = KernelChecks(module, executable, Verdicts(ErrorSpec(1e-3, 1e-3), fixed_bounds=False), backend.run_aside)
    arguments = [np.array(0, np.int32), np.ones((6, 8), np.float32), NUMBERS[:8].reshape(1, 8)]
    backend.watch_next_run(checks)
    backend.run(executable, arguments)
    judged = {unit.name: outcome.runs for unit, outcome in checks.outcomes.items()}
    assert checks.begin_last()
    backend.watch_next_run(checks)
    backend.run(executable, arguments)
    again = {unit.name: outcome.runs for unit, outcome in checks.outcomes.items()}
    assert again["updated"] == judged["updated"] + 1
    assert not checks.begin_last(), "it is judged"


def test_what_costs_too_much_is_left_out_and_not_claimed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_checks, "_SAMPLE_ELEMENTS", 10_000)
    outcomes = judged(HIDDEN, [NUMBERS, NUMBERS, NUMBERS])
    assert summary(list(outcomes.values())) == (
        "1 of 2 kernels agree alone, worst error 0; not checked: 1 too large for a sample (--check_kernels=all checks all)"
    )


@pytest.mark.parametrize(("plant", "verdict"), [(unchanged, "agrees"), (subtracting, "differs")])
def test_a_large_elementwise_kernel_is_judged_on_blocks(
    plant: Callable[[Kernel], Kernel], verdict: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_checks, "_SAMPLE_ELEMENTS", 10_000)
    numbers = np.linspace(-2, 3, 40_000, dtype=np.float32)
    outcomes = judged(HIDDEN.replace("f32[40]", "f32[40000]"), [numbers, numbers[::-1].copy(), numbers], plant)
    assert {name: outcome.verdict for name, outcome in outcomes.items()} == {"first": verdict, "second": "agrees"}
    assert outcomes["second"].sampled
    if verdict == "agrees":
        assert summary(list(outcomes.values())) == "2 of 2 kernels agree alone, worst error 0; 2 on a sample of their elements"


PARTS = """HloModule m, is_scheduled=true
f {
  x = f32[40] parameter(0)
  c = f32[] constant(0)
  zeros = f32[40] broadcast(c), dimensions={}
  p = f32[40] multiply(x, zeros)
  s = f32[40] add(x, x)
  ROOT t = (f32[40], f32[40], f32[40]) tuple(s, p, zeros)
}
ENTRY e {
  x = f32[40] parameter(0)
  ROOT first = (f32[40], f32[40], f32[40]) fusion(x), kind=kLoop, calls=f
}
"""


def test_a_result_that_shows_nothing() -> None:
    """A product with zeros is always zero. What depends on no operand is as it shall be."""
    outcomes = judged(PARTS, [NUMBERS])
    assert (outcomes["first"].verdict, set(outcomes["first"].unseen)) == ("agrees", {(1,)})
    assert summary(list(outcomes.values())).endswith("; 1 shows nothing in some results: %first")
    assert (
        rows_of(list(outcomes.values()))[1][0][-1] == "result {1} shows nothing; also on floats in [0.5, 2), integers in [0, 3]"
    )


def test_a_number_that_is_everywhere_shows_something_if_it_is_another_one_each_time() -> None:
    text = """HloModule m, is_scheduled=true
    f {
      x = f32[] parameter(0)
      ROOT b = f32[40] broadcast(x), dimensions={}
    }
    ENTRY e {
      x = f32[] parameter(0)
      ROOT first = f32[40] fusion(x), kind=kLoop, calls=f
    }
    """
    assert judged(text, [np.array(0, np.float32)])["first"].verdict == "agrees"


def _chain(count: int) -> str:
    """Return a module of kernels that differ in a constant, each with the result of the one before."""
    bodies = "".join(
        f"f{n} {{ x = f32[40] parameter(0) c = f32[] constant({n}) b = f32[40] broadcast(c), dimensions={{}} "
        f"ROOT s = f32[40] add(x, b) }}\n"
        for n in range(count)
    )
    lines = "".join(f"  v{n + 1} = f32[40] fusion(v{n}), kind=kLoop, calls=f{n}\n" for n in range(count))
    entry = f"ENTRY e {{\n  v0 = f32[40] parameter(0)\n{lines}  ROOT r = f32[40] copy(v{count})\n}}"
    return f"HloModule m, is_scheduled=true\n{bodies}{entry}"


def _on_devices(devices: int, checks_all: bool, plant: Callable[[Kernel], Kernel]) -> list[Outcome]:
    module = parse(_chain(6))
    made = compile_module(PassContext(preset("h100"), CompileOptions()), module)
    executable: Executable = replace(made, kernels=tuple(map(plant, made.kernels)))
    backend = HostBackend()
    bounds = ErrorSpec(abs=1e-3, rel=1e-3)
    checks = KernelChecks(module, executable, Verdicts(bounds, fixed_bounds=False), backend.run_aside, checks_all)
    backend.watch_next_run(checks)
    backend.run_devices(executable, [[NUMBERS + n] for n in range(devices)], devices, 1)
    checks.finish()
    return list(checks.outcomes.values())


def test_each_kernel_is_judged_on_one_of_several_devices() -> None:
    places = [outcome.place.split(",")[0] for outcome in _on_devices(4, checks_all=False, plant=subtracting)]
    assert len(places) == 6
    assert {f"device {n}" for n in range(4)} >= set(places)
    assert len(set(places)) > 1, "not all on the first one"
    assert {outcome.verdict for outcome in _on_devices(4, checks_all=False, plant=unchanged)} == {"agrees"}


def test_all_checks_are_on_all_devices() -> None:
    outcomes = _on_devices(2, checks_all=True, plant=unchanged)
    assert {outcome.runs - bool(outcome.own_operands) for outcome in outcomes} == {2}


def test_a_run_on_cuda_is_judged_in_the_same_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rehearsed with a stand-in for the driver."""
    for module, name in ((device, "device_problem"), (device, "load_driver"), (graphs, "load_cuda")):
        monkeypatch.setattr(module, name, getattr(module, name))
    for name in ("load_binding", "load_cudnn"):
        monkeypatch.setattr(libraries, name, getattr(libraries, name))
    install_stand_ins()
    outcomes = judged(HIDDEN, [ZEROS, ZEROS, NANS], subtracting, make_backend=CudaBackend)
    assert [(name, outcome.verdict) for name, outcome in outcomes.items()] == [("first", "differs"), ("second", "agrees")]
    loop = [np.array(0, np.int32), np.zeros((6, 8), np.float32), np.ones((1, 8), np.float32)]
    assert {outcome.verdict for outcome in judged(LOOP, loop, make_backend=CudaBackend).values()} == {"agrees"}


def test_a_kernel_that_the_run_does_not_reach_is_judged_on_operands_of_its_own() -> None:
    """The loop ends at once, so nothing in its body runs."""
    arguments = [np.array(9, np.int32), np.zeros((6, 8), np.float32), np.ones((1, 8), np.float32)]
    assert {outcome.verdict for outcome in judged(LOOP, arguments).values()} == {"agrees"}
    outcome = judged(LOOP, arguments, subtracting)["updated"]
    assert (outcome.verdict, outcome.runs) == ("differs", 1)
    assert outcome.place.startswith("on operands of its own")


SHIFTED = """HloModule m, is_scheduled=true
larger { a = f32[] parameter(0) b = f32[] parameter(1) ROOT m = f32[] maximum(a, b) }
f {
  x = f32[40,3] parameter(0)
  low = f32[] constant(-inf)
  most = f32[40] reduce(x, low), dimensions={1}, to_apply=larger
  wide = f32[40,3] broadcast(most), dimensions={0}
  less = f32[40,3] subtract(x, wide)
  e = f32[40,3] exponential(less)
  again = f32[40,3] exponential(wide)
  ROOT p = f32[40,3] multiply(e, again)
}
ENTRY e {
  x = f32[40,3] parameter(0)
  ROOT first = f32[40,3] fusion(x), kind=kLoop, calls=f
}
"""


def test_a_wrong_maximum_that_cancels_in_exponentials() -> None:
    """Rounding alone tells the results apart, unless exponentials overflow."""

    def plant(kernel: Kernel) -> Kernel:
        ptx = re.sub(r"max\.NaN\.f32", "min.NaN.f32", kernel.ptx)
        assert ptx != kernel.ptx, kernel.ptx
        return replace(kernel, ptx=ptx)

    arguments = [np.linspace(-1, 1, 120, dtype=np.float32).reshape(40, 3)]
    assert judged(SHIFTED, arguments)["first"].verdict == "agrees"
    outcome = judged(SHIFTED, arguments, plant)["first"]
    assert outcome.verdict == "differs"
    assert "[-300, 300)" in outcome.place


CANCELLED = """HloModule m, is_scheduled=true
plus { a = f32[] parameter(0) b = f32[] parameter(1) ROOT s = f32[] add(a, b) }
f {
  x = f32[8,64] parameter(0)
  means = f32[8] parameter(1)
  zero = f32[] constant(0)
  wide = f32[8,64] broadcast(means), dimensions={0}
  less = f32[8,64] subtract(x, wide)
  ROOT s = f32[8] reduce(less, zero), dimensions={1}, to_apply=plus
}
ENTRY e {
  x = f32[8,64] parameter(0)
  means = f32[8] parameter(1)
  ROOT first = f32[8] fusion(x, means), kind=kLoop, calls=f
}
"""


def test_a_kernel_whose_sums_cancel_in_the_run_is_judged_on_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """The differences from a mean add up to nothing but rounding, so zeros are as good as the right sums."""

    def plant(kernel: Kernel) -> Kernel:
        ptx = re.sub(r"(st\.global\S*\s+\[\S+\], )%\w+;", r"\g<1>0;", kernel.ptx)
        assert ptx != kernel.ptx, kernel.ptx
        return replace(kernel, ptx=ptx)

    monkeypatch.setattr(kernel_checks, "_ASIDE_ELEMENTS", 0)
    numbers = np.random.default_rng(3).normal(size=(8, 64)).astype(np.float32)
    arguments = [numbers, numbers.mean(1)]
    assert judged(CANCELLED, arguments)["first"].verdict == "agrees"
    outcome = judged(CANCELLED, arguments, plant)["first"]
    assert outcome.verdict == "differs"
    assert outcome.place.startswith("on operands of its own")


def test_the_line_when_no_kernel_was_checked() -> None:
    outcome = next(iter(judged(HIDDEN, [NUMBERS, NUMBERS, NUMBERS]).values()))
    assert summary([Outcome(outcome.unit)]) == "no kernel was checked alone: 1 not reached by the run"
