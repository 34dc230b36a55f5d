"""Kernels that a comparison sees: behind NaN, zeros and maxima, below the bounds, unused, in loops, and within a budget."""

from __future__ import annotations

import numpy as np
import pytest

from hlo_run.hlo.graph import HloModule
from hlo_run.ops.parse import parse
from hlo_run.reference.compare.compare import ErrorSpec
from hlo_run.reference.sensitivity import measure as measuring
from hlo_run.reference.sensitivity.kernel_sight import KernelSight, KernelSights
from hlo_run.reference.sensitivity.measure import measure
from hlo_run.reference.sensitivity.notice import Notices
from hlo_run.reference.sensitivity.recorded_run import RecordedRun
from hlo_run.reference.values import Value

SPEC = ErrorSpec(1e-3, 1e-3)
X = np.linspace(1, 2, 8, dtype=np.float32)


def _sights(module: HloModule, names: str, arguments: list[Value]) -> KernelSights:
    kernels = [next(i for i in module.instructions if i.name == name) for name in names.split()]
    run = RecordedRun(module, kernels, arguments)
    return measure(run, kernels, Notices(module.entry.root.shape, SPEC, None))


def _entry(body: str) -> HloModule:
    return parse("HloModule m\nENTRY e { x = f32[8] parameter(0) " + body + " }")


HIDDEN = {
    "k = f32[8] log(x) n = f32[8] negate(x) l = f32[8] log(n) ROOT r = f32[8] multiply(k, l)": "hidden by NaN in %r",
    """z = f32[8] subtract(x, x) d = f32[8] divide(x, z) k = f32[8] sine(x)
      ROOT r = f32[8] add(k, d)""": "hidden by infinite values in %r",
    "k = f32[8] add(x, x) z = f32[8] subtract(x, x) ROOT r = f32[8] multiply(k, z)": "hidden by zeros in %r",
    "k = f32[8] add(x, x) ROOT r = f32[8] minimum(k, x)": "it does not change %r",
    """c = f32[] constant(1e-5) b = f32[8] broadcast(c), dimensions={} k = f32[8] multiply(x, b)
      ROOT r = f32[8] add(k, x)""": "below the bounds",
    "k = f32[8] add(x, x) ROOT r = f32[8] multiply(x, x)": "no result needs it",
    "n = f32[8] negate(x) k = f32[8] log(n) ROOT r = f32[8] add(k, x)": "its result is NaN",
}


@pytest.mark.parametrize(("body", "reason"), HIDDEN.items())
def test_what_hides_a_kernel(body: str, reason: str) -> None:
    (sight,) = _sights(_entry(body), "k", [X]).kernels
    assert (sight.seen, sight.reason) == (False, reason)


def test_all_is_seen() -> None:
    module = _entry(
        "k = f32[8] add(x, x) l = f32[8] sine(k) c = pred[8] compare(k, x), direction=GT ROOT t = (f32[8], pred[8]) tuple(l, c)"
    )
    assert str(_sights(module, "k l c", [X])) == "the comparison sees all 3 kernels"


def test_a_part_is_seen() -> None:
    module = _entry("k = f32[8] add(x, x) m = f32[8] minimum(k, x) l = f32[8] sine(x) ROOT t = (f32[8], f32[8]) tuple(l, m)")
    assert str(_sights(module, "k l m", [X])) == "the comparison sees 2 of 3 kernels; not: k (it does not change %m)"


SOFTMAX = """HloModule s
max { a = f32[] parameter(0) b = f32[] parameter(1) ROOT largest = f32[] maximum(a, b) }
sum { a = f32[] parameter(0) b = f32[] parameter(1) ROOT s = f32[] add(a, b) }
ENTRY e {
  x = f32[4,8] parameter(0)
  low = f32[] constant(-inf)
  m = f32[4] reduce(x, low), dimensions={1}, to_apply=max
  mb = f32[4,8] broadcast(m), dimensions={0}
  d = f32[4,8] subtract(x, mb)
  p = f32[4,8] exponential(d)
  z = f32[] constant(0)
  total = f32[4] reduce(p, z), dimensions={1}, to_apply=sum
  sb = f32[4,8] broadcast(total), dimensions={0}
  ROOT r = f32[4,8] divide(p, sb)
}
"""


def test_a_shift_that_cancels_is_not_seen() -> None:
    sights = _sights(parse(SOFTMAX), "m p total r", [np.arange(32, dtype=np.float32).reshape(4, 8) / 16])
    assert [kernel.seen for kernel in sights.kernels] == [False, True, True, True]


