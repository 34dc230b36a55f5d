"""A change is followed to the nearest kernel that is seen: when that is enough, and when only the comparison counts."""

from __future__ import annotations

import numpy as np

from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.ops.parse import parse
from hlo_run.reference.compare.compare import ErrorSpec
from hlo_run.reference.sensitivity.chains import Chains
from hlo_run.reference.sensitivity.notice import Notices
from hlo_run.reference.sensitivity.recorded_run import RecordedRun
from hlo_run.reference.values import Value

X = np.linspace(1, 2, 8, dtype=np.float32)
ENOUGH = 1e9


def _chains(module: HloModule, names: str, *arguments: Value) -> tuple[Chains, list[HloInstruction]]:
    kernels = [next(i for i in module.instructions if i.name == name) for name in names.split()]
    run = RecordedRun(module, kernels, arguments)
    return Chains(run, Notices(module.entry.root.shape, ErrorSpec(1e-3, 1e-3), None)), kernels


LONG = """HloModule l
ENTRY e {
  x = f32[8] parameter(0)
  k = f32[8] sine(x)
  l = f32[8] cosine(k)
  STEPS
  ROOT r = f32[8] tanh(LAST)
}
""".replace("STEPS", "step0 = f32[8] add(l, l)\n" + "\n".join(f"step{n} = f32[8] negate(step{n - 1})" for n in range(1, 40)))


def test_a_chain_ends_at_a_kernel_that_is_seen() -> None:
    chains, (k, other) = _chains(parse(LONG.replace("LAST", "step39")), "k l", X)
    assert chains.shows(other, ENOUGH)
    to_the_end = chains.work
    assert chains.shows(k, ENOUGH)
    assert chains.work < to_the_end / 2


def test_a_chain_does_not_end_at_a_kernel_that_is_not_seen() -> None:
    """The last step hides what comes: `l` does not show, so neither does `k`."""
    text = LONG.replace("ROOT r = f32[8] tanh(LAST)", "z = f32[8] subtract(x, x) ROOT r = f32[8] multiply(z, step39)")
    chains, (k, other) = _chains(parse(text), "k l", X)
    assert not chains.shows(other, ENOUGH)
    assert not chains.shows(k, ENOUGH)
    assert chains.met_unknown


def test_no_chain_ends_where_few_numbers_spread() -> None:
    """A mean shifts all elements alike, and the variance behind it forgets that; `d` alone is seen."""
    module = parse("""HloModule v
      sum { a = f32[] parameter(0) b = f32[] parameter(1) ROOT s = f32[] add(a, b) }
      ENTRY e {
        x = f32[64] parameter(0)
        zero = f32[] constant(0)
        m = f32[] reduce(x, zero), dimensions={0}, to_apply=sum
        mb = f32[64] broadcast(m), dimensions={}
        d = f32[64] subtract(x, mb)
        first = f32[1] slice(d), slice={[0:1]}
        all = f32[64] broadcast(f32[] reshape(first)), dimensions={}
        ROOT r = f32[64] subtract(d, all)
      }""")
    chains, (d, m) = _chains(module, "d m", np.linspace(1, 2, 64, dtype=np.float32))
    assert chains.shows(d, ENOUGH)
    assert not chains.shows(m, ENOUGH)


LOOP = """HloModule l
body {
  v = (s32[], f32[8], f32[8], f32[8]) parameter(0)
  i = s32[] get-tuple-element(v), index=0
  state = f32[8] get-tuple-element(v), index=1
  total = f32[8] get-tuple-element(v), index=2
  read = f32[8] get-tuple-element(v), index=3
  one = s32[] constant(1)
  next = s32[] add(i, one)
  fresh = f32[8] sine(read)
  sum = f32[8] add(total, fresh)
  ROOT t = (s32[], f32[8], f32[8], f32[8]) tuple(next, fresh, sum, read)
}
head {
  v = (s32[], f32[8], f32[8], f32[8]) parameter(0)
  i = s32[] get-tuple-element(v), index=0
  n = s32[] constant(5)
  ROOT c = pred[] compare(i, n), direction=LT
}
ENTRY e {
  p = f32[8] parameter(0)
  z = s32[] constant(0)
  begin = f32[8] negate(p)
  given = f32[8] cosine(p)
  t = (s32[], f32[8], f32[8], f32[8]) tuple(z, begin, p, given)
  w = (s32[], f32[8], f32[8], f32[8]) while(t), condition=head, body=body
  ROOT r = f32[8] get-tuple-element(w), index=RESULT
}
"""


def test_what_all_iterations_read_shows_behind_a_loop() -> None:
    for result in ("1", "2"):
        chains, (given, fresh) = _chains(parse(LOOP.replace("RESULT", result)), "given fresh", X)
        assert chains.shows(fresh, ENOUGH)
        assert chains.shows(given, ENOUGH)


def test_a_chain_ends_at_the_state_that_a_loop_begins_with() -> None:
    """The first iteration replaces it, so `begin` never shows; a chain alone does not tell."""
    chains, (begin,) = _chains(parse(LOOP.replace("RESULT", "1")), "begin", X)
    assert not chains.shows(begin, ENOUGH)
    assert begin in chains.ended_at_loops


def test_no_chain_ends_at_integers() -> None:
    """`again` changes where `order` does, but the results of integers may depend on luck, so nothing is concluded from that."""
    module = parse("""HloModule p
      ENTRY e {
        i = s32[8] parameter(0)
        order = s32[8] negate(i)
        again = s32[8] negate(order)
        large = s32[8] multiply(again, again)
        ROOT r = s32[8] shift-right-logical(large, large)
      }""")
    chains, (order, again) = _chains(module, "order again", np.arange(20, 28, dtype=np.int32))
    chains.add(again)
    assert not chains.shows(order, ENOUGH)
    assert not chains.met_unknown


def test_a_chain_stops_at_its_limit() -> None:
    chains, (k,) = _chains(parse(LONG.replace("LAST", "step39")), "k", X)
    assert not chains.shows(k, 1.0)
    assert chains.work <= 1.0
