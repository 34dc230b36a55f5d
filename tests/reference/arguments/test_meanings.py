"""The meanings of integer arguments, as programs lowered by JAX and by hand use them."""

from __future__ import annotations

import numpy as np
import pytest

import hlo_run
from hlo_run.reference.arguments.choices import Choices
from hlo_run.reference.arguments.fake_arguments import Draw, make_fake_arguments
from hlo_run.reference.arguments.meanings import ALL_BITS, Meaning


def _meaning(body: str, computations: str = "") -> Meaning | None:
    """Return the meaning of parameter 0 of an entry."""
    module = hlo_run.parse(f"HloModule m\n{computations}\nENTRY e {{\n{body}\n}}")
    return Choices(module).meanings.get((0, ()))


GATHER = """gather(t, {}), offset_dims={{1}}, collapsed_slice_dims={{0}}, start_index_map={{0}}, index_vector_dim=1,
    slice_sizes={{1,4}}"""
WRAPPED = f"""
  i = s32[6]{{0}} parameter(0)
  t = f32[10,4] parameter(1)
  zero = s32[] constant(0)
  zeros = s32[6]{{0}} broadcast(zero), dimensions={{}}
  n = s32[] constant(10)
  ns = s32[6]{{0}} broadcast(n), dimensions={{}}
  is_negative = pred[6]{{0}} compare(i, zeros), direction=LT
  from_the_end = s32[6]{{0}} add(i, ns)
  chosen = s32[6]{{0}} select(is_negative, from_the_end, i)
  column = s32[6,1]{{1,0}} reshape(chosen)
  ROOT g = f32[6,4] {GATHER.format("column")}"""


def test_an_index_may_count_from_the_end() -> None:
    assert _meaning(WRAPPED) == Meaning("indices", (0, 9), rare=(-10, -1), stray=(-12, 11))


def test_a_comparison_is_off_by_one_at_the_edges() -> None:
    assert Meaning("indices", (0, 9), rare=(-10, -1), bounds=(4,)).edges == (0, 9, 4)
    assert Meaning("indices", (0, 9), is_distinct=True).edges == ()
    module = hlo_run.parse(f"HloModule m ENTRY e {{{WRAPPED} }}")
    drawn = [make_fake_arguments(module, seed, draw=Draw(unusual=True))[0] for seed in range(20)]
    assert {0, 9} <= {int(index) for values in drawn for index in np.asarray(values)}


def test_an_index_that_also_goes_plain_is_not_negative() -> None:
    body = (
        WRAPPED.replace("ROOT g", "g")
        + "\n  "
        + f"""plain = s32[6,1]{{1,0}} reshape(i)
  h = f32[6,4] {GATHER.format("plain")}
  ROOT s = f32[6,4] add(g, h)"""
    )
    meaning = _meaning(body)
    assert meaning is not None
    assert (meaning.usual, meaning.rare) == ((0, 9), None)


def test_a_special_number_is_drawn_now_and_then() -> None:
    body = (
        WRAPPED.replace("ROOT g", "g")
        + """
  c = s32[] constant(-100)
  cs = s32[6]{0} broadcast(c), dimensions={}
  counts = pred[6]{0} compare(i, cs), direction=NE
  ROOT r = (f32[6,4], pred[6]) tuple(g, counts)"""
    )
    meaning = _meaning(body)
    assert meaning is not None
    assert meaning.special == (-100,)
    module = hlo_run.parse(f"HloModule m\nENTRY e {{\n{body.replace('[6', '[600').replace('{6', '{600')}\n}}")
    values = np.asarray(make_fake_arguments(module, 1)[0])
    assert {-100, 0, 9} <= set(values.tolist()) <= {-100, *range(-10, 10)}


def test_pieces_of_indices_have_the_bounds_of_their_dimensions() -> None:
    body = """
  i = s32[5] parameter(0)
  j = s32[5] parameter(1)
  t = f32[7,300] parameter(2)
  a = s32[5,1] reshape(i)
  b = s32[5,1] reshape(j)
  both = s32[5,2] concatenate(a, b), dimensions={1}
  ROOT g = f32[5] gather(t, both), offset_dims={}, collapsed_slice_dims={0,1}, start_index_map={1,0}, index_vector_dim=1,
    slice_sizes={1,1}"""
    meanings = Choices(hlo_run.parse(f"HloModule m\nENTRY e {{\n{body}\n}}")).meanings
    assert [meanings[number, ()].usual for number in (0, 1)] == [(0, 299), (0, 6)]


