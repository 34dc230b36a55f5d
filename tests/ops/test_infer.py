"""Shape rules: the shape that each opcode gives, and what it refuses."""

from __future__ import annotations

import pytest

import hlo_run
from hlo_run.errors import ParseError
from hlo_run.hlo.opcodes.table import OPCODES
from hlo_run.ops.infer import INFER

_COMPUTATIONS = """
add { a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT r = f32[] add(a, b) }
wide { a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT r = f32[] maximum(a, b) }
two { a = f32[] parameter(0)
  b = s32[] parameter(1)
  c = f32[] parameter(2)
  d = s32[] parameter(3)
  ROOT r = (f32[], s32[]) tuple(a, d) }
less { a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT r = pred[] compare(a, b), direction=LT }
double { a = f32[] parameter(0)
  ROOT r = f64[] convert(a) }
scan { a = f32[] parameter(0)
  b = f32[] parameter(1)
  s = f32[] add(a, b)
  ROOT r = (f32[], f32[]) tuple(s, s) }
body { a = f32[4,6] parameter(0)
  ROOT r = f32[4,6] negate(a) }
never { a = f32[4,6] parameter(0)
  ROOT r = pred[] constant(false) }
"""
_PARAMETERS = """  x = f32[4,6]{0,1} parameter(0)
  y = f32[4,6] parameter(1)
  h = f16[4,6] parameter(2)
  i = s32[4,6] parameter(3)
  u = u32[4,6] parameter(4)
  p = pred[4,6] parameter(5)
  c = c64[4,6] parameter(6)
  v = f32[6] parameter(7)
  z = f32[] parameter(8)
  k = s32[] parameter(9)
  b = pred[] parameter(10)
  t = (f32[4,6], s32[]) parameter(11)
  q = f32[5,4,4] parameter(12)
  n = s32[3,1] parameter(13)
  img = f32[2,8,9,3] parameter(14)
  ker = f32[3,3,3,7] parameter(15)
  tok = token[] parameter(16)
"""


def _parse(line: str) -> str:
    """Return the shape (without layout) of `r` in a module with the computations and parameters above."""
    text = f"HloModule m\n{_COMPUTATIONS}\nENTRY e {{\n{_PARAMETERS}  ROOT r = {line}\n}}\n".replace(
        "_INDEX ", "start_index_map={0}, index_vector_dim="
    )
    return hlo_run.parse(text, "f.hlo").entry.root.shape.to_string(layout=False)


