"""Thunk texts in XLA's format, and command buffers: which thunks are recorded, and that a replay computes the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hlo_run
from hlo_run.artifact import CommandBufferThunk, Executable, Thunk, nested_sequences
from hlo_run.backends.host.backend import HostBackend
from hlo_run.cli import run
from hlo_run.errors import UsageError
from hlo_run.ops.parse import parse
from hlo_run.options import Options
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.pipeline.compile import compile_module
from hlo_run.runtime.async_thunks import stream_numbers
from hlo_run.runtime.thunk_text import thunk_metadata_text, thunk_sequence_text
from hlo_run.target import preset

MODULE = """HloModule w
condition { p = (s32[], s32[], f32[64,64]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  n = s32[] get-tuple-element(p), index=1
  ROOT c = pred[] compare(i, n), direction=LT }
body { p = (s32[], s32[], f32[64,64]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  n = s32[] get-tuple-element(p), index=1
  x = f32[64,64] get-tuple-element(p), index=2
  one = s32[] constant(1)
  j = s32[] add(i, one)
  d = f32[64,64] dot(x, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  t = f32[64,64] tanh(d)
  ROOT r = (s32[], s32[], f32[64,64]) tuple(j, n, t) }
first { p = f32[64,64] parameter(0)
  d = f32[64,64] dot(p, p), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT s = f32[64,64] sine(d) }
second { p = f32[64,64] parameter(0)
  ROOT s = f32[64,64] cosine(p) }
ENTRY e { x = f32[64,64] parameter(0)
  n = s32[] parameter(1)
  q = pred[] parameter(2)
  z = s32[] constant(0)
  s = (s32[], s32[], f32[64,64]) tuple(z, n, x)
  w = (s32[], s32[], f32[64,64]) while(s), condition=condition, body=body
  v = f32[64,64] get-tuple-element(w), index=2
  c = f32[64,64] conditional(q, v, x), true_computation=first, false_computation=second
  ROOT f = c64[64,33] fft(c), fft_type=RFFT, fft_length={64} }
"""
# The output of XLA:GPU for this module and an H100, including the blanks at the ends of lines.
ONE_THREAD = "grid: [1, 1, 1] threads: [1, 1, 1]  shared_memory: 0 bytes"
THREADS = "threads: [128, 1, 1]  shared_memory: 0 bytes"
SEQUENCE = [
    "001: kCopy        [source       | next=003 (2)] kCopy",
    "002: kCopy        [source       | next=003 (1)] kCopy",
    "003: kWhile       [prev=002 (1) | next=011 (1)]   ",
    "condition:",
    "    004: kCustomKernel [source | sink] wrapped_compare grid: [1, 1, 1] threads: [1, 1, 1]  shared_memory: 0 bytes",
    "  body:",
    f"    005: kCustomKernel   [source       | sink        ] loop_add_fusion {ONE_THREAD}",
    "    006: kCublasLtMatmul [source       | next=007 (1)] kCublasLtMatmul",
    f"    007: kCustomKernel   [prev=006 (1) | sink        ] wrapped_tanh grid: [32, 1, 1] {THREADS}",
    "011: kConditional [prev=003 (1) | next=012 (1)]   ",
    "  false_branch:",
    "    008: kCublasLtMatmul [source       | next=009 (1)] kCublasLtMatmul",
    f"    009: kCustomKernel   [prev=008 (1) | sink        ] wrapped_sine grid: [32, 1, 1] {THREADS}",
    "  true_branch:",
    f"    010: kCustomKernel [source | sink] wrapped_cosine grid: [32, 1, 1] {THREADS}",
    "012: kFft         [prev=011 (1) | sink        ] (no description)",
]
# A loop over slices of an array. The sequence is the output of XLA:GPU for an H100.
SLICES = """HloModule slices
condition { t = (s32[], f32[4,64,64], f32[4,64,64], f32[64,64]) parameter(0)
  i = s32[] get-tuple-element(t), index=0
  n = s32[] constant(4)
  ROOT c = pred[] compare(i, n), direction=LT }
body { t = (s32[], f32[4,64,64], f32[4,64,64], f32[64,64]) parameter(0)
  i = s32[] get-tuple-element(t), index=0
  w = f32[4,64,64] get-tuple-element(t), index=1
  o = f32[4,64,64] get-tuple-element(t), index=2
  x = f32[64,64] get-tuple-element(t), index=3
  z = s32[] constant(0)
  s = f32[1,64,64] dynamic-slice(w, i, z, z), dynamic_slice_sizes={1,64,64}
  r = f32[64,64] reshape(s)
  d = f32[64,64] dot(r, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  u = f32[1,64,64] reshape(d)
  p = f32[4,64,64] dynamic-update-slice(o, u, i, z, z)
  one = s32[] constant(1)
  j = s32[] add(i, one)
  ROOT n = (s32[], f32[4,64,64], f32[4,64,64], f32[64,64]) tuple(j, w, p, d) }
ENTRY e { w = f32[4,64,64] parameter(0)
  o = f32[4,64,64] parameter(1)
  x = f32[64,64] parameter(2)
  z = s32[] constant(0)
  t = (s32[], f32[4,64,64], f32[4,64,64], f32[64,64]) tuple(z, w, o, x)
  l = (s32[], f32[4,64,64], f32[4,64,64], f32[64,64]) while(t), condition=condition, body=body
  ROOT p = f32[4,64,64] get-tuple-element(l), index=2 }
"""
# The output of XLA:GPU (jaxlib 0.12.0.1, emitters only) for this module and an H100.
SLICES_SEQUENCE = [
    "001: kCopy  [source       | next=004 (3)] kCopy",
    "002: kCopy  [source       | next=004 (2)] kCopy",
    "003: kCopy  [source       | next=004 (1)] kCopy",
    "004: kWhile [prev=003 (1) | sink        ]   ",
    "condition:",
    f"    005: kCustomKernel [source | sink] loop_compare_fusion {ONE_THREAD}",
    "  body:",
    "    006: kDynamicSliceFusion [source       | next=008 (1)] params=2, results=2",
    "        007: kCublasLtMatmul [source | sink] kCublasLtMatmul",
    "    008: kAsyncStart         [prev=006 (1) | sink        ] stream=computation_stream[0], async_id=8",
    "        010: kDynamicSliceFusion [source | sink] params=1, results=1",
    "            009: kCopy [source | sink] kCopy",
    "    011: kCopy               [prev=006 (2) | sink        ] kCopy",
    "    012: kAsyncDone          [source       | sink        ] async_id=8",
    f"    013: kCustomKernel       [source       | sink        ] loop_add_fusion {ONE_THREAD}",
]
# Copies and convolutions, whose scratch memory is empty and at one place. The sequences are the output of XLA:GPU for an H100.
COPIES = """HloModule copies
ENTRY e { p = f32[1024] parameter(0)
  a = f32[1024] negate(p)
  c = f32[1024] copy(p)
  ROOT t = (f32[1024], f32[1024]) tuple(a, c) }
"""
CONVOLUTIONS = """HloModule convolutions
ENTRY e { p = f32[1,8,8,4] parameter(0)
  k = f32[3,3,4,4] parameter(1)
  l = f32[3,3,4,4] parameter(2)
  a = f32[1,6,6,4] convolution(p, k), window={size=3x3}, dim_labels=b01f_01io->b01f
  c = f32[1,6,6,4] convolution(p, l), window={size=3x3}, dim_labels=b01f_01io->b01f
  ROOT t = (f32[1,6,6,4], f32[1,6,6,4]) tuple(a, c) }
"""
# XLA has the same kinds of thunks for an H100: the kernel sorts in place, and the sum needs the operand.
SORT = """HloModule sorts
less { a = f32[] parameter(0) b = f32[] parameter(1) c = s32[] parameter(2) d = s32[] parameter(3)
  ROOT l = pred[] compare(a, b), direction=LT }
ENTRY e { p = f32[64,64] parameter(0)
  q = f32[64,64] negate(p)
  i = s32[64,64] iota(), iota_dimension=0
  s = (f32[64,64], s32[64,64]) sort(q, i), dimensions={0}, to_apply=less
  v = f32[64,64] get-tuple-element(s), index=0
  n = s32[64,64] get-tuple-element(s), index=1
  m = f32[64,64] add(v, q)
  ROOT t = (f32[64,64], s32[64,64]) tuple(m, n) }
"""
X = (0.1 * np.random.default_rng(7).standard_normal((64, 64))).astype(np.float32)


def compiled(text: str, **flags: Any) -> Executable:
    return compile_module(PassContext(preset("h100"), Options(compile_processes=1, **flags)), hlo_run.parse(text))


@pytest.fixture(scope="module")
def program() -> Executable:
    return compiled(MODULE)


def test_sequence(program: Executable) -> None:
    assert thunk_sequence_text(program).splitlines() == SEQUENCE


def test_asynchronous_copies() -> None:
    assert thunk_sequence_text(compiled(COPIES, xla_gpu_async_copy_min_bytes=0)).splitlines() == [
        "002: kAsyncStart   [source | sink] stream=computation_stream[0], async_id=2",
        "    001: kCopy [source | sink] kCopy",
        f"003: kCustomKernel [source | sink] wrapped_negate grid: [8, 1, 1] {THREADS}",
        "004: kAsyncDone    [source | sink] async_id=2",
    ]


def test_empty_scratch_memory() -> None:
    assert thunk_sequence_text(compiled(CONVOLUTIONS)).splitlines() == [
        f"001: kCustomKernel [source       | next=002 (1)] wrapped_transpose grid: [2, 1, 1] {THREADS}",
        "002: kConvolution  [prev=001 (1) | next=004 (2)] kConvolution",
        f"003: kCustomKernel [source       | next=004 (1)] wrapped_transpose grid: [2, 1, 1] {THREADS}",
        "004: kConvolution  [prev=003 (1) | sink        ] kConvolution",
    ]


def test_copies_of_slices() -> None:
    made = compiled(SLICES)
    assert thunk_sequence_text(made).splitlines() == SLICES_SEQUENCE
    assert [kernel.name for kernel in made.kernels] == ["loop_compare_fusion", "loop_add_fusion"]
    assert 'thunk_id: 10\n  }\n  thunk_kind: "kDynamicSliceFusion"' in thunk_metadata_text(made)
    weights, results = np.stack([X * n for n in (1, 2, 3, 4)]), np.zeros((4, 64, 64), np.float32)
    expected, x = results.copy(), X
    for n in range(4):
        x = expected[n] = weights[n] @ x
    np.testing.assert_allclose(HostBackend().run(made, [weights, results, X]), expected, rtol=1e-3, atol=1e-5)


def test_a_sort_copies_what_it_must_not_change() -> None:
    made = compiled(SORT)
    assert [line.split(" [")[0] for line in thunk_sequence_text(made).splitlines()] == [
        "001: kCustomKernel",
        "002: kCopy        ",
        "003: kCustomKernel",
        "004: kCustomKernel",
    ]
    values, order = HostBackend().run(made, [X])
    np.testing.assert_array_equal(values, np.sort(-X, axis=0) - X)
    np.testing.assert_array_equal(order, np.argsort(-X, axis=0))


def test_metadata(program: Executable) -> None:
    text = thunk_metadata_text(program)
    assert text.startswith('thunk_metadata {\n  thunk_info {\n    profile_annotation: "copy')
    assert '    profile_annotation: "w"\n    thunk_id: 3\n  }\n  thunk_kind: "kWhile"\n}\n' in text
    assert text.count("thunk_metadata {") == sum(1 for _ in _all(program.thunks))


def test_no_thunks() -> None:
    assert thunk_sequence_text(compiled("HloModule m\nENTRY e { ROOT t = () tuple() }")) == "No thunks."


def _all(thunks: tuple[Thunk, ...]) -> Any:
    for thunk in thunks:
        yield thunk
        for inner in nested_sequences(thunk):
            yield from _all(inner)


def _buffers(program: Executable) -> list[list[str]]:
    return [[t.kind for t in thunk.thunks] for thunk in _all(program.thunks) if isinstance(thunk, CommandBufferThunk)]


@pytest.mark.parametrize(
    ("kinds", "smallest", "expected"),
    [
        ("FUSION,CUBLASLT", 3, [["kCustomKernel", "kCublasLtMatmul", "kCustomKernel"]]),
        ("FUSION", 2, [["kCopy", "kCopy"]]),
        ("+WHILE", 4, [["kCopy", "kCopy", "kWhile", "kConditional"]]),
        ("+WHILE,-CONDITIONAL", 3, [["kCopy", "kCopy", "kWhile"]]),
        ("+WHILE", 5, []),
    ],
)
def test_runs_are_recorded(program: Executable, kinds: str, smallest: int, expected: list[list[str]]) -> None:
    made = compiled(MODULE, xla_gpu_enable_command_buffer=kinds, xla_gpu_graph_min_graph_size=smallest)
    assert _buffers(made) == expected
    backend, plain = HostBackend(), HostBackend()
    for times, flag in ((2, True), (0, False), (3, True)):
        arguments = [X * np.float32(1 + times / 4), np.array(times, np.int32), np.array(flag)]
        np.testing.assert_array_equal(backend.run(made, arguments), plain.run(program, arguments))


def test_texts_of_command_buffers() -> None:
    made = compiled(MODULE, xla_gpu_enable_command_buffer="FUSION,CUBLASLT", xla_gpu_graph_min_graph_size=3)
    lines = thunk_sequence_text(made).splitlines()
    (place,) = (number for number, line in enumerate(lines) if "kCommandBuffer" in line)
    assert lines[place : place + 2] == [
        "    000: kCommandBuffer [source | sink] ",
        f"        005: kCustomKernel   [source       | sink        ] loop_add_fusion {ONE_THREAD}",
    ]
    nameless = 'thunk_metadata {\n  thunk_info {\n  }\n  thunk_kind: "kSequential"\n}\n'
    named = '    profile_annotation: "command_buffer_5"\n  }\n  thunk_kind: "kCommandBuffer"\n}\n'
    assert f"{named}{nameless}" in thunk_metadata_text(made)


def test_static_shared_memory_is_not_printed() -> None:
    text = """sum { a = f32[] parameter(0) b = f32[] parameter(1) ROOT s = f32[] add(a, b) }
    ENTRY e { x = f32[512,64] parameter(0) z = f32[] constant(0)
      ROOT r = f32[64] reduce(x, z), dimensions={0}, to_apply=sum }"""
    program = compiled(text)
    assert any(kernel.shared_bytes for kernel in program.kernels)
    assert "shared_memory: 0 bytes" in thunk_sequence_text(program)


def test_an_empty_copy_is_a_thunk() -> None:
    program = compiled("HloModule m\nENTRY e { x = f32[0,5] parameter(0) ROOT c = f32[0,5] copy(x) }")
    assert thunk_sequence_text(program) == "001: kCopy [source | sink] kCopy\n"
    np.testing.assert_array_equal(HostBackend().run(program, [np.zeros((0, 5), np.float32)]), np.zeros((0, 5), np.float32))


def test_unknown_commands() -> None:
    with pytest.raises(UsageError, match="unknown command 'FUSSION'"):
        compiled(MODULE, xla_gpu_enable_command_buffer="FUSSION")


def test_dumps_and_the_profile(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, trace = tmp_path / "m.hlo", tmp_path / "trace.json"
    source.write_text("HloModule m\nENTRY e { x = f32[4] parameter(0)\n ROOT y = f32[4] negate(x) }", encoding="utf-8")
    flags = ["--xla_gpu_enable_command_buffer=FUSION", "--xla_gpu_graph_min_graph_size=1", "--platform=Host"]
    assert run([*flags, f"--xla_dump_to={tmp_path / 'd'}", f"--profile={trace}", "--iterations=2", str(source)]) == 0
    names = {path.name for path in (tmp_path / "d").iterdir()}
    assert {
        "module_0000.m.thunk_sequence.txt",
        "module_0000.m.thunk_sequence_after_thunk_passes.txt",
        "module_0000.m.thunk_metadata.txt",
    } <= names
    err = capsys.readouterr().err
    assert "kCommandBuffer" in err
    assert "2 runs," in err
    line = next(line for line in err.splitlines() if line.startswith("kCustomKernel"))
    assert line.split()[1:3] == ["wrapped_negate", "2"]
    assert line.split()[5] == "32", "bytes read and written"
    assert '"ph": "X"' in trace.read_text(encoding="utf-8")


_CHECKED = """HloModule m
ENTRY e {
  x = f32[256] parameter(0)
  i = s32[256] parameter(1)
  n = f32[256] sine(x)
  j = s32[256] negate(i)
  ROOT t = (f32[256], s32[256]) tuple(n, j)
}
"""
_WITH_CHECKS = """\
000: kCustomCall   [source | sink] kCustomCall
000: kSequential   [source | sink]   001: kCustomKernel           [source | sink] wrapped_sine grid: [2, 1, 1] \
threads: [128, 1, 1]  shared_memory: 0 bytes
  000: kBuffersDebugFloatCheck [source | sink] , buffers = 2
    buffer_idx: 0, buffer: {index:2, offset:0, size:1024}
    buffer_idx: 1, buffer: {index:0, offset:0, size:1024}
002: kCustomKernel [source | sink] wrapped_negate grid: [2, 1, 1] threads: [128, 1, 1]  shared_memory: 0 bytes
000: kCustomCall   [source | sink] kCustomCall
"""


def test_checks_of_floats_follow_their_thunks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "m.hlo"
    file.write_text(_CHECKED)
    flags = ["--xla_gpu_detect_nan=warning", str(file)]
    assert run(["--stage=thunks-after-passes", *flags]) == 0
    assert capsys.readouterr().out == _WITH_CHECKS
    assert run(["--stage=thunk-metadata", *flags]) == 0
    out = capsys.readouterr().out
    kinds = [line.split('"')[1] for line in out.splitlines() if "kind" in line]
    assert kinds[:4] == ["kCustomCall", "kSequential", "kCustomKernel", "kBuffersDebugFloatCheck"]


def test_checks_of_the_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "o.hlo"
    file.write_text(
        "HloModule o\nENTRY e { x = f32[64] parameter(0) n = s32[8] parameter(1)\n"
        "  a = f32[64] sine(x) b = s32[8] add(n, n) ROOT t = (f32[64], s32[8]) tuple(a, b) }"
    )
    flag = "--xla_gpu_experimental_thunk_buffer_debug_module_outputs"
    assert run([str(file), "--stage=thunks-after-passes", flag]) == 0
    kinds = [line.split()[1] for line in capsys.readouterr().out.splitlines() if line[:3].isdecimal()]
    ends = ["kCustomCall"]
    checks = ["kBuffersDebugChecksum", *ends, *ends * 2, "kBuffersDebugFloatCheck", *ends]
    assert kinds == [*ends * 2, *["kCustomKernel"] * 2, *checks], "a call per buffer of the result is after the checksum"
    assert run([str(file), "--stage=thunk-metadata", flag]) == 0
    assert capsys.readouterr().out.count("Buffer saver Module o Output Check") == 2


def test_streams_of_collectives() -> None:
    start = "(f32[64], f32[128]) all-gather-start({}), replica_groups={{{{0,1}}}}, dimensions={{0}}"
    gathers = "".join(f"  start{n} = {start.format(f'p{n}')}\n  g{n} = f32[128] all-gather-done(start{n})\n" for n in range(3))
    module = parse(
        "HloModule s, replica_count=2\nENTRY e {\n  p0 = f32[64] parameter(0)\n  p1 = f32[64] parameter(1)\n"
        f"  p2 = f32[64] parameter(2)\n{gathers}  ROOT t = (f32[128], f32[128], f32[128]) tuple(g0, g1, g2)\n}}\n"
    )
    assert list(stream_numbers(module).values()) == [0, 0, 0]
    assert list(stream_numbers(module, many_for_communication=True).values()) == [0, 1, 0]


def test_a_solve_is_in_place() -> None:
    """The texts of released XLA: the right side is copied to where cuBLAS solves."""
    config = '{"left_side":true,"lower":true,"transpose_a":"NO_TRANSPOSE"}'
    text = f"""HloModule solve
        ENTRY e {{ a = f32[4,4]{{0,1}} parameter(0)
          b = f32[4,3]{{0,1}} parameter(1)
          s = (f32[4,3]{{0,1}}, s8[32]) custom-call(a, b), custom_call_target="__cublas$triangularSolve", backend_config={config}
          ROOT x = f32[4,3]{{0,1}} get-tuple-element(s), index=0 }}"""
    made = compile_module(PassContext(preset("h100"), Options()), parse(text))
    assert "005: kSequential" in thunk_sequence_text(made)
    assert "  003: kCopy            [source       | next=004 (1)] kCopy\n  004: kTriangularSolve" in thunk_sequence_text(made)
    assert '  thunk_info {\n    thunk_id: 5\n  }\n  thunk_kind: "kSequential"\n' in thunk_metadata_text(made)