def test_a_piece_is_known_after_a_bitcast_in_a_fusion() -> None:
    computations = """
rows {
  i = s32[5,1,1] parameter(0)
  t = f32[7,300] parameter(1)
  at = s32[5,1,1] iota(), iota_dimension=0
  both = s32[5,1,2] concatenate(at, i), dimensions={2}
  flat = s32[5,2] bitcast(both)
  ROOT g = f32[5] gather(t, flat), offset_dims={}, collapsed_slice_dims={0,1}, start_index_map={0,1}, index_vector_dim=1,
    slice_sizes={1,1}
}"""
    body = """
  i = s32[5] parameter(0)
  t = f32[7,300] parameter(1)
  column = s32[5,1,1] bitcast(i)
  ROOT f = f32[5] fusion(column, t), kind=kLoop, calls=rows"""
    assert _meaning(body, computations) == Meaning("indices", (0, 299), stray=(-2, 301))


def test_what_a_clamp_brings_into_bounds_is_drawn_too() -> None:
    body = """
  i = s32[6] parameter(0)
  t = f32[10,4] parameter(1)
  zero = s32[] constant(0)
  zeros = s32[6] broadcast(zero), dimensions={}
  nine = s32[] constant(9)
  nines = s32[6] broadcast(nine), dimensions={}
  inside = s32[6] clamp(zeros, i, nines)
  column = s32[6,1] reshape(inside)
  ROOT g = f32[6,4] """ + GATHER.format("column")
    assert _meaning(body) == Meaning("indices", (0, 9), rare=(-2, 11), stray=(-4, 11))


@pytest.mark.parametrize(
    ("compare", "expected"),
    [
        ("compare(of_rows, at), direction=EQ", Meaning("classes", (0, 8))),
        ("compare(at, of_rows), direction=LT", Meaning("lengths", (1, 9))),
        ("compare(of_rows, at), direction=GT", Meaning("lengths", (1, 9))),
        ("compare(at, of_rows), direction=LE", Meaning("lengths", (0, 8))),
        ("compare(of_rows, of_rows), direction=EQ", None),
    ],
)
def test_a_comparison_with_an_iota(compare: str, expected: Meaning | None) -> None:
    body = f"""
  i = s32[4] parameter(0)
  of_rows = s32[4,9] broadcast(i), dimensions={{0}}
  at = s32[4,9] iota(), iota_dimension=1
  ROOT c = pred[4,9] {compare}"""
    assert _meaning(body) == expected


ROWS = """
  i = s32[6] parameter(0)
  t = f32[6,4] parameter(1)
  column = s32[6,1] reshape(i)
  numbers = s32[6] iota(), iota_dimension=0
  rows = s32[6,1] reshape(numbers)
  pairs = s32[6,2] concatenate({}), dimensions={{1}}
  ROOT g = f32[6] gather(t, pairs), offset_dims={{}}, collapsed_slice_dims={{0,1}}, start_index_map={{0,1}}, index_vector_dim=1,
    slice_sizes={{1,1}}, indices_are_sorted=true"""


def test_numbers_need_no_order_behind_the_number_of_their_row() -> None:
    assert _meaning(ROWS.format("rows, column")) == Meaning("indices", (0, 3), stray=(-2, 5))
    meaning = _meaning(ROWS.format("column, rows"))
    assert meaning is not None
    assert meaning.is_sorted


def test_unusual_integers_are_out_of_bounds_and_from_the_end() -> None:
    module = hlo_run.parse(f"HloModule m\nENTRY e {{\n{WRAPPED}\n}}")
    drawn = [make_fake_arguments(module, seed, draw=Draw(unusual=True))[0] for seed in range(40)]
    found = {int(number) for values in drawn for number in np.asarray(values)}
    assert min(found) < -10
    assert max(found) > 9
    assert found > set(range(-10, 10)), "also all that are handled"


def test_unusual_floats_have_many_sizes_and_are_large_at_the_ends() -> None:
    module = hlo_run.parse("HloModule m\nENTRY e { ROOT x = f32[5,64] parameter(0) }")
    (values,) = make_fake_arguments(module, 3, draw=Draw(floats=(1.0, 2.0), unusual=True))
    sizes = np.asarray(values)
    assert sizes[:, 1:-1].min() < 2.0**-8
    assert sizes.max() >= 4.0
    assert sizes.max() in sizes[:, [0, -1]]


def test_sums_products_and_quotients_with_constants_are_undone() -> None:
    body = """
  i = s32[6] parameter(0)
  t = f32[10,4] parameter(1)
  two = s32[] constant(2)
  twos = s32[6] broadcast(two), dimensions={}
  doubled = s32[6] multiply(i, twos)
  more = s32[6] add(doubled, twos)
  column = s32[6,1] reshape(more)
  ROOT g = f32[6,4] """ + GATHER.format("column")
    assert _meaning(body) == Meaning("indices", (-1, 3), stray=(-3, 5))
    assert _meaning(body.replace("multiply", "divide")) == Meaning("indices", (-5, 15), stray=(-7, 17))


