"""The check of operands: every instruction with a wrong number, kind or width of operands is an error at its line."""

from __future__ import annotations

import pytest

from hlo_run.backends.host.ptx.control_flow import build_graph
from hlo_run.backends.host.ptx.parser import parse_module
from hlo_run.errors import ParseError, Unsupported

_KERNEL = """.version 8.6
.target sm_90
.address_size 64
.visible .entry k(.param .u64 k_0)
{{
.reg .pred %p<5>;
.reg .b16 %rs<5>;
.reg .b32 %r<9>;
.reg .b64 %rd<9>;
.shared .align 4 .b32 tile[4];
{}
ret;
}}"""


def _check(text: str) -> None:
    build_graph(parse_module(_KERNEL.format(text)), "k")


@pytest.mark.parametrize(
    "text",
    [
        "add.s32 %r1, %r2, -7;",
        "add.s64 %rd1, %rd2, tile;",
        "add.f32.bf16 %r1, %rs1, %r2;",
        "mul.wide.u32 %rd1, %r1, 4;",
        "mad.wide.s32 %rd1, %r1, %r2, %rd2;",
        "setp.lt.s32 %p1|%p2, %r1, 3;",
        "setp.eq.and.f32 %p1, %r1, 0f3F800000, !%p2;",
        "selp.b32 %r1, 1, %r2, %p1;",
        "ld.global.b8 %rs1, [%rd1+4];",
        "ld.global.v2.b32 {%r1, _}, [%rd1];",
        "ld.shared.b16 %r1, [tile+2];",
        "st.shared.v2.f32 [%r1], {%r2, 0f00000000};",
        "atom.global.cas.b32 %r1, [%rd1], %r2, %r3;",
        "red.global.add.f32 [%rd1], %r2;",
        "mov.b64 {%r1, %r2}, %rd1;",
        "mov.b32 %r1, {%rs1, %rs2};",
        "mov.u32 %r1, %tid.x;",
        "cvt.u64.u32 %rd1, %tid.x;",
        "cvt.s32.s8 %r1, %r2;",
        "cvt.rn.bf16x2.f32 %r1, %r2, %r3;",
        "shfl.sync.down.b32 %r1|%p1, %r2, 16, 31, -1;",
        "vote.sync.ballot.b32 %r1, %p1, -1;",
        "bar.red.popc.u32 %r1, 0, %p1;",
        "@!%p1 trap;",
    ],
)
def test_valid_operands(text: str) -> None:
    _check(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("add.s32 %r1, %r2;", "3 operands, not 2"),
        ("add.s32 %r1, %r2, %rd1;", "register '%rd1' has 64 bits, the instruction needs 32"),
        ("add.s32 %r1, %r2, %p1;", "register '%p1' has 1 bits"),
        ("add.s32 1, %r2, %r3;", "result must be a register"),
        ("add.f16 %rs1, %rs2, 0f3F800000;", "cannot be a value of type .f16"),
        ("add.s16 %rs1, %rs2, 0f3F800000;", "cannot be a value of type .s16"),
        ("add.s32 %r1, %r2, [%rd1];", "cannot be a value of type .s32"),
        ("add.s32 %r1, %r2, nothing;", "'nothing' is not a variable"),
        ("mul.wide.u32 %r1, %r1, 4;", "register '%r1' has 32 bits, the instruction needs 64"),
        ("mov.u64 %rd1, %tid.x;", "'%tid.x' has 32 bits, the instruction needs 64"),
        ("mov.u32 %r1, {%r1};", ""),
        ("ld.global.b64 %r1, [%rd1];", "the instruction needs 64"),
        ("ld.global.b32 %r1, %rd1;", "address in brackets"),
        ("ld.global.b32 %r1, [%rs1];", "must have 64 bits"),
        ("ld.shared.b32 %r1, [%rs1];", "must have 32 or 64 bits"),
        ("ld.global.b32 %r1, [nothing];", "'nothing' is not a variable"),
        ("ld.global.v4.b32 {%r1, %r2}, [%rd1];", "it needs 4 elements"),
        ("ld.global.b32 {%r1, %r2}, [%rd1];", "no elements in braces"),
        ("atom.global.cas.b32 %r1, [%rd1], %r2;", "4 operands, not 3"),
        ("atom.global.b32 %r1, [%rd1], %r2;", ""),
        ("setp.s32 %p1, %r1, %r2;", ""),
        ("setp.lt.and.s32 %p1, %r1, %r2;", "4 operands, not 3"),
        ("lop3.b32 %r1, %r2, %r3, %r4, 256;", "from 0 to 255"),
        ("bra;", "1 operands, not 0"),
        ("bra %r1;", "needs a label"),
        ("bar.red.popc.u32 %r1, 0;", "3 or 4 operands, not 2"),
        ("@%r1 trap;", "the guard '%r1' is not a predicate"),
    ],
)
def test_invalid_operands(text: str, message: str) -> None:
    with pytest.raises((ParseError, Unsupported)) as caught:
        _check(text)
    assert message in caught.value.message
    assert caught.value.where is None or caught.value.where.line == 11


@pytest.mark.parametrize(
    "declaration",
    [
        ".shared .align .b8 a[4];",
        ".shared .align 3 .b8 a[4];",
        ".shared .pred a;",
        ".shared .b8 a[99999999999999999999999999];",
        f".reg .b32 %x<{'9' * 5000}>;",
        f"mov.u32 %r1, {'9' * 5000};",
    ],
)
def test_invalid_declarations(declaration: str) -> None:
    with pytest.raises(ParseError):
        _check(declaration)


@pytest.mark.parametrize("header", [".version 9\n", ".version 8.6\n.address_size x\n", ".version 8.6\n.address_size 16\n"])
def test_invalid_headers(header: str) -> None:
    with pytest.raises(ParseError):
        parse_module(header)
