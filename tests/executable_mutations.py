"""Makes hostile saved executables from valid ones: other types, numbers and bytes, moved records, with a correct digest."""

from __future__ import annotations

import copy
import hashlib
import json
import random
import re
import struct
from collections.abc import Callable
from typing import Any, TypeAlias

from msgspec.structs import force_setattr

import hlo_run
from hlo_run.artifact.file import save
from hlo_run.hlo.printer import FULL, module_to_string
from hlo_run.options import Options
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.pipeline.compile import compile_module
from hlo_run.target import preset

Json: TypeAlias = Any
# A text that becomes lists in lists, as many as the number behind it. Python cannot write deep lists.
_NEST = "nested "
_HEAD = struct.Struct("<4sIQQ32s")
_SCALARS = "add { a = f32[] parameter(0)\n b = f32[] parameter(1)\n ROOT c = f32[] add(a, b) }\n"
_LESS = "less { a = f32[] parameter(0)\n b = f32[] parameter(1)\n ROOT c = pred[] compare(a, b), direction=LT }\n"
MODULES = {
    "loop": """condition { p = (s32[], f32[4,4]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  n = s32[] constant(3)
  ROOT c = pred[] compare(i, n), direction=LT }
body { p = (s32[], f32[4,4]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  x = f32[4,4] get-tuple-element(p), index=1
  one = s32[] constant(1)
  j = s32[] add(i, one)
  d = f32[4,4] dot(x, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT t = (s32[], f32[4,4]) tuple(j, d) }
ENTRY e { x = f32[4,4] parameter(0)
  k = f32[3] constant({0.5, -1.25, 1e-3})
  z = s32[] constant(0)
  s = (s32[], f32[4,4]) tuple(z, x)
  w = (s32[], f32[4,4]) while(s), condition=condition, body=body
  v = f32[4,4] get-tuple-element(w), index=1
  ROOT t = (f32[4,4], f32[3]) tuple(v, k) }""",
    "branches": """yes { p = f32[8] parameter(0)
  ROOT n = f32[8] negate(p) }
no { p = f32[8] parameter(0)
  ROOT n = f32[8] exponential(p) }
ENTRY e { c = s32[] parameter(0)
  x = f32[8] parameter(1)
  ROOT r = f32[8] conditional(c, x, x, x), branch_computations={yes, no, yes} }""",
    "sort": _LESS
    + """ENTRY e { x = f32[4,64,8] parameter(0)
  i = s32[4,64,8] iota(), iota_dimension=1
  ROOT s = f32[4,64,8] sort(x), dimensions={1}, to_apply=less }""",
    "libraries": """ENTRY e { x = f32[1,8,8,4] parameter(0)
  w = f32[3,3,4,4] parameter(1)
  m = f32[2,4,4] parameter(2)
  c = f32[1,8,8,4] convolution(x, w), window={size=3x3 pad=1_1x1_1}, dim_labels=b01f_01io->b01f
  l = f32[2,4,4] cholesky(m), lower=true
  t = f32[2,4,4] triangular-solve(l, m), left_side=true, lower=true, transpose_a=NO_TRANSPOSE
  f = c64[2,4,3] fft(m), fft_type=RFFT, fft_length={4}
  ROOT r = (f32[1,8,8,4], f32[2,4,4], c64[2,4,3]) tuple(c, t, f) }""",
    "random": """ENTRY e { s = u64[2] rng-get-and-update-state(), delta=4
  k = u64[2] parameter(0)
  ROOT r = (u64[2], u32[16]) rng-bit-generator(k), algorithm=rng_philox }""",
    "devices": _SCALARS
    + """ENTRY e { x = f32[8] parameter(0)
  a = f32[8] all-reduce(x), replica_groups={}, to_apply=add
  g = f32[8] all-gather(x), replica_groups={}, dimensions={0}
  r = u32[] replica-id()
  p = f32[8] collective-permute(x), source_target_pairs={{0,0}}
  ROOT t = (f32[8], f32[8], u32[], f32[8]) tuple(a, g, r, p) }""",
    "queues": """ENTRY e { t = token[] after-all()
  i = ((f32[3], s8[2]), token[]) infeed(t)
  d = (f32[3], s8[2]) get-tuple-element(i), index=0
  x = f32[3] get-tuple-element(d), index=0
  n = f32[3] negate(x)
  o = token[] outfeed(n, t), outfeed_shape=f32[3]
  ROOT r = f32[3] copy(x) }""",
}
VALUES: tuple[Json, ...] = (
    *(None, True, False, 0, -1, 1, 3, 2**31, -(2**31), 2**40, 2**63, 2**64, 10**40, 1.5, float("nan"), float("inf")),
    *("", "x", "f32", "token", "bf16", "s4", "\ud800", "\x1b[31m", "y" * 5000, [], [0], [1, 5], [1, -1], [1, 2**62], [7], [[]]),
    *({}, {"a": 1}, [0, 1, 2, 3], [0, "f32"], [True], [0, [0, [0]]], ["Kernel"], ["Executable", 1]),
)


