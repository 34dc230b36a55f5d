"""Mutations of HLO text, each a function of the text and one integer, and what must hold of every text there is.

Small changes stay close to valid text and reach deep into the parser, shape inference and the verifier; the rest breaks
the text in coarse ways.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import hlo_run
from hlo_run.errors import HloRunError
from hlo_run.hlo.attributes.table import ATTRIBUTES
from hlo_run.hlo.fingerprint import module_fingerprint
from hlo_run.hlo.opcodes.table import OPCODES
from hlo_run.hlo.print_options import FINGERPRINT, FULL
from hlo_run.hlo.values.dtype import DTYPES
from hlo_run.ops.infer import infer_module
from hlo_run.records import replace

FOLDER = Path(__file__).resolve().parent / "data" / "fuzz"

_OPCODES = sorted(OPCODES)
_DTYPES = sorted(DTYPES)
_ATTRIBUTES = sorted(ATTRIBUTES)
_OPCODE = re.compile(r"\b[a-z][a-z0-9\-]*(?=\()")
_DTYPE = re.compile(rf"\b(?:{'|'.join(sorted(_DTYPES, key=len, reverse=True))})(?=\[)")
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_NAME = re.compile(r"%?[A-Za-z_][\w.\-]*")
_SHAPE = re.compile(r"\b[a-z]\w*\[[^\]\n]*\](?:\{[^}\n]*\})?")
_BRACKETED = re.compile(r"\{[^{}\n]*\}|\([^()\n]*\)|\[[^\[\]\n]*\]")
_ATTRIBUTE = re.compile(r"(, )([a-z_\-]+=)")
# The value of an attribute: braces three deep, a string, or a word.
_VALUE = re.compile(
    r"""(?<=[a-z_\-]=)(?:\{(?:[^{}\n]|\{(?:[^{}\n]|\{[^{}\n]*\})*\})*\}|"[^"\n]*"|[^\s,{}"]+)""",
)
_TOKENS_OF_VALUES = """{ } ( ) [ ] , : = ? * - -1 0 1 2 4 1.5 x <= <=[4] T(1,0) {} {0} {0,1} {{0,1}} "" "a" 'x' true false a b c
    replicated manual maximal unreduced last_tile_dim_replicate shard_as metadata={op_name="m"} device=0 devices=[2]0,1 highest
    default size=2 pad=0_1 stride=2 1_1x1_1 2x2 [0:1] [synthetic_call] LT EQ""".split()
_OPERAND = re.compile(r"(?<=\()%?[a-z_][\w.\-]*(?=[,)])")
_NUMBERS = """0 1 -1 2 3 7 127 128 255 256 32 -2 1.5 -0.0 1e40 nan inf -inf 2147483648 4294967296 9223372036854775807
    9223372036854775808 18446744073709551615 18446744073709551616 -9223372036854775809 99999999999999999999999""".split()
_PIECES = """{ } ( ) [ ] , : = # -> <= ... ? * + ~ " ' \\ / /* */ // \\0 % ROOT ENTRY HloModule {...} {} () [] {{}} metadata={
    sharding={replicated} #0 b( token[] f32[] s4[3] pred[<=2] f32[?] 1_1 1x1 0_0x0_0 b01f_01io->b01f nan(0x1) {0,1} calls= -start
    -done to_apply={ é \U0001f600 \\u2028 \\r \\t""".split()
_CHARACTERS = "{}()[],:=#->?*+~\"'\\/%&$@!;\n\r\t\0 aZ09._-\x7fé\u2028\U0001f600\x0b\x1c\xa0\u0663"

Mutation = Callable[[str, int], str]


def _at(text: str, number: int) -> int:
    return number % (len(text) + 1)


def _replace_one(text: str, pattern: re.Pattern[str], number: int, choose: Callable[[str, int], str]) -> str:
    """Replace one of the places that match, chosen by the low part of `number`; the rest of it chooses what comes there."""
    places = list(pattern.finditer(text))
    if not places:
        return text
    rest, which = divmod(number, len(places))
    place = places[which]
    return text[: place.start()] + choose(place[0], rest) + text[place.end() :]


def _another(words: Sequence[str]) -> Callable[[str, int], str]:
    return lambda _, number: words[number % len(words)]


def _drop_span(text: str, number: int) -> str:
    length, place = number % 23 + 1, _at(text, number // 23)
    return text[:place] + text[place + length :]


def _repeat_span(text: str, number: int) -> str:
    length, place = number % 41 + 1, _at(text, number // 41)
    return text[: place + length] + text[place:]


def _move_span(text: str, number: int) -> str:
    length, place = number % 31 + 1, _at(text, number // 31)
    to = _at(text, number // 997)
    return text[:to] + text[place : place + length] + text[to:]


def _set_character(text: str, number: int) -> str:
    place = _at(text, number // len(_CHARACTERS))
    return text[:place] + _CHARACTERS[number % len(_CHARACTERS)] + text[place + 1 :]


def _insert_piece(text: str, number: int) -> str:
    place = _at(text, number // len(_PIECES))
    return text[:place] + _PIECES[number % len(_PIECES)].encode().decode("unicode_escape", "replace") + text[place:]


def _flip_bit(text: str, number: int) -> str:
    data = bytearray(text.encode())
    if data:
        data[number // 8 % len(data)] ^= 1 << number % 8
    return data.decode(errors="replace")


def _lines(change: Callable[[list[str], int, int], None]) -> Mutation:
    def mutate(text: str, number: int) -> str:
        lines = text.split("\n")
        change(lines, number % len(lines), number // len(lines) % len(lines))
        return "\n".join(lines)

    return mutate


def _drop_line(lines: list[str], first: int, second: int) -> None:
    del lines[first]


def _repeat_line(lines: list[str], first: int, second: int) -> None:
    lines.insert(second, lines[first])


def _swap_lines(lines: list[str], first: int, second: int) -> None:
    lines[first], lines[second] = lines[second], lines[first]


def _truncate(text: str, number: int) -> str:
    return text[: _at(text, number)]


def _swap_names(text: str, number: int) -> str:
    names = sorted(set(_NAME.findall(text)))
    return _replace_one(text, _NAME, number, _another(names)) if names else text


def _swap_brackets(text: str, number: int) -> str:
    brackets = _BRACKETED.findall(text)
    return _replace_one(text, _BRACKETED, number, _another(brackets)) if brackets else text


def _rename_attribute(text: str, number: int) -> str:
    return _replace_one(text, _ATTRIBUTE, number, lambda _, rest: f", {_ATTRIBUTES[rest % len(_ATTRIBUTES)]}=")


def _edit_value(text: str, number: int) -> str:
    """Drop, repeat, replace or insert one token in the value of an attribute."""

    def edit(value: str, rest: int) -> str:
        tokens = re.findall(r"\w+|.", value)
        rest, place = divmod(rest, len(tokens))
        rest, way = divmod(rest, 4)
        other = _TOKENS_OF_VALUES[rest % len(_TOKENS_OF_VALUES)]
        tokens[place : place + 1] = ([], [tokens[place]] * 2, [other], [other, tokens[place]])[way]
        return "".join(tokens)

    return _replace_one(text, _VALUE, number, edit)


def _depth(number: int) -> int:
    # Often small, sometimes beyond Python's own limit on recursion, once in a while beyond XLA's.
    return (3, 3, 70, 70, 70, 300, 1200, 9000)[number % 8]


def _nest_shape(text: str, number: int) -> str:
    return _replace_one(text, _SHAPE, number, lambda shape, rest: "(" * _depth(rest) + shape + ")" * _depth(rest))


def _nest_operand(text: str, number: int) -> str:
    return _replace_one(text, _OPERAND, number, lambda name, rest: "negate(" * _depth(rest) + name + ")" * _depth(rest))


def _nest_brackets(text: str, number: int) -> str:
    def nest(found: str, rest: int) -> str:
        return found[0] * _depth(rest) + found + found[-1] * (_depth(rest) - rest % 2)

    return _replace_one(text, _BRACKETED, number, nest)


def _nest_bodies(text: str, number: int) -> str:
    depth = _depth(number)
    body = "{ p = f32[] parameter(0) ROOT c = f32[] call(p), to_apply="
    return (
        text
        + "\nn { p = f32[] parameter(0) ROOT c = f32[] call(p), to_apply="
        + body * depth
        + "{ROOT p = f32[] parameter(0)}"
        + "}" * (depth + 1)
    )


NESTING_MUTATIONS: tuple[Mutation, ...] = (_nest_shape, _nest_operand, _nest_brackets, _nest_bodies)
MUTATIONS: tuple[Mutation, ...] = (
    _flip_bit,
    _set_character,
    _insert_piece,
    _drop_span,
    _repeat_span,
    _move_span,
    _lines(_drop_line),
    _lines(_repeat_line),
    _lines(_swap_lines),
    _truncate,
    lambda text, number: _replace_one(text, _OPCODE, number, _another(_OPCODES)),
    lambda text, number: _replace_one(text, _DTYPE, number, _another(_DTYPES)),
    lambda text, number: _replace_one(text, _NUMBER, number, _another(_NUMBERS)),
    lambda text, number: _replace_one(text, _NUMBER, number, lambda _, rest: str(rest % 7)),
    _swap_names,
    _swap_brackets,
    _rename_attribute,
    _edit_value,
    _edit_value,
    _edit_value,
    *NESTING_MUTATIONS,
)


def mutate(text: str, steps: Sequence[tuple[int, int]]) -> str:
    """Apply mutations one after the other; each step is the number of a mutation and its integer."""
    for which, number in steps:
        text = MUTATIONS[which % len(MUTATIONS)](text, number)
    return text


# XLA prints a tolerance of minus zero so, and reads this as the integer zero.
_MINUS_ZERO = re.compile(r"(?<=[ar]tol=)-0(?=[,}])")
# Printed in each other they make a text of the square of their size.
_MANY_COMPUTATIONS = 100


def check(text: str) -> bool:
    """Read `text`; True if it is a module. Raises whatever is no error of ours, and AssertionError if it does not read back."""
    try:
        module = hlo_run.parse(text, "mutated.hlo")
    except HloRunError as error:
        # What users see must always be printable.
        error.render().encode()
        return False
    options = replace(FULL, metadata=False)
    full = module.to_string(FULL)
    again = hlo_run.parse(full)
    infer_module(again)
    expected = module.to_string(options)
    assert again.to_string(options) == _MINUS_ZERO.sub("0", expected), "the full text gives another module"
    if not _MINUS_ZERO.search(expected):
        assert module_fingerprint(again) == module_fingerprint(module), "the module read back has another fingerprint"
    module.to_string()
    if len(module.computations) <= _MANY_COMPUTATIONS:
        module.to_string(FINGERPRINT)
    return True