LOOP = """
body {
  s = (s32[], s32[8], f32[10,4], f32[4]) parameter(0)
  k = s32[] get-tuple-element(s), index=0
  tokens = s32[8] get-tuple-element(s), index=1
  t = f32[10,4] get-tuple-element(s), index=2
  h = f32[4] get-tuple-element(s), index=3
  one_token = s32[1] dynamic-slice(tokens, k), dynamic_slice_sizes={1}
  one_row = f32[1,4] gather(t, one_token), offset_dims={0,1}, collapsed_slice_dims={}, start_index_map={0}, index_vector_dim=0,
    slice_sizes={1,4}
  row = f32[4] reshape(one_row)
  sum = f32[4] add(h, row)
  one = s32[] constant(1)
  next = s32[] add(k, one)
  ROOT r = (s32[], s32[8], f32[10,4], f32[4]) tuple(next, tokens, t, sum)
}
condition {
  s = (s32[], s32[8], f32[10,4], f32[4]) parameter(0)
  k = s32[] get-tuple-element(s), index=0
  eight = s32[] constant(8)
  ROOT c = pred[] compare(k, eight), direction=LT
}"""


def test_tokens_are_followed_into_a_loop() -> None:
    body = """
  tokens = s32[8] parameter(0)
  t = f32[10,4] parameter(1)
  h = f32[4] parameter(2)
  zero = s32[] constant(0)
  s = (s32[], s32[8], f32[10,4], f32[4]) tuple(zero, tokens, t, h)
  w = (s32[], s32[8], f32[10,4], f32[4]) while(s), condition=condition, body=body
  ROOT r = f32[4] get-tuple-element(w), index=3"""
    assert _meaning(body, LOOP) == Meaning("indices", (0, 9), stray=(-2, 11))


def test_segments_follow_the_scatter_that_they_go_to_through_a_call() -> None:
    computations = """
add { a = f32[] parameter(0) b = f32[] parameter(1) ROOT s = f32[] add(a, b) }
sums {
  i = s64[12] parameter(0)
  x = f32[12] parameter(1)
  z = f32[] constant(0)
  zs = f32[5] broadcast(z), dimensions={}
  narrow = s32[12] convert(i)
  column = s32[12,1] reshape(narrow)
  ROOT s = f32[5] scatter(zs, column, x), update_window_dims={}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0},
    index_vector_dim=1, indices_are_sorted=true, to_apply=add
}"""
    meaning = _meaning(
        "i = s64[12] parameter(0)\n  x = f32[12] parameter(1)\n  ROOT c = f32[5] call(i, x), to_apply=sums", computations
    )
    assert meaning == Meaning("indices", (0, 4), stray=(-2, 6), is_sorted=True, is_scattered=True)


def test_the_window_of_a_scatter_is_in_bounds() -> None:
    body = """
  i = s32[4,1] parameter(0)
  x = f32[10] parameter(1)
  y = f32[4,3] parameter(2)
  ROOT s = f32[10] scatter(x, i, y), update_window_dims={1}, inserted_window_dims={}, scatter_dims_to_operand_dims={0},
    index_vector_dim=1, to_apply=add"""
    meaning = _meaning(body, "add { a = f32[] parameter(0) b = f32[] parameter(1) ROOT s = f32[] add(a, b) }")
    assert meaning == Meaning("indices", (0, 7), stray=(-2, 9), is_scattered=True)


def test_a_number_of_steps_is_a_small_count() -> None:
    body = """
  step = s32[] parameter(0)
  most = s32[] constant(2147483647)
  one = s32[] constant(1)
  goes_on = pred[] compare(step, most), direction=LT
  more = s32[] add(step, one)
  next = s32[] select(goes_on, more, most)
  exponent = f32[] convert(next)
  base = f32[] constant(0.9)
  ROOT p = f32[] power(base, exponent)"""
    assert _meaning(body) == Meaning("counts", (1, 100))