def executables() -> dict[str, bytes]:
    """Return the saved executables of `MODULES`."""
    found: dict[str, bytes] = {}
    for name, text in MODULES.items():
        module = hlo_run.parse(f"HloModule {name}\n{text}")
        source = module_to_string(module, FULL)
        program = compile_module(PassContext(preset("h100"), Options()), module)
        force_setattr(program, "source_text", source)
        found[name] = save(program)
    return found


def mutated(data: bytes, source: random.Random) -> bytes:
    """Return a changed file. Most have a correct header, so that their records are read."""
    kind = source.random()
    if kind < 0.04:
        return _with_other_bytes(data, source)
    text_size = _HEAD.unpack_from(data)[2]
    content = json.loads(data[_HEAD.size : _HEAD.size + text_size])
    blobs = data[_HEAD.size + text_size :]
    for _ in range(1 if source.random() < 0.7 else source.randint(2, 5)):
        source.choice(_CHANGES)(content, source)
    if kind < 0.1:
        blobs = bytearray(blobs)
        for _ in range(min(3, len(blobs))):
            blobs[source.randrange(len(blobs))] ^= 1 << source.randrange(8)
    text = re.sub(rf'"{_NEST}(\d+)"', lambda found: "[0, " * int(found[1]) + "0" + "]" * int(found[1]), json.dumps(content))
    return signed(text.encode(), bytes(blobs))


def signed(text: bytes, blobs: bytes) -> bytes:
    """Return a file with these contents and the header that belongs to them."""
    return _HEAD.pack(b"HLOX", 1, len(text), len(blobs), hashlib.sha256(text + blobs).digest()) + text + blobs


def _with_other_bytes(data: bytes, source: random.Random) -> bytes:
    changed = bytearray(data)
    if source.random() < 0.5:
        return bytes(changed[: source.randrange(len(changed))])
    for _ in range(source.randint(1, 4)):
        changed[source.randrange(min(len(changed), 200))] = source.randrange(256)
    kind = source.random()
    if kind < 0.5:
        return bytes(changed)
    return signed(bytes(changed[_HEAD.size :]) if kind < 0.75 else b"[" * source.choice([10, 5000, 200000]), b"")


def _places(content: Json) -> list[tuple[list[Any], int]]:
    """Return every (list, index) of the records."""
    found: list[tuple[list[Any], int]] = []
    waiting: list[Any] = [content["executable"]] if isinstance(content.get("executable"), list) else []
    while waiting:
        node = waiting.pop()
        found += [(node, number) for number in range(len(node))]
        waiting += [part for part in node if isinstance(part, list)]
    return found


def _replace(content: Json, source: random.Random) -> None:
    places = _places(content)
    if places:
        node, number = source.choice(places)
        node[number] = copy.deepcopy(source.choice(VALUES))


def _shift(content: Json, source: random.Random) -> None:
    """Change a number a little: such records are nearly valid."""
    places = [(node, number) for node, number in _places(content) if type(node[number]) is int and number > 0]
    if places:
        node, number = source.choice(places)
        old = node[number]
        node[number] = source.choice([old + 1, old - 1, old * 2, old // 2, -old, 1 << 20])


def _graft(content: Json, source: random.Random) -> None:
    """Put a record in the place of another."""
    places = [(node, number) for node, number in _places(content) if isinstance(node[number], list)]
    if len(places) > 1:
        (node, number), (other, place) = source.sample(places, 2)
        node[number] = copy.deepcopy(other[place])


def _drop(content: Json, source: random.Random) -> None:
    places = _places(content)
    if places:
        node, number = source.choice(places)
        del node[number]


def _double(content: Json, source: random.Random) -> None:
    places = _places(content)
    if places:
        node, number = source.choice(places)
        node.insert(number, copy.deepcopy(node[number]))


def _rename(content: Json, source: random.Random) -> None:
    names = [(node, number) for node, number in _places(content) if number == 0 and isinstance(node[0], str)]
    if names:
        (node, number), (other, _) = source.choice(names), source.choice(names)
        node[number] = other[0]


def _edit(content: Json, source: random.Random) -> None:
    """Change a text: a name, PTX or the module."""
    texts = [(node, number) for node, number in _places(content) if isinstance(node[number], str) and number > 0]
    if texts:
        node, number = source.choice(texts)
        text = node[number]
        start = source.randrange(len(text) + 1)
        put = source.choice(["", "0", "%r1", "\n", "}", "[", "99999999999", "\x00"])
        node[number] = text[:start] + put + text[start + source.randrange(4) :]


def _nest(content: Json, source: random.Random) -> None:
    places = _places(content)
    if places:
        node, number = source.choice(places)
        node[number] = f"{_NEST}{source.choice([2, 140, 160, 400, 3000, 100000])}"


_CHANGES: tuple[Callable[[Json, random.Random], None], ...] = (
    *(_replace, _replace, _replace, _shift, _shift, _shift, _graft, _graft, _drop, _double, _rename, _edit, _nest),
)
