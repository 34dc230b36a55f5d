"""The table from the spelling of an instruction to its record: one row per opcode.

Each function gets the modifiers and types that the table of spellings allows. It returns None for combinations that PTX lacks or
that the Host platform does not know.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from hlo_run.backends.host.ptx import specs
from hlo_run.backends.host.ptx.specs import Spec, is_integer
from hlo_run.backends.host.ptx.syntax import TYPE_BYTES

_Flags: TypeAlias = "frozenset[str]"
_Types: TypeAlias = "tuple[str, ...]"
_Read: TypeAlias = "Callable[[str, _Flags, _Types], Spec | None]"

_PACKED_INTEGERS = ("s16x2", "u16x2")
_HALVES = ("f16", "bf16")
_SINGLES = ("f16", "bf16", "f32", "f64")
_WITH_CARRY = ("addc", "subc", "madc")
COMPARISONS = tuple("eq ne lt le gt ge lo ls hi hs equ neu ltu leu gtu geu num nan".split())
_UNSIGNED_RELATIONS = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}
ATOMIC_OPERATIONS = tuple("add inc dec min max and or xor exch cas".split())
_ATOMIC_OF_HALVES = ("add", "min", "max", "exch", "cas")
_SMALL_PAIRS = ("e4m3x2", "e5m2x2", "e2m1x2")
PROPERTIES = tuple("finite infinite number notanumber normal subnormal".split())


def first_of(flags: _Flags, names: tuple[str, ...]) -> str:
    """Return the first of `names` that is among the modifiers, or ""."""
    return next((name for name in names if name in flags), "")


# ---- integers -------------------------------------------------------------------------------------------------------


def _sum(opcode: str, flags: _Flags, types: _Types) -> Spec | None:
    (type_name,) = types
    is_packed = type_name in _PACKED_INTEGERS
    saturates = "sat" in flags and not is_packed
    if saturates and type_name != "s32":
        return None
    return specs.Sum(type_name, opcode in ("sub", "subc"), saturates, opcode in _WITH_CARRY, "cc" in flags)


def _product(opcode: str, flags: _Flags, types: _Types) -> Spec | None:
    part = first_of(flags, ("wide", "hi")) or "lo"
    saturates = "sat" in flags and opcode == "mad"
    if saturates and (types[0] != "s32" or "hi" not in flags):
        return None
    return specs.Product(types[0], part, opcode != "mul", saturates, opcode == "madc", "cc" in flags)


def _quotient(opcode: str, flags: _Flags, types: _Types) -> Spec | None:
    del flags
    return specs.Quotient(types[0], opcode == "rem")


def _extreme(opcode: str, flags: _Flags, types: _Types) -> Spec | None:
    if types[0] in _PACKED_INTEGERS and "relu" in flags:
        return None
    return specs.Extreme(opcode, types[0], "relu" in flags)


def _unary(opcode: str, flags: _Flags, types: _Types) -> Spec | None:
    del flags
    return specs.Unary(opcode, types[0])


def _dot_bytes(opcode: str, flags: _Flags, types: _Types) -> Spec | None:
    signed = types[0][0] == "s", types[1][0] == "s"
    return specs.DotBytes(8 if opcode == "dp4a" else 16, 2 if "hi" in flags else 0, signed)


# ---- floating point -------------------------------------------------------------------------------------------------

_ALL, _WIDE = frozenset(_SINGLES), frozenset(("f32", "f64"))
_FORMATS: Mapping[str, frozenset[str]] = {
    **dict.fromkeys("add sub mul fma min max neg abs".split(), _ALL),
    **dict.fromkeys("div rcp sqrt rsqrt".split(), _WIDE),
    **dict.fromkeys("sin cos lg2".split(), frozenset(("f32",))),
    **dict.fromkeys(("ex2", "tanh"), _ALL - {"f64"}),
}
_DIRECTED = frozenset("add sub mul fma div rcp sqrt".split())
_MIXED = frozenset(("add", "sub", "fma"))


def _float(opcode: str, flags: _Flags, types: _Types) -> Spec | None:
    operation = "fma" if opcode == "mad" else opcode
    kind = types[0].removesuffix("x2")
    wide_from = types[1] if len(types) == 2 else ""
    if wide_from and (operation not in _MIXED or types[0] != "f32" or wide_from not in _HALVES or "ftz" in flags):
        return None
    rounding = first_of(flags, ("rz", "rm", "rp"))
    if kind not in _FORMATS[operation] or (rounding and (operation not in _DIRECTED or kind in _HALVES)):
        return None
    divides_quickly = operation == "div" and "approx" in flags and not rounding
    upper_word = operation in ("rcp", "rsqrt") and kind == "f64" and "ftz" in flags and not rounding
    if (divides_quickly and kind != "f32") or ("relu" in flags and operation != "fma"):
        return None
    return specs.FloatArithmetic(
        operation,
        kind,
        lanes=2 if types[0].endswith("x2") else 1,
        wide_from=wide_from,
        rounding=rounding,
        is_quick=divides_quickly or upper_word,
        keeps_nan="NaN" in flags,
        flushes="ftz" in flags and kind != "f64",
        saturates="sat" in flags,
        relu="relu" in flags,
    )


def _testp(opcode: str, flags: _Flags, types: _Types) -> Spec | None:
    del opcode
    tested = first_of(flags, PROPERTIES)
    return specs.TestProperty(tested, types[0]) if tested else None


def _by_type(integers: _Read) -> _Read:
    """Return the reader of an opcode that integers and floats share."""

    def read(opcode: str, flags: _Flags, types: _Types) -> Spec | None:
        if is_integer(types[0]) or types[0] in _PACKED_INTEGERS:
            return integers(opcode, flags, types) if len(types) == 1 else None
        return _float(opcode, flags, types)

    return read


# ---- comparison and selection ---------------------------------------------------------------------------------------


def _comparison(flags: _Flags, type_name: str) -> specs.Compare | None:
    spelled = first_of(flags, COMPARISONS)
    if not spelled:
        return None
    relation = _UNSIGNED_RELATIONS.get(spelled, spelled)
    kind = type_name.removesuffix("x2")
    unordered = relation in ("equ", "neu", "ltu", "leu", "gtu", "geu")
    if is_integer(kind) or kind == "pred":
        # PTX has lo, ls, hi and hs for unsigned types alone.
        if unordered or relation in ("num", "nan") or (relation != spelled and kind[0] == "s"):
            return None
    elif relation != spelled:
        return None
    lanes = 2 if type_name.endswith("x2") else 1
    if lanes == 2 and (kind == "f32" or "ftz" in flags):
        return None
    return specs.Compare(
        relation.removesuffix("u") if unordered else relation,
        unordered,
        kind,
        lanes,
        flushes="ftz" in flags and kind in ("f16", "bf16", "f32"),
        logic=first_of(flags, ("and", "or", "xor")),
    )


def _setp(opcode: str, flags: _Flags, types: _Types) -> Spec | None:
    del opcode
    return _comparison(flags, types[0])


def _set(opcode: str, flags: _Flags, types: _Types) -> Spec | None:
    del opcode
    result, compared = types
    test = _comparison(flags, compared)
    if test is None or test.lanes != 1 or result not in ("u32", "s32", "f32"):
        return None
    return specs.CompareTo(test, "f32" if result == "f32" else "u32")


def _slct(opcode: str, flags: _Flags, types: _Types) -> Spec | None:
    del opcode
    kind, sign = types
    return specs.SelectBySign(kind, sign, "ftz" in flags and sign == "f32") if sign in ("s32", "f32") else None


# ---- moves and conversions ------------------------------------------------------------------------------------------


def _cvta(opcode: str, flags: _Flags, types: _Types) -> Spec | None:
    del opcode
    space = first_of(flags, ("global", "shared", "local", "const"))
    if not space or (space in ("shared", "local") and types[0] != "u64"):
        return None
    return specs.ConvertAddress(space, "to" in flags, types[0])


def _isspacep(opcode: str, flags: _Flags, types: _Types) -> Spec | None:
    del opcode, types
    space = first_of(flags, ("shared", "local", "global"))
    return specs.IsInSpace(space) if space else None


def _cvt(opcode: str, flags: _Flags, types: _Types) -> Spec | None:
    del opcode
    to, origin = types
    if "x2" in to or "x2" in origin or to == "tf32":
        return _packed(flags, to, origin)
    if is_integer(to) and is_integer(origin):
        return specs.ConvertInteger(to, origin, "sat" in flags)
    integral = first_of(flags, ("rni", "rzi", "rmi", "rpi"))
    rounding = first_of(flags, ("rn", "rz", "rm", "rp"))
    flushes = "ftz" in flags
    if is_integer(to):
        known = integral and origin in _SINGLES
        return specs.FloatToInteger(to, origin, integral, flushes and origin == "f32") if known else None
    if is_integer(origin):
        return specs.IntegerToFloat(to, origin, rounding, "sat" in flags) if rounding and to in _SINGLES else None
    if to not in _SINGLES or origin not in _SINGLES or flags & {"satfinite", "rna"}:
        return None
    if ("relu" in flags and to not in _HALVES) or (integral and to != origin):
        return None
    return specs.ConvertFloat(
        to,
        origin,
        "rn" if integral or not rounding else rounding,
        integral,
        is_copy=to == origin and not flags,
        flushes=flushes,
        saturates="sat" in flags,
        relu="relu" in flags,
    )


def _packed(flags: _Flags, to: str, origin: str) -> Spec | None:
    """Return a conversion to packed pairs, to 8-bit and 4-bit floats, and to tf32."""
    rounding = first_of(flags, ("rn", "rz", "rna"))
    if to == "tf32":
        return specs.RoundToTf32() if rounding == "rna" and len(flags) == 1 and origin == "f32" else None
    if to in ("f16x2", "bf16x2") and origin == "f32" and rounding in ("rn", "rz") and "satfinite" not in flags:
        return specs.PackHalves(to, rounding, "relu" in flags)
    if to in _SMALL_PAIRS and rounding == "rn" and "satfinite" in flags and "relu" not in flags:
        known = origin == "f32" or (origin == "f16x2" and to != "e2m1x2")
        return specs.PackSmall(to, origin) if known else None
    if to == "f16x2" and origin in _SMALL_PAIRS and "relu" not in flags:
        return specs.UnpackSmall(origin)
    return None


# ---- memory ---------------------------------------------------------------------------------------------------------

_ORDERED = frozenset(("relaxed", "acquire", "release", "volatile", "mmio"))
_SPACES = frozenset(("shared", "param", "local", "global", "const"))


def _space(flags: _Flags) -> str | None:
    """Return the state space of an access, "" for a generic address; None for two spaces."""
    named = _SPACES.intersection(flag.partition("::")[0] for flag in flags)
    return next(iter(named), "") if len(named) <= 1 else None


def _load(opcode: str, flags: _Flags, types: _Types) -> Spec | None:
    del opcode
    (kind,), space = types, _space(flags)
    if kind == "b128" or space is None:
        return None
    is_ordered = not flags.isdisjoint(_ORDERED)
    return specs.Load(space, kind, specs.item_type(kind), TYPE_BYTES[kind], is_ordered, "nc" in flags)


def _store(opcode: str, flags: _Flags, types: _Types) -> Spec | None:
    del opcode
    (kind,), space = types, _space(flags)
    if kind == "b128" or space is None:
        return None
    return specs.Store(space, kind, TYPE_BYTES[kind], not flags.isdisjoint(_ORDERED))


def _atomic(opcode: str, flags: _Flags, types: _Types) -> Spec | None:
    (kind,), space = types, _space(flags)
    operation = first_of(flags, ATOMIC_OPERATIONS)
    if not operation or space is None or kind == "f32x2":
        return None
    if kind.removesuffix("x2") in _HALVES and operation not in _ATOMIC_OF_HALVES:
        return None
    return specs.Update(operation, space, kind, TYPE_BYTES[kind], opcode == "atom")


# ---- threads --------------------------------------------------------------------------------------------------------


def _one_of(kind: Callable[[str], Spec], names: str) -> _Read:
    """Return the reader of `.sync` and one of several modes."""
    modes = tuple(names.split())

    def read(opcode: str, flags: _Flags, types: _Types) -> Spec | None:
        del opcode, types
        mode = first_of(flags, modes)
        return kind(mode) if mode and "sync" in flags else None

    return read


def _match(opcode: str, flags: _Flags, types: _Types) -> Spec | None:
    del opcode
    mode = first_of(flags, ("any", "all"))
    return specs.Match(mode, int(types[0][1:])) if mode else None


def _redux(opcode: str, flags: _Flags, types: _Types) -> Spec | None:
    del opcode
    operation = first_of(flags, ("add", "min", "max", "and", "or", "xor"))
    return specs.ReduceWarp(operation, types[0] == "s32") if operation else None


def _barrier(opcode: str, flags: _Flags, types: _Types) -> Spec | None:
    del opcode, types
    reduction = first_of(flags, ("popc", "and", "or"))
    if "red" in flags and "warp" not in flags:
        return specs.Barrier(is_warp=False, reduction=reduction) if reduction else None
    return specs.Barrier("warp" in flags, "")


def _always(spec: Spec) -> _Read:
    return lambda opcode, flags, types: spec


READERS: Mapping[str, _Read] = {
    **dict.fromkeys(("add", "sub"), _by_type(_sum)),
    **dict.fromkeys(("addc", "subc"), _sum),
    **dict.fromkeys(("mul", "mad"), _by_type(_product)),
    "madc": _product,
    "div": _by_type(_quotient),
    "rem": _quotient,
    "sad": lambda _, flags, types: specs.Difference(types[0]),
    **dict.fromkeys(("min", "max"), _by_type(_extreme)),
    **dict.fromkeys(("abs", "neg"), _by_type(_unary)),
    **dict.fromkeys(("not", "cnot", "brev", "popc", "clz"), _unary),
    **dict.fromkeys(("and", "or", "xor"), lambda opcode, flags, types: specs.Logic(opcode, types[0])),
    **dict.fromkeys(("shl", "shr"), lambda opcode, flags, types: specs.Shift(types[0], opcode == "shl")),
    "shf": lambda _, flags, types: specs.FunnelShift("l" in flags, "wrap" in flags),
    **dict.fromkeys(("dp4a", "dp2a"), _dot_bytes),
    "bfind": lambda _, flags, types: specs.FindHighest(types[0], "shiftamt" in flags),
    "bfe": lambda _, flags, types: specs.ExtractBits(types[0]),
    "bfi": lambda _, flags, types: specs.InsertBits(types[0]),
    "prmt": lambda _, flags, types: specs.PermuteBytes(first_of(flags, ("f4e", "b4e", "rc8", "ecl", "ecr", "rc16"))),
    "lop3": _always(specs.Lookup3()),
    **dict.fromkeys("fma rcp sqrt rsqrt sin cos lg2 ex2 tanh".split(), _float),
    "testp": _testp,
    "copysign": lambda _, flags, types: specs.CopySign(types[0]),
    "setp": _setp,
    "set": _set,
    "selp": lambda _, flags, types: specs.Select(types[0]),
    "slct": _slct,
    "mov": lambda _, flags, types: specs.Move(types[0]) if types[0] != "b128" else None,
    "cvta": _cvta,
    "isspacep": _isspacep,
    "cvt": _cvt,
    **dict.fromkeys(("ld", "ldu"), _load),
    "st": _store,
    **dict.fromkeys(("atom", "red"), _atomic),
    "shfl": _one_of(specs.Shuffle, "up down bfly idx"),
    "vote": _one_of(specs.Vote, "ballot all any uni"),
    "match": _match,
    "redux": _redux,
    "elect": _always(specs.Elect()),
    "activemask": _always(specs.ActiveMask()),
    **dict.fromkeys(("bar", "barrier"), _barrier),
    "trap": _always(specs.Trap()),
    **dict.fromkeys(("membar", "fence", "griddepcontrol", "nanosleep", "prefetch", "pmevent"), _always(specs.NoEffect())),
    **dict.fromkeys(("bra", "brx", "call", "ret", "exit"), _always(specs.Control())),
}