# The shape is left out, so the rule alone decides it.
_INFERRED = {
    "add(x, y)": "f32[4,6]",
    "and(p, p)": "pred[4,6]",
    "and(i, i)": "s32[4,6]",
    "multiply(p, p)": "pred[4,6]",
    "mulhi(u, u)": "u32[4,6]",
    "shift-right-logical(i, i)": "s32[4,6]",
    "abs(c)": "f32[4,6]",
    "real(c)": "f32[4,6]",
    "imag(x)": "f32[4,6]",
    "is-finite(h)": "pred[4,6]",
    "sine(c)": "c64[4,6]",
    "not(p)": "pred[4,6]",
    "popcnt(u)": "u32[4,6]",
    "complex(x, y)": "c64[4,6]",
    "compare(x, y), direction=GE": "pred[4,6]",
    "compare(c, c), direction=LT": "pred[4,6]",
    "compare(x, y), direction=GE, type=TOTALORDER": "pred[4,6]",
    "select(p, x, y)": "f32[4,6]",
    "select(b, x, y)": "f32[4,6]",
    "clamp(z, x, z)": "f32[4,6]",
    "clamp(y, x, z)": "f32[4,6]",
    "transpose(x), dimensions={1,0}": "f32[6,4]",
    "transpose(q), dimensions={2,0,1}": "f32[4,5,4]",
    "reverse(x), dimensions={0,1}": "f32[4,6]",
    "concatenate(x, y, x), dimensions={0}": "f32[12,6]",
    "pad(x, z), padding=1_2x-1_0_2": "f32[7,15]",
    "pad(x, z), padding=-4_0x0_0": "f32[0,6]",
    "broadcast(z), dimensions={}": "f32[]",
    "tuple(x, k, t)": "(f32[4,6], s32[], (f32[4,6], s32[]))",
    "tuple()": "()",
    "get-tuple-element(t), index=1": "s32[]",
    "call(x), to_apply=body": "f32[4,6]",
    "while(x), condition=never, body=body": "f32[4,6]",
    "conditional(b, x, y), true_computation=body, false_computation=body": "f32[4,6]",
    "conditional(k, x, y, x), branch_computations={body, body, body}": "f32[4,6]",
    "reduce(x, z), dimensions={1}, to_apply=add": "f32[4]",
    "reduce(x, z), dimensions={}, to_apply=add": "f32[4,6]",
    "reduce(x, i, z, k), dimensions={0,1}, to_apply=two": "(f32[], s32[])",
    "reduce(h, z), dimensions={0}, to_apply=add": "f32[6]",
    "reduce-window(x, z), window={size=2x3 stride=1x2 pad=0_1x0_0}, to_apply=add": "f32[4,2]",
    "reduce-window(x, z), window={size=2x2 lhs_dilate=2x1 rhs_dilate=1x5}, to_apply=add": "f32[6,1]",
    "reduce-window(x, z), window={size=9x1}, to_apply=add": "f32[0,6]",
    "map(x, y), to_apply=wide": "f32[4,6]",
    "map(x), to_apply=double": "f64[4,6]",
    "sort(x), dimensions={1}, to_apply=less": "f32[4,6]",
    "topk(x), k=2": "(f32[4,2], s32[4,2])",
    "scan(v, z), dimensions={0}, num_carries=1, to_apply=scan": "(f32[6], f32[])",
    "dot(x, v), lhs_contracting_dims={1}, rhs_contracting_dims={0}": "f32[4]",
    "dot(q, q), lhs_batch_dims={0}, rhs_batch_dims={0}, lhs_contracting_dims={1}, rhs_contracting_dims={2}": "f32[5,4,4]",
    "dot(v, v), lhs_contracting_dims={}, rhs_contracting_dims={}": "f32[6,6]",
    "convolution(img, ker), window={size=3x3 stride=2x1 pad=1_1x0_0}, dim_labels=b01f_01io->b01f": "f32[2,4,7,7]",
    "convolution(img, ker), window={size=3x3}, dim_labels=b01f_01io->fb01": "f32[7,2,6,7]",
    "gather(x, n), offset_dims={1}, collapsed_slice_dims={0}, _INDEX 1, slice_sizes={1,6}": "f32[3,6]",
    "gather(x, n), offset_dims={0,1}, collapsed_slice_dims={}, _INDEX 1, slice_sizes={2,3}": "f32[2,3,3]",
    "gather(x, n), offset_dims={2}, collapsed_slice_dims={0}, _INDEX 2, slice_sizes={1,6}": "f32[3,1,6]",
    "cholesky(q), lower=true": "f32[5,4,4]",
    "triangular-solve(q, q), left_side=true, transpose_a=TRANSPOSE": "f32[5,4,4]",
    "fft(x), fft_type=RFFT, fft_length={6}": "c64[4,4]",
    "fft(c), fft_type=IRFFT, fft_length={10}": "f32[4,10]",
    "fft(c), fft_type=FFT, fft_length={4,6}": "c64[4,6]",
    "batch-norm-training(x, v, v), epsilon=0.1, feature_index=1": "(f32[4,6], f32[6], f32[6])",
    "after-all(tok, tok)": "token[]",
    "partition-id()": "u32[]",
    "get-dimension-size(x), dimensions={0}": "s32[]",
}

