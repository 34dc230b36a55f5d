"""Device functions: calls of them are expanded, and what is passed may be read in other widths than it was written."""

from __future__ import annotations

import numpy as np
import pytest
from host_kernels import kernel, run_text

from hlo_run.errors import Unsupported


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


def test_calls_that_cannot_be_inlined_are_refused() -> None:
    for functions, call in (
        (".func f() { call.uni f; ret; }", "call.uni f;"),
        (".extern .func g();", "call.uni g;"),
    ):
        with pytest.raises(Unsupported, match=r"line \d+ of the PTX"):
            run_text(kernel(call, 0, functions), [])