def test_a_count_up_to_the_end_of_a_warmup_is_not_zero() -> None:
    body = """
  step = s32[] parameter(0)
  zero = s32[] constant(0)
  end = s32[] constant(100)
  warm = s32[] clamp(zero, step, end)
  ROOT f = f32[] convert(warm)"""
    assert _meaning(body) == Meaning("numbers", (1, 125), bounds=(100,))


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        ("compare(i, fives), direction=LT", Meaning("numbers", (3, 7), bounds=(5,))),
        ("clamp(zeros, i, fives)", Meaning("numbers", (-2, 7), bounds=(0, 5))),
        ("compare(i, zeros), direction=EQ", Meaning(ALL_BITS, (-(1 << 31), (1 << 31) - 1), rare=(-2, 2))),
        ("remainder(i, fives)", None),
        ("xor(i, fives)", None),
        ("compare(i, zeros), direction=LT", None),
    ],
)
def test_constants_that_integers_are_compared_with(op: str, expected: Meaning | None) -> None:
    result = "pred" if "compare" in op else "s32"
    body = f"""
  i = s32[6] parameter(0)
  zero = s32[] constant(0)
  zeros = s32[6] broadcast(zero), dimensions={{}}
  five = s32[] constant(5)
  fives = s32[6] broadcast(five), dimensions={{}}
  ROOT r = {result}[6] {op}"""
    assert _meaning(body) == expected


def test_keys_keep_all_their_bits_and_xlas_draw_all_integers() -> None:
    shifted = "k = u32[4] parameter(0)\n  s = u32[] constant(13)\n  t = u32[4] broadcast(s), dimensions={}\n"
    assert _meaning(shifted + "  ROOT r = u32[4] shift-left(k, t)") is None
    module = hlo_run.parse(f"HloModule m\nENTRY e {{{WRAPPED}\n}}")
    assert np.abs(np.asarray(make_fake_arguments(module, 1, draw=Draw(xla=True))[0])).max() > 1 << 20
    assert np.abs(np.asarray(make_fake_arguments(module, 1)[0])).max() <= 10


def test_the_maximum_of_many_classes_bounds_labels() -> None:
    computations = """
larger {
  a = f32[] parameter(0)
  i = s32[] parameter(1)
  b = f32[] parameter(2)
  j = s32[] parameter(3)
  more = pred[] compare(a, b), direction=GT
  value = f32[] select(more, a, b)
  index = s32[] select(more, i, j)
  ROOT r = (f32[], s32[]) tuple(value, index)
}"""
    body = """
  labels = s32[3] parameter(0)
  x = f32[3,12] parameter(1)
  at = s32[3,12] iota(), iota_dimension=1
  low = f32[] constant(-inf)
  zero = s32[] constant(0)
  best = (f32[3], s32[3]) reduce(x, at, low, zero), dimensions={1}, to_apply=larger
  guess = s32[3] get-tuple-element(best), index=1
  ROOT right = pred[3] compare(guess, labels), direction=EQ"""
    assert _meaning(body, computations) == Meaning("classes", (0, 11))


CROSS_ENTROPY = """
  x = f32[6,9] parameter(0)
  y = f32[6,9] parameter(1)
  e = f32[6,9] exponential(x)
  zero = f32[] constant(0)
  s = f32[6] reduce(e, zero), dimensions={1}, to_apply=add
  l = f32[6] log(s)
  spread = f32[6,9] broadcast(l), dimensions={0}
  log_softmax = f32[6,9] subtract(x, spread)
  p = f32[6,9] multiply(y, log_softmax)
  ROOT loss = f32[6] reduce(p, zero), dimensions={1}, to_apply=add"""
ADD = "add { a = f32[] parameter(0) b = f32[] parameter(1) ROOT s = f32[] add(a, b) }"


def test_the_targets_of_a_cross_entropy_are_rows_that_sum_to_one() -> None:
    module = hlo_run.parse(f"HloModule m\n{ADD}\nENTRY e {{{CROSS_ENTROPY}\n}}")
    choices = Choices(module)
    assert choices.lines() == ["%y probabilities"]
    targets = np.asarray(make_fake_arguments(module, 1, choices=choices)[1])
    np.testing.assert_allclose(targets.sum(1), 1, rtol=1e-6)
    assert targets.min() > 0


def test_a_mask_of_losses_is_no_distribution() -> None:
    body = CROSS_ENTROPY.replace("multiply(y, log_softmax)", "multiply(y, x)")
    assert not Choices(hlo_run.parse(f"HloModule m\n{ADD}\nENTRY e {{{body}\n}}")).recipes


def test_the_end_of_a_loop_says_nothing_about_its_state() -> None:
    loop = """
body { n = s32[] parameter(0) two = s32[] constant(2) ROOT h = s32[] divide(n, two) }
condition { n = s32[] parameter(0) one = s32[] constant(1) ROOT c = pred[] compare(n, one), direction=NE }"""
    assert _meaning("n = s32[] parameter(0)\n  ROOT w = s32[] while(n), condition=condition, body=body", loop) is None