# The written shape is right, or is what the opcode takes from the text.
_WRITTEN = (
    "f16[4,6] convert(x)",
    "s32[4,6] bitcast-convert(x)",
    "s16[4,6,2] bitcast-convert(x)",
    "f32[24] reshape(x)",
    "f32[2,2,6] reshape(y)",
    "s32[3,8] bitcast(x)",
    "s64[4,6] bitcast(x)",
    "f32[3,4,6] broadcast(y), dimensions={1,2}",
    "f32[6,4,2] broadcast(x), dimensions={1,0}",
    "f32[2,3] slice(x), slice={[1:4:2], [0:6:2]}",
    "f32[0,6] slice(x), slice={[1:1], [0:6]}",
    "s32[7,2] iota(), iota_dimension=1",
    "f32[2,6] dynamic-slice(x, k, k), dynamic_slice_sizes={2,6}",
    "f32[4,6] dynamic-update-slice(x, y, k, k)",
    "f32[4,6] fusion(x), kind=kLoop, calls=body",
    "f32[4] dot(h, v), lhs_contracting_dims={1}, rhs_contracting_dims={0}",
    "f32[4,6] reduce-precision(x), exponent_bits=8, mantissa_bits=7",
    "f32[<=4,6] set-dimension-size(x, k), dimensions={0}",
    "f32[4,6]{0,1} add(x, y)",
    'bf16[9] custom-call(x), custom_call_target="anything"',
)