LOOP = """HloModule l
body {
  v = (s32[], f32[8], f32[8]) parameter(0)
  i = s32[] get-tuple-element(v), index=0
  x = f32[8] get-tuple-element(v), index=1
  y = f32[8] get-tuple-element(v), index=2
  one = s32[] constant(1)
  next = s32[] add(i, one)
  kept = f32[8] add(x, x)
  lost = f32[8] sine(x)
  zero = f32[8] subtract(x, x)
  product = f32[8] multiply(lost, zero)
  late = f32[8] add(y, x)
  ROOT t = (s32[], f32[8], f32[8]) tuple(next, kept, FED)
}
head {
  v = (s32[], f32[8], f32[8]) parameter(0)
  i = s32[] get-tuple-element(v), index=0
  n = s32[] constant(5)
  ROOT c = pred[] compare(i, n), direction=LT
}
ENTRY e {
  p = f32[8] parameter(0)
  z = s32[] constant(0)
  start = f32[8] negate(p)
  t = (s32[], f32[8], f32[8]) tuple(z, start, p)
  w = (s32[], f32[8], f32[8]) while(t), condition=head, body=body
  ROOT r = f32[8] get-tuple-element(w), index=2
}
"""


def test_kernels_in_a_loop() -> None:
    """`kept` shows one iteration later, so not in the last one alone."""
    sights = _sights(parse(LOOP.replace("FED", "late")), "start next kept lost late", [X])
    assert [kernel.seen for kernel in sights.kernels] == [True, True, True, False, True]
    assert sights.kernels[3].reason == "no result needs it"


def test_a_kernel_behind_zeros_in_a_loop() -> None:
    sights = _sights(parse(LOOP.replace("FED", "product")), "lost product", [X])
    assert [kernel.seen for kernel in sights.kernels] == [False, True]
    assert sights.kernels[0].reason == "it does not change %w"


ENDLESS = LOOP.replace("direction=LT", "direction=NE").replace("FED", "late")


def test_a_change_that_keeps_a_loop_running_is_not_measured() -> None:
    (sight,) = _sights(parse(ENDLESS), "next", [X]).kernels
    assert sight.seen is None


def test_what_the_budget_does_not_allow_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_ANY", "_PER_KERNEL", "_RUNS"):
        monkeypatch.setattr(measuring, name, 0.0)
    module = _entry("k = f32[8] add(x, x) ROOT l = f32[8] sine(k)")
    sights = _sights(module, "k l", [X])
    # The result itself needs no evaluation: a sample of its elements tells that it is seen.
    assert [sight.seen for sight in sights.kernels] == [None, True]
    assert str(sights) == "the comparison sees at least 1 of 2 kernels; not measured: 1 (left out to save time)"
    assert not sights.is_blind


def test_a_kernel_seen_with_other_arguments_counts() -> None:
    module = _entry("k = f32[8] add(x, x) l = f32[8] log(x) ROOT m = f32[8] add(k, l)")
    negative, positive = (_sights(module, "k l m", [values]) for values in (-X, X))
    assert negative.is_blind
    assert str(negative.or_seen_in(positive)) == "the comparison sees all 3 kernels"


def test_rounding_that_explains_a_change_hides_it() -> None:
    from hlo_run.reference.compare.rounding import RoundingSamples

    module = _entry("k = f32[8] add(x, x) ROOT l = f32[8] multiply(k, k)")
    (kernel,) = [i for i in module.instructions if i.name == "k"]
    run = RecordedRun(module, [kernel], [X])
    precise = 4 * X.astype(np.float64) ** 2
    for error, seen in ((1e-6, True), (0.1, False)):
        samples = RoundingSamples(lambda: precise, lambda error=error: precise * (1 + error))
        notices = Notices(module.entry.root.shape, SPEC, samples)
        assert measure(run, [kernel], notices).kernels[0].seen is seen


def test_the_text_names_a_few_kernels_of_a_few_reasons() -> None:
    reasons = ("a", "b", "b", "c", "d", *"eeeeee")
    sights = KernelSights(tuple(KernelSight(f"k{number}", False, reason) for number, reason in enumerate(reasons)))
    text = "the comparison sees 0 of 11 kernels; not: k5, k6, k7, k8 and 2 more (e), k1, k2 (b), k0 (a), "
    text += "and 2 more for other reasons"
    assert str(sights) == text
