"""Device functions: they are copied or called, and what is passed may be read in other widths than it was written."""

from __future__ import annotations

import host_kernels
import numpy as np
import pytest
from host_kernels import kernel, run_text

from hlo_run.backends.host.jit.engine import JitEngine
from hlo_run.backends.host.ptx import call_plan
from hlo_run.errors import Unsupported


@pytest.fixture
def always_called(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let kernels call all functions at which threads do not meet."""
    monkeypatch.setattr(call_plan, "MOST_COPIED", 0)
    monkeypatch.setattr(call_plan, "SMALL", 0)
    monkeypatch.setattr(host_kernels, "JIT", JitEngine(in_order=True))  # the other one may know the same text with copies


@pytest.fixture(params=["copied", "called"])
def both_ways(request: pytest.FixtureRequest) -> None:
    """Run a test with functions that are copied and with functions that are called."""
    if request.param == "called":
        request.getfixturevalue("always_called")


@pytest.mark.usefixtures("both_ways")
def test_device_functions() -> None:
    functions = """
.func (.param .b32 func_retval0) square_or_zero(.param .b32 x, .param .b32 limit)
{
.reg .b32 %r<5>; .reg .pred %p<2>;
ld.param.b32 %r1, [x]; ld.param.b32 %r2, [limit];
setp.lt.u32 %p1, %r1, %r2;
@%p1 bra SMALL;
st.param.b32 [func_retval0], 0;
ret;
SMALL:
mul.lo.u32 %r3, %r1, %r1;
st.param.b32 [func_retval0], %r3;
ret;
}
.func (.reg .b32 %out) plus(.reg .b32 %in, .reg .b32 %by) { add.u32 %out, %in, %by; ret; }
.func twice(.param .b64 place, .param .align 8 .b8 pair[8])
{
.reg .b32 %r<5>; .reg .b64 %rd<2>;
ld.param.b64 %rd1, [place]; ld.param.v2.b32 {%r1, %r2}, [pair];
add.u32 %r1, %r1, %r2; st.global.u32 [%rd1], %r1; ret;
}
"""
    body = """
    { .param .b32 param0; .param .b32 param1; .param .b32 retval0;
    st.param.b32 [param0], %i; st.param.b32 [param1], 20;
    call.uni (retval0), square_or_zero, (param0, param1);
    ld.param.b32 %r1, [retval0]; }
    { .param .b32 param0; .param .b32 param1; .param .b32 retval0;
    st.param.b32 [param0], %r1; st.param.b32 [param1], 100;
    call.uni (retval0), square_or_zero, (param0, param1);
    ld.param.b32 %r2, [retval0]; }
    call (%r3), plus, (%r2, 5);
    add.s64 %d1, %p0, %w4;
    { .param .b64 param0; .param .align 8 .b8 param1[8];
    st.param.b64 [param0], %d1; st.param.b32 [param1], %r3; st.param.b32 [param1+4], %r1;
    call.uni twice, (param0, param1); }"""
    out = np.zeros(32, np.uint32)
    run_text(kernel(body, 1, functions), [out])
    small = [i * i if i < 20 else 0 for i in range(32)]
    assert out.tolist() == [(s * s if s < 100 else 0) + 5 + s for s in small]


_SAME = """
.func (.param .align 8 .b8 result[8]) same(.param .align 8 .b8 x[8])
{{
.reg .b16 %h<5>; .reg .b32 %r<5>; .reg .b64 %rd<5>;
ld.param.{type} %{register}, [x]; st.param.{type} [result], %{register}; ret;
}}
"""


@pytest.mark.usefixtures("both_ways")
@pytest.mark.parametrize(
    ("store", "type_and_register", "load", "expected"),
    [
        # A callee that reads a part of what is passed gets the low bits.
        ("st.param.b32 [in], %r1;", "b16 h1", "ld.param.b16 %h1, [out]; cvt.u32.u16 %r2, %h1;", 0x8382),
        ("st.param.b32 [in], %r1;", "b8 h1", "ld.param.b8 %h1, [out]; cvt.u32.u16 %r2, %h1;", 0x82),
        ("st.param.b64 [in], %d1;", "b32 r1", "ld.param.b32 %r2, [out];", 0x85848382),
        ("st.param.b16 [in], %h1;", "b8 h1", "ld.param.b8 %h2, [out]; cvt.u32.u16 %r2, %h2;", 0x82),
        # A register may be wider than what it passes.
        ("st.param.b8 [in], %r1;", "b8 r1", "ld.param.b8 %r2, [out];", 0x82),
        ("st.param.b16 [in], %r1;", "b16 r1", "ld.param.b16 %r2, [out];", 0x8382),
        # The sign of a signed load fills the register.
        ("st.param.b8 [in], %h1;", "b8 h1", "ld.param.s8 %h2, [out]; cvt.u32.u16 %r2, %h2;", 0xFF82),
        ("st.param.b8 [in], %h1;", "b8 h1", "ld.param.s8 %r2, [out];", 0xFFFFFF82),
        ("st.param.b16 [in], %h1;", "b16 h1", "ld.param.s16 %r2, [out];", 0xFFFF8382),
        ("st.param.b32 [in], %r1;", "b32 r1", "ld.param.s32 %d2, [out]; mov.b64 {%r3, %r2}, %d2;", 0xFFFFFFFF),
        ("st.param.b8 [in], %h1;", "b8 h1", "ld.param.u8 %r2, [out];", 0x82),
        ("st.param.b16 [in], %d1;", "b16 rd1", "ld.param.b16 %r2, [out];", 0x8382),
        # One load may join what several stores wrote.
        ("st.param.b32 [in], %r1; st.param.b32 [in+4], 7;", "b64 rd1", "ld.param.b64 %d2, [out]; mov.b64 {%r3, %r2}, %d2;", 7),
        ("st.param.b16 [in], %h1; st.param.b16 [in+2], 7;", "b32 r1", "ld.param.b32 %r2, [out];", 0x78382),
    ],
)
def test_device_functions_read_parameters_in_other_widths(store: str, type_and_register: str, load: str, expected: int) -> None:
    type_name, register = type_and_register.split()
    function = _SAME.format(type=type_name, register=register)
    body = f"""
    mov.b64 %d1, 0x8988878685848382; cvt.u32.u64 %r1, %d1; cvt.u16.u64 %h1, %d1;
    {{ .param .align 8 .b8 in[8]; .param .align 8 .b8 out[8];
    {store}
    call.uni (out), same, (in);
    {load} }}
    add.s64 %d3, %p0, %w4;
    st.global.u32 [%d3], %r2;"""
    out = np.zeros(32, np.uint32)
    run_text(kernel(body, 1, function), [out])
    assert [hex(value) for value in out.tolist()] == [hex(expected)] * 32


_STEPS = """
.func (.reg .b32 %out) steps(.reg .b32 %in)
{
.reg .pred %p; .reg .b32 %n;
mov.u32 %out, 0; mov.u32 %n, %in;
MORE:
setp.le.u32 %p, %n, 1;
@%p ret;
add.u32 %out, %out, 1; shr.u32 %n, %n, 1;
bra MORE;
}
.func (.reg .b32 %out) odd_steps(.reg .b32 %in)
{
.reg .pred %p; .reg .b32 %a; .reg .b32 %b;
and.b32 %a, %in, 1; setp.eq.u32 %p, %a, 0;
@%p bra EVEN;
call (%a), steps, (%in); add.u32 %b, %in, 5; call (%b), steps, (%b);
mad.lo.u32 %out, %a, 100, %b;
ret;
EVEN:
mov.u32 %out, 7;
}
"""


@pytest.mark.usefixtures("both_ways")
def test_threads_diverge_around_calls_and_in_functions() -> None:
    body = """
    setp.lt.u32 %q1, %i, 20;
    @%q1 bra LOW;
    call (%r1), odd_steps, (%i); add.u32 %r2, %r1, 1000;
    bra BOTH;
    LOW:
    call (%r1), steps, (%i); call (%r3), odd_steps, (%r1); mad.lo.u32 %r2, %r3, 1000, %r1;
    BOTH:
    call (%r4), steps, (%r2);
    add.s64 %d1, %p0, %w8; st.global.v2.u32 [%d1], {%r2, %r4};"""

    def steps(n: int) -> int:
        return max(0, n.bit_length() - 1)

    def odd_steps(n: int) -> int:
        return 100 * steps(n) + steps(n + 5) if n % 2 else 7

    out = np.zeros((64, 2), np.uint32)
    run_text(kernel(body, 1, _STEPS), [out], grid=2)
    first = [odd_steps(steps(i)) * 1000 + steps(i) if i < 20 else odd_steps(i) + 1000 for i in range(64)]
    assert out.tolist() == [[value, steps(value)] for value in first]


@pytest.mark.usefixtures("always_called")
def test_functions_that_call_the_next_one_twice_run_once() -> None:
    """Copied, or computed at each call, the 48 functions would take 2^48 turns."""
    functions = [".func (.reg .b32 %out) f0(.reg .b32 %in) { add.u32 %out, %in, 1; ret; }"]
    for number in range(1, 48):
        functions.append(f"""
        .func (.reg .b32 %out) f{number}(.reg .b32 %in)
        {{
        .reg .b32 %a; .reg .b32 %b;
        call (%a), f{number - 1}, (%in); call (%b), f{number - 1}, (%in);
        add.u32 %out, %a, %b; ret;
        }}""")
    body = """
    call (%r1), f20, (%i); call (%r2), f47, (%i); add.u32 %r1, %r1, %r2;
    add.s64 %d1, %p0, %w4; st.global.u32 [%d1], %r1;"""
    out = np.zeros(32, np.uint32)
    run_text(kernel(body, 1, "\n".join(functions)), [out])
    assert out.tolist() == [(i + 1) << 20 for i in range(32)]


@pytest.mark.usefixtures("always_called")
def test_results_are_not_kept_when_memory_changes() -> None:
    functions = """
    .func (.reg .b32 %out) read(.reg .b64 %place) { ld.global.u32 %out, [%place]; ret; }
    .func (.reg .b32 %out) count(.reg .b64 %place)
    {
    .reg .b32 %a;
    ld.global.u32 %a, [%place]; add.u32 %out, %a, 1; st.global.u32 [%place], %out; ret;
    }
    """
    body = """
    add.s64 %d1, %p0, %w4;
    call (%r1), read, (%d1); call (%r2), read, (%d1);
    st.global.u32 [%d1], 50; call (%r3), read, (%d1);
    call (%r4), count, (%d1); call (%r4), count, (%d1); call (%r5), read, (%d1);
    mad.lo.u32 %r6, %r1, 10, %r2; mad.lo.u32 %r6, %r6, 100, %r3; mad.lo.u32 %r6, %r6, 100, %r5;
    st.global.u32 [%d1], %r6;"""
    out = np.arange(32, dtype=np.uint32)
    run_text(kernel(body, 1, functions), [out])
    assert out.tolist() == [(11 * i * 100 + 50) * 100 + 52 for i in range(32)]


_SHUFFLED = """
.func (.reg .b32 %out) next(.reg .b32 %in) { shfl.sync.down.b32 %out, %in, 1, 31, -1; ret; }
"""


def test_threads_meet_in_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    body = "call (%r1), next, (%i); add.s64 %d1, %p0, %w4; st.global.u32 [%d1], %r1;"
    expected = [*range(1, 32), 31]
    monkeypatch.setattr(call_plan, "MOST_COPIED", 0)
    out = np.zeros(32, np.uint32)
    run_text(kernel(body, 1, _SHUFFLED), [out])
    assert out.tolist() == expected
    # Too many copies of a function at which threads meet: the emulator calls it.
    monkeypatch.setattr(host_kernels, "JIT", JitEngine())
    monkeypatch.setattr(call_plan, "SMALL", 0)
    monkeypatch.setattr(call_plan, "MOST_WITH_MEETINGS", 0)
    out[:] = 0
    with pytest.raises(Unsupported, match="threads meet in function 'next'") as caught:
        run_text(kernel(body, 1, _SHUFFLED), [out])
    assert out.tolist() == expected
    assert "--host_engine=emulator" in caught.value.hint


def test_calls_that_host_cannot_run_are_refused() -> None:
    for functions, call in (
        (".func f() { call.uni f; ret; }", "call.uni f;"),
        (".func g(); .func f() { call.uni g; ret; } .func g() { call.uni f; ret; }", "call.uni f;"),
        (".extern .func g();", "call.uni g;"),
    ):
        with pytest.raises(Unsupported, match=r"line \d+ of the PTX") as caught:
            run_text(kernel(call, 0, functions), [])
        assert "--platform=Interpreter" in caught.value.hint