_REFUSED = {
    "add(x, i)": "operand element types differ: f32[4,6] and s32[4,6]",
    "add(x, v)": "operand shapes differ in dimensions: f32[4,6] and f32[6]",
    "add(x, z)": "differ in dimensions",
    "add(t, t)": "operand 0 must be an array",
    "subtract(p, p)": "subtract does not support elements of type pred",
    "and(x, x)": "and does not support elements of type f32",
    "abs(u)": "abs does not support elements of type u32",
    "floor(i)": "floor does not support elements of type s32",
    "complex(h, h)": "takes two parts of f32 or f64",
    "compare(i, i), direction=LT, type=FLOAT": "Expected comparison order TOTAL for integral/pred operand, but got PARTIAL",
    "select(b, t, t)": "operand 1 must be an array",
    "select(x, x, y)": "selector must be pred",
    "select(p, v, v)": "neither a scalar nor that of the cases",
    "select(p, x, i)": "two cases differ",
    "clamp(v, x, z)": "the bound's shape f32[6]",
    "clamp(z, i, z)": "element types differ",
    "transpose(x), dimensions={0}": "has 1 entries",
    "transpose(x), dimensions={0,0}": "names a dimension twice",
    "transpose(x), dimensions={0,2}": "names dimension 2, but the rank is 2",
    "reverse(x), dimensions={-1}": "names dimension -1",
    "concatenate(x, v), dimensions={0}": "cannot concatenate",
    "concatenate(x, i), dimensions={0}": "element types differ",
    "concatenate(x, y), dimensions={0,1}": "exactly one dimension",
    "concatenate(), dimensions={0}": "at least 1 operand",
    "pad(x, z), padding=1_1": "padding has 1 entries",
    "pad(x, z), padding=0_0x-9_0": "gives the size -3",
    "pad(x, v), padding=0_0x0_0": "must be a scalar",
    "f32[25] reshape(x)": "the number of elements differs",
    "f64[4,6] bitcast-convert(x)": "must hold exactly one element",
    "f32[4,7] broadcast(y), dimensions={0,1}": "cannot become dimension 1",
    "f32[4,6] broadcast(v), dimensions={0,1}": "dimensions has 2 entries",
    "f32[4,6] broadcast(v), dimensions={4}": "dimensions names dimension 4, but the rank is 2",
    "f32[2,6] slice(x), slice={[0:2]}": "has 1 ranges",
    "f32[2,7] slice(x), slice={[0:2], [0:7]}": "not within dimension 1",
    "f32[2,6] slice(x), slice={[3:2], [0:6]}": "not within dimension 0",
    "f32[2,6] slice(x), slice={[0:2:0], [0:6]}": "not positive",
    "pred[4] iota(), iota_dimension=0": "cannot have the shape",
    "s32[4] iota(), iota_dimension=1": "iota_dimension is 1",
    "f32[5,6] dynamic-slice(x, k, k), dynamic_slice_sizes={5,6}": "slice size 5",
    "f32[2,6] dynamic-slice(x, k), dynamic_slice_sizes={2,6}": "Wrong number of operands",
    "f32[2,6] dynamic-slice(x, z, z), dynamic_slice_sizes={2,6}": "must be integers",
    "f32[4,6] dynamic-update-slice(x, q, k, k)": "does not fit into",
    "get-tuple-element(t), index=2": "index 2 does not name an element",
    "call(v), to_apply=body": "parameter 0 of computation 'body': expected f32[6], found f32[4,6]",
    "call(x, x), to_apply=body": "has 1 parameters, but must have 2",
    "while(x), condition=body, body=body": "condition 'body': expected pred[], found f32[4,6]",
    "while(x), condition=never, body=never": "body 'never': expected f32[4,6], found pred[]",
    "conditional(z, x, y), true_computation=body, false_computation=body": "must be a scalar of PRED or S32",
    "conditional(k, x), branch_computations={body, body}": "one operand for each of 2 branches",
    "conditional(k, x, y), branch_computations={body, never}": "branches differ in shape",
    "reduce(x, z), dimensions={2}, to_apply=add": "names dimension 2",
    "reduce(x, v), dimensions={0}, to_apply=add": "must be scalars",
    "reduce(x, z, z), dimensions={0}, to_apply=add": "an even number of operands",
    "reduce(i, k), dimensions={0}, to_apply=add": "the initial value is s32[], but its result f32[]",
    "reduce(x, z), dimensions={0}, to_apply=less": "parameter 0 is f32[], but its result pred[]",
    "reduce(x, z), dimensions={0}, to_apply=body": "parameters",
    "reduce-window(x, z), window={size=2}, to_apply=add": "the window has 1 dimensions",
    "reduce-window(x, z), window={size=2x0}, to_apply=add": "must be positive",
    "sort(x), dimensions={0}, to_apply=add": "expected pred[], found f32[]",
    "topk(x), k=7": "k=7 is not within",
    "dot(x, v), lhs_contracting_dims={0}, rhs_contracting_dims={0}": "contracting dimensions of",
    "dot(q, q), lhs_batch_dims={0}, rhs_batch_dims={0}, lhs_contracting_dims={0}, rhs_contracting_dims={0}": "named twice",
    "convolution(img, ker), window={size=3x2}, dim_labels=b01f_01io->b01f": "window's sizes are not the kernel's",
    "convolution(img, ker), window={size=3x3}, dim_labels=bf01_01io->b01f": "input features",
    "gather(x, n), offset_dims={1}, collapsed_slice_dims={0}, _INDEX 1, slice_sizes={2,6}": "slices of size 0 or 1",
    "gather(x, n), offset_dims={}, collapsed_slice_dims={0}, _INDEX 1, slice_sizes={1,6}": "offset_dims",
    "cholesky(x)": "square",
    "fft(x), fft_type=RFFT, fft_length={1,2,3}": "fft_length has 3 entries",
    "batch-norm-training(x, v, v), epsilon=0.1, feature_index=0": "must have 4 elements",
    "f32[4] add(x, y)": "have shape equal to f32[4,6], actual shape is f32[4]",
    "pred[4,6] add(x, y)": "have shape equal to f32[4,6], actual shape is pred[4,6]",
    "f32[4,6] compare(x, y), direction=LT": "have shape equal to pred[4,6], actual shape is f32[4,6]",
    "f32[4,6] fusion(x), kind=kLoop, calls=never": "have shape equal to pred[], actual shape is f32[4,6]",
    "(f32[4,6]) tuple(x, k)": "expects 1 operands, but has 2 operands",
}


@pytest.mark.parametrize("line", _INFERRED)
def test_open_shape_is_filled(line: str) -> None:
    assert _parse(line) == _INFERRED[line]


