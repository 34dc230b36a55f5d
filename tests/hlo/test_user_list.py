"""The order of users: a new one comes last, and the last one takes the place of one that goes."""

from __future__ import annotations

import random

import pytest

import hlo_run
from hlo_run.hlo.edit import Editor
from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.user_list import UserList
from hlo_run.hlo.values.shape import Shape

_SHAPE = Shape.array("f32", (2,))


def test_the_last_user_takes_the_place_of_one_that_goes() -> None:
    users = UserList("abcd")
    users.remove("b")
    assert list(users) == ["a", "d", "c"]
    users.remove("c")
    users.add("b")
    users.add("a")
    assert list(users) == ["a", "d", "b"]
    assert "d" in users
    assert "c" not in users
    assert len(users) == 3
    users.discard("c")
    users.discard("a")
    assert list(users) == ["b", "d"]


def test_a_user_that_is_not_there_cannot_be_removed() -> None:
    with pytest.raises(KeyError):
        UserList("a").remove("b")


def test_instructions_keep_the_same_order() -> None:
    module = hlo_run.parse("""
ENTRY e {
  p = f32[4] parameter(0)
  q = f32[4] parameter(1)
  a = f32[4] negate(p)
  b = f32[4] cosine(p)
  c = f32[4] sine(p)
  d = f32[4] tanh(p)
  ROOT t = (f32[4], f32[4], f32[4], f32[4]) tuple(a, b, c, d)
}""")
    p, q = module.entry.parameters
    b = next(user for user in p.users if user.opcode == "cosine")
    b.operands = (q,)
    assert [user.opcode for user in p.users] == ["negate", "tanh", "sine"]
    assert [user.opcode for user in q.users] == ["cosine"]
    negated = Editor(b).add("negate", b.shape, [p])
    p.users[0].replace_operand(p, negated)
    assert [user.opcode for user in p.users] == ["negate", "tanh", "sine"]
    assert p.users[0] is negated


def test_an_instruction_of_many_users_keeps_their_order_as_one_of_few() -> None:
    """Removal goes through an index of places once there are many users; the order is the same."""
    rng = random.Random(1)
    value = HloInstruction("x", "parameter", _SHAPE)
    users, expected = [HloInstruction(f"u{n}", "negate", _SHAPE, [value]) for n in range(400)], list[HloInstruction]()
    expected += users
    for step in range(700):
        if step % 3 == 2:
            user = HloInstruction(f"v{step}", "negate", _SHAPE, [value])
            expected.append(user)
        else:
            user = rng.choice(expected)
            user.operands = ()
            last = expected.pop()
            if last is not user:
                expected[expected.index(user)] = last
        assert value.users == expected
