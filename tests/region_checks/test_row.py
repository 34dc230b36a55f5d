"""The rewrites of a row, judged alone: wrong ones are named behind values that hide them, right ones are silent."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import hlo_run
from hlo_run.hlo.edit import Editor, remove_unused
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo.values.attribute_values import AttributeValue
from hlo_run.reference.evaluate.devices import DeviceGrid
from hlo_run.region_checks import row
from hlo_run.region_checks.judge import Verdict
from hlo_run.region_checks.row import RowJudge, RowReport, Snapshot

Edit = Callable[[HloModule], None]


def judged(text: str, edit: Edit, judge: RowJudge | None = None) -> RowReport:
    """Return the report on an edit of a module."""
    module = hlo_run.parse(text)
    before = Snapshot.of(module)
    edit(module)
    return (judge or RowJudge()).report(before, Snapshot.of(module))


def find(module: HloModule, name: str) -> HloInstruction:
    return next(i for i in module.instructions if i.name == name)


def opcode(name: str, new: Opcode) -> Edit:
    def edit(module: HloModule) -> None:
        instruction = find(module, name)
        instruction.opcode = new
        instruction.touch()

    return edit


def attribute(name: str, key: str, value: AttributeValue) -> Edit:
    def edit(module: HloModule) -> None:
        find(module, name).attrs[key] = value

    return edit


BEHIND_ZERO = """HloModule m
ENTRY e {
  p = f32[4,6] parameter(0)
  q = f32[4,6] parameter(1)
  a = f32[4,6] add(p, q)
  zero = f32[] constant(0)
  zeros = f32[4,6] broadcast(zero), dimensions={}
  ROOT m = f32[4,6] multiply(a, zeros)
}
"""

BEHIND_NAN = """HloModule m
ENTRY e {
  p = f32[4,6] parameter(0)
  q = f32[4,6] parameter(1)
  n = f32[4,6] negate(p)
  a = f32[4,6] abs(n)
  b = f32[4,6] negate(a)
  l = f32[4,6] log(b)
  s = f32[4,6] add(l, q)
  ROOT m = f32[4,6] multiply(s, l)
}
"""

DEAD_BRANCH = """HloModule m
ENTRY e {
  p = f32[5,5] parameter(0)
  big = f32[] constant(1e30)
  bigs = f32[5,5] broadcast(big), dimensions={}
  never = pred[5,5] compare(p, bigs), direction=GT
  t = f32[5,5] transpose(p), dimensions={1,0}
  e = f32[5,5] exponential(t)
  ROOT r = f32[5,5] select(never, e, p)
}
"""

LOOP = """HloModule m
body {
  s = (s32[], f32[8]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  x = f32[8] get-tuple-element(s), index=1
  one = s32[] constant(1)
  j = s32[] add(i, one)
  half = f32[] constant(0.5)
  halves = f32[8] broadcast(half), dimensions={}
  y = f32[8] multiply(x, halves)
  z = f32[8] cosine(y)
  ROOT t = (s32[], f32[8]) tuple(j, z)
}
condition {
  s = (s32[], f32[8]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  n = s32[] constant(3)
  ROOT c = pred[] compare(i, n), direction=LT
}
ENTRY e {
  p = f32[8] parameter(0)
  zero = s32[] constant(0)
  init = (s32[], f32[8]) tuple(zero, p)
  w = (s32[], f32[8]) while(init), condition=condition, body=body
  x = f32[8] get-tuple-element(w), index=1
  nothing = f32[] constant(0)
  nothings = f32[8] broadcast(nothing), dimensions={}
  ROOT m = f32[8] multiply(x, nothings)
}
"""

REDUCER = """HloModule m
largest {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] maximum(a, b)
}
ENTRY e {
  p = f32[4,6] parameter(0)
  low = f32[] constant(-inf)
  r = f32[4] reduce(p, low), dimensions={1}, to_apply=largest
  zero = f32[] constant(0)
  zeros = f32[4] broadcast(zero), dimensions={}
  ROOT m = f32[4] multiply(r, zeros)
}
"""

FUSION = """HloModule m
body {
  a = f32[8] parameter(0)
  b = f32[8] parameter(1)
  c = f32[8] subtract(a, b)
  ROOT d = f32[8] tanh(c)
}
ENTRY e {
  p = f32[8] parameter(0)
  q = f32[8] parameter(1)
  ROOT f = f32[8] fusion(p, q), kind=kLoop, calls=body
}
"""


@pytest.mark.parametrize(
    ("text", "edit", "old", "new"),
    [
        (BEHIND_ZERO, opcode("a", "subtract"), "add", "subtract"),
        (BEHIND_NAN, opcode("s", "maximum"), "add", "maximum"),
        (DEAD_BRANCH, attribute("t", "dimensions", (0, 1)), "transpose", "transpose"),
        (LOOP, opcode("z", "sine"), "cosine", "sine"),
        (LOOP, attribute("c", "direction", "LE"), "compare", "compare"),
        (REDUCER, opcode("c", "minimum"), "maximum", "minimum"),
        (FUSION, opcode("c", "add"), "subtract", "add"),
    ],
    ids=["zero", "nan", "dead-branch", "loop-body", "loop-condition", "reducer", "fusion"],
)
def test_a_wrong_rewrite_is_named(text: str, edit: Edit, old: str, new: str) -> None:
    report = judged(text, edit)
    (wrong,) = report.wrong
    before, after = wrong.region.modules("region")
    assert old in [i.opcode for i in before.entry.instructions]
    assert new in [i.opcode for i in after.entry.instructions]
    assert not report.not_judged
    # The operands show the difference again.
    results = [hlo_run.evaluate(module, *wrong.values) for module in (before, after)]
    assert repr(results[0]) != repr(results[1])


def _swap(module: HloModule) -> None:
    find(module, "a").operands = tuple(reversed(find(module, "a").operands))


def _shift(module: HloModule) -> None:
    """Rewrite x · 0.5 as x / 2 in the loop."""
    y = find(module, "y")
    two = Editor(y).constant(2.0, "f32")
    divisor = Editor(y).broadcast(two, (8,))
    module.replace(y, Editor(y).binary("divide", y.operands[0], divisor))
    remove_unused([y])


def _through_negation(module: HloModule) -> None:
    """Rewrite log(-|−p|) as log(-|p|): right only for what computes its operand."""
    module.replace(find(module, "a"), find(module, "a"))
    find(module, "a").operands = (find(module, "p"),)


def _nothing(module: HloModule) -> None:
    find(module, "p").touch()


def _twice(module: HloModule) -> None:
    """Move the transposition behind the exponential."""
    e, p = find(module, "e"), find(module, "p")
    inner = Editor(e).unary("exponential", p)
    module.replace(e, Editor(e).transpose(inner, (1, 0)))
    remove_unused([e])


SYMMETRIC = """HloModule m
ENTRY e {
  p = f32[5,5] parameter(0)
  t = f32[5,5] transpose(p), dimensions={1,0}
  a = f32[5,5] add(p, t)
  b = f32[5,5] cosine(a)
  ROOT r = f32[5,5] exponential(b)
}
"""


def _transposed(module: HloModule) -> None:
    """Transpose what is symmetric."""
    b = find(module, "b")
    module.replace(b, Editor(b).unary("cosine", Editor(b).transpose(b.operands[0], (1, 0))))
    remove_unused([b])


CONSTANTS = """HloModule m
body {
  s = (s32[], f32[8]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  one = s32[] constant(1)
  j = s32[] add(i, one)
  nothing = f32[] constant(0)
  zeros = f32[8] broadcast(nothing), dimensions={}
  ROOT t = (s32[], f32[8]) tuple(j, zeros)
}
condition {
  s = (s32[], f32[8]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  n = s32[] constant(3)
  ROOT c = pred[] compare(i, n), direction=LT
}
ENTRY e {
  p = f32[8] parameter(0)
  zero = s32[] constant(0)
  nothing = f32[] constant(0)
  nothings = f32[8] broadcast(nothing), dimensions={}
  init = (s32[], f32[8]) tuple(zero, nothings)
  w = (s32[], f32[8]) while(init), condition=condition, body=body
  x = f32[8] get-tuple-element(w), index=1
  a = f32[8] add(p, nothings)
  b = f32[8] multiply(a, nothings)
  ROOT r = (f32[8], f32[8], f32[8]) tuple(x, a, b)
}
"""


def _other_zeros(module: HloModule) -> None:
    """Compute the zeros that a loop returns in another way."""
    zeros = find(module, "zeros")
    nothing = zeros.operands[0]
    module.replace(zeros, Editor(zeros).broadcast(Editor(zeros).binary("subtract", nothing, nothing), (8,)))
    remove_unused([zeros])


def _fold(module: HloModule) -> None:
    """Make the zeros another way, and use in the same row that they are zeros."""
    a, nothings = find(module, "a"), find(module, "nothings")
    module.replace(a, a.operands[0])
    module.replace(nothings, Editor(nothings).broadcast(Editor(nothings).unary("sqrt", nothings.operands[0]), (8,)))
    remove_unused([a, nothings])


SQUARE = """HloModule m
ENTRY e {
  p = f32[4,6] parameter(0)
  r = f32[24] reshape(p)
  s = f32[6] slice(r), slice={[0:6]}
  t = f32[2,3] reshape(s)
  a = f32[2,3] abs(t)
  ROOT m = f32[2,3] multiply(a, a)
}
"""


def _square(module: HloModule) -> None:
    """Slice before the reshape, and drop the sign of what is squared in the same row."""
    a, t, s = find(module, "a"), find(module, "t"), find(module, "s")
    module.replace(a, t)
    t.operands = (Editor(s).slice(find(module, "p"), (0, 0), (1, 6)),)
    remove_unused([a, s])


ZERO_SIGN = """HloModule m
ENTRY e {
  p = f32[8] parameter(0)
  zero = f32[] constant(0)
  zeros = f32[8] broadcast(zero), dimensions={}
  m = f32[8] multiply(p, zeros)
  one = f32[] constant(1)
  ones = f32[8] broadcast(one), dimensions={}
  ROOT d = f32[8] divide(ones, m)
}
"""


def _positive_zero(module: HloModule) -> None:
    """Replace 1 / (p · 0) by 1 / (|p| · 0)."""
    d, m = find(module, "d"), find(module, "m")
    size = Editor(d).unary("abs", m.operands[0])
    module.replace(d, Editor(d).binary("divide", d.operands[0], Editor(d).binary("multiply", size, m.operands[1])))
    remove_unused([d])


@pytest.mark.parametrize(
    ("text", "edit", "is_proven"),
    [
        (BEHIND_ZERO, _swap, True),
        (BEHIND_ZERO, _nothing, True),
        (LOOP, _shift, False),
        (BEHIND_NAN, _through_negation, False),
        (DEAD_BRANCH, _twice, False),
        (SYMMETRIC, _transposed, False),
        (CONSTANTS, _other_zeros, False),
        (CONSTANTS, _fold, False),
        (SQUARE, _square, False),
        (ZERO_SIGN, _positive_zero, False),
    ],
    ids=["swapped", "nothing", "loop", "context", "moved", "symmetric", "constant-loop", "folded", "squared", "zero-sign"],
)
def test_a_right_rewrite_is_silent(text: str, edit: Edit, is_proven: bool) -> None:
    report = judged(text, edit)
    assert not report.wrong
    assert not report.not_judged
    assert report.is_proven is is_proven


RANDOM = """HloModule m
ENTRY e {
  l = f32[] constant(0)
  h = f32[] constant(1)
  r = f32[4] rng(l, h), distribution=rng_uniform
  n = f32[4] negate(r)
  p = f32[4] parameter(0)
  ROOT m = f32[4] multiply(n, p)
}
"""


def test_what_cannot_be_judged_is_named_with_its_reason() -> None:
    def edit(module: HloModule) -> None:
        old = find(module, "r")
        new = Editor(old).add("rng", old.shape, old.operands, distribution="rng_normal")
        module.replace(old, new)
        remove_unused([old])

    report = judged(RANDOM, edit)
    assert not report.wrong
    assert [reason for region in report.not_judged for reason in region.reasons.values()] == ["random numbers"]
    assert report.changed == 1


COLLECTIVE = """HloModule m, replica_count=4
add { x = f32[] parameter(0) y = f32[] parameter(1) ROOT sum = f32[] add(x, y) }
max { x = f32[] parameter(0) y = f32[] parameter(1) ROOT larger = f32[] maximum(x, y) }
ENTRY e {
  p = f32[6] parameter(0)
  q = f32[6] parameter(1)
  a = f32[6] all-reduce(p), replica_groups={{0,1},{2,3}}, to_apply=add
  b = f32[6] all-reduce(q), replica_groups={{0,1},{2,3}}, to_apply=add
  m = f32[6] all-reduce(p), replica_groups={}, to_apply=max
  s = f32[6] add(a, b)
  z = f32[] constant(0)
  zs = f32[6] broadcast(z), dimensions={}
  sz = f32[6] multiply(s, zs)
  mz = f32[6] multiply(m, zs)
  ROOT r = f32[6] add(sz, mz)
}
"""


def _on_four(edit: Edit) -> RowReport:
    return judged(COLLECTIVE, edit, RowJudge(DeviceGrid(4, 1)))


def _together(module: HloModule) -> None:
    """Add before the sums over devices."""
    a, s = find(module, "a"), find(module, "s")
    both = Editor(s).binary("add", a.operands[0], find(module, "b").operands[0])
    attributes = {"replica_groups": a.attrs["replica_groups"]}
    module.replace(s, Editor(s).add_with("all-reduce", s.shape, [both], attributes, {"to_apply": [a.to_apply]}))
    remove_unused([a, find(module, "b")])


def _another_reducer(module: HloModule) -> None:
    find(module, "a").called = {"to_apply": (find(module, "m").to_apply,)}
    find(module, "a").touch()


def _no_maximum(module: HloModule) -> None:
    m = find(module, "m")
    module.replace(m, m.operands[0])
    remove_unused([m])


def test_regions_with_collectives_are_judged_on_all_devices() -> None:
    right = _on_four(_together)
    assert not right.wrong
    assert not right.not_judged
    (wrong,) = _on_four(_another_reducer).wrong
    assert [side.attrs["replica_count"] for side in wrong.region.modules("region")] == [4, 4]
    assert len(wrong.values) == 4 * len(wrong.region.inputs), "the operands of all devices"


def test_a_region_that_may_rely_on_equal_operands_is_not_judged() -> None:
    """The maximum over devices is the operand if all hold the same one."""
    report = _on_four(_no_maximum)
    assert not report.wrong
    (region,) = report.not_judged
    assert set(region.reasons.values()) == {"operands that all devices may share"}


def test_what_hlo_leaves_open_is_not_wrong() -> None:
    text = REDUCER.replace("constant(-inf)", "constant(0.5)").replace("maximum", "add")

    def edit(module: HloModule) -> None:
        """Reduce in two steps, which adds the init value twice."""
        r = find(module, "r")
        (parts,) = Editor(r).reduce_again(r, [Editor(r).reshape(r.operands[0], (4, 2, 3))], (2,))
        module.replace(r, Editor(r).reduce_again(r, [parts], (1,))[0])
        remove_unused([r])

    report = judged(text, edit)
    assert not report.wrong
    (region,) = report.not_judged
    assert set(region.reasons.values()) == {"the init value is not the identity"}


def test_an_equal_region_is_judged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    count: list[HloModule] = []
    original = row.judge

    def counted(old: HloModule, new: HloModule, both: HloModule, grid: DeviceGrid) -> Verdict:
        count.append(old)
        return original(old, new, both)

    monkeypatch.setattr(row, "judge", counted)
    layers = """HloModule m
ENTRY e {
  p = f32[4] parameter(0)
  a = f32[4] add(p, p)
  b = f32[4] cosine(a)
  c = f32[4] add(b, b)
  ROOT d = f32[4] sine(c)
}
"""

    def edit(module: HloModule) -> None:
        for name in ("a", "c"):
            old = find(module, name)
            two = Editor(old).broadcast(Editor(old).constant(2.0, "f32"), (4,))
            module.replace(old, Editor(old).binary("multiply", old.operands[0], two))
            remove_unused([old])

    report = judged(layers, edit)
    assert not report.wrong
    assert len(count) == 1


BESIDE_AN_EFFECT = """HloModule m
sum { a = s32[] parameter(0)
  b = s32[] parameter(1)
  ROOT r = s32[] add(a, b) }
ENTRY e {
  p = s32[2,2] parameter(0)
  dead = f32[] parameter(1)
  t = s32[2,2] transpose(p), dimensions={1,0}
  v = s32[2,2] all-reduce(t), replica_groups={}, to_apply=sum
  flat = s32[4] reshape(p)
  back = s32[2,2] reshape(flat)
  again = s32[2,2] transpose(back), dimensions={1,0}
  r = s32[2,2] remainder(v, again)
  holder = (s32[2,2], f32[]) tuple(r, dead)
  x = s32[2,2] get-tuple-element(holder), index=0
  ROOT n = s32[2,2] negate(x)
}
"""


@pytest.mark.parametrize(("other", "wrong"), [("t", False), ("p", True)])
def test_an_input_that_needs_other_devices_stays_an_input(other: str, wrong: bool) -> None:
    def edit(module: HloModule) -> None:
        x = find(module, "x")
        module.replace(x, Editor(x).binary("remainder", find(module, "v"), find(module, other)))
        remove_unused([x])

    assert bool(judged(BESIDE_AN_EFFECT, edit).wrong) is wrong