@pytest.mark.parametrize("line", _INFERRED)
def test_written_shape_may_be_right_and_may_not_be_wrong(line: str) -> None:
    assert _parse(f"{_INFERRED[line]} {line}") == _INFERRED[line]
    if line.startswith("after-all"):
        # XLA makes a token of it, whatever is written.
        return
    with pytest.raises(ParseError) as caught:
        _parse(f"u4[2,9,2] {line}")
    assert "f.hlo" in str(caught.value.where)
    assert "'r'" in caught.value.message


@pytest.mark.parametrize("line", _WRITTEN)
def test_written_shape_is_kept(line: str) -> None:
    assert _parse(line) == line.split(" ")[0].split("{")[0]


@pytest.mark.parametrize("line", _REFUSED)
def test_refused(line: str) -> None:
    with pytest.raises(ParseError) as caught:
        _parse(line)
    assert _REFUSED[line] in caught.value.message
    assert caught.value.message.startswith("'r' (")
    assert str(caught.value.where).startswith("f.hlo:")


def test_filled_shapes_take_the_layout_of_their_operand() -> None:
    text = """HloModule m
ENTRY e {
  x = f32[4,6,2]{0,1,2} parameter(0)
  n = negate(x)
  t = transpose(n), dimensions={2,0,1}
  ROOT k = concatenate(x, x), dimensions={1}
}"""
    shapes = {i.name: str(i.shape) for i in hlo_run.parse(text).entry.instructions}
    assert shapes["n"] == "f32[4,6,2]{0,1,2}"
    assert shapes["t"] == "f32[2,4,6]{1,2,0}"
    assert shapes["k"] == "f32[4,12,2]{2,1,0}"


def test_every_rule_belongs_to_an_opcode() -> None:
    assert set(INFER) <= set(OPCODES)
    # Text may leave these shapes out, so something must know them.
    assert {name for name, opcode in OPCODES.items() if opcode.can_infer_shape} <= set(INFER)


@pytest.mark.parametrize(
    ("state", "result", "root", "read", "message"),
    [
        ("4", "4", "<=4", "<=4", r"Operand %x = s32\[4\]\{0\} parameter\(0\) shape does not match parameter's %p"),
        ("<=4", "<=4", "<=4", "4", r"Operand %x = s32\[<=4\]\{0\} parameter\(0\) shape does not match parameter's %q"),
        ("<=4", "4", "<=4", "<=4", r"to have shape equal to s32\[<=4\], actual shape is s32\[4\]"),
        ("<=4", "<=4", "4", "<=4", r"to have shape equal to s32\[<=4\], actual shape is s32\[4\]"),
        ("<=4", "<=4", "<=4", "<=4", ""),
    ],
)
def test_a_loop_keeps_the_dynamic_dimensions_of_its_state(state: str, result: str, root: str, read: str, message: str) -> None:
    taken = "<=4" if state == "4" else state
    text = f"""HloModule m
    step {{ p = s32[{taken}] parameter(0)
      ROOT r = s32[{root}] negate(p) }}
    done {{ q = s32[{read}] parameter(0)
      ROOT c = pred[] constant(false) }}
    ENTRY e {{ x = s32[{state}] parameter(0)
      ROOT w = s32[{result}] while(x), condition=done, body=step }}"""
    if not message:
        hlo_run.parse(text)
        return
    with pytest.raises(ParseError, match=message):
        hlo_run.parse(text)


def test_a_loop_with_a_result_of_other_structure_is_refused() -> None:
    text = """HloModule m
    never { p = (s32[], s32[2]) parameter(0)  ROOT r = pred[] constant(false) }
    body { p = (s32[], s32[2]) parameter(0)  ROOT r = (s32[], s32[2]) copy(p) }
    ENTRY e { x = (s32[], s32[2]) parameter(0)  ROOT w = (s32[], s32[2], s32[]) while(x), condition=never, body=body }"""
    with pytest.raises(ParseError, match=r"equal to \(s32\[\], s32\[2\]\), actual shape is \(s32\[\], s32\[2\], s32\[\]\)"):
        hlo_run.parse(text)
