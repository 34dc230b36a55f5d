"""Reads values of XLA's flags: the values that XLA's command line takes, as the table of flags writes them, and no others.

Enums differ in how they are written. Each takes the names of the proto. Some take any case, some a part of the name.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass

_BLANKS = " \t\n\v\f\r"
_BOOLS = {"true": "true", "1": "true", "false": "false", "0": "false"}
_BOOLS_OF_PROTOS = {**_BOOLS, "t": "true", "f": "false"}
_INTEGER = re.compile(r"[+-]?[0-9]+")
_HEXADECIMAL = re.compile(r"[+-]?0[xX]([0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)([pP][+-]?[0-9]+)?")
_DECIMAL = re.compile(r"[+-]?(([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|(?i:inf|infinity)|(?i:nan)(\([0-9A-Za-z_]*\))?)")
_DURATION = re.compile(r"[+-]?(0|inf|(([0-9]+\.?[0-9]*|\.[0-9]+)(ns|us|ms|s|m|h))+)")


@dataclass(frozen=True, slots=True)
class _Spelling:
    """The spelling of an enum's values on the command line: without `prefix` and `suffix`, exactly, in any case or in lower case.

    `has_signs` is true for lists in which `+VALUE` and `-VALUE` change the default. `numbers` are those of the proto, by default
    from 0.
    """

    prefix: str = ""
    suffix: str = ""
    case: str = "exact"
    has_signs: bool = False
    numbers: tuple[int, ...] = ()
    # Only words without the prefix are taken in any case.
    is_short: bool = False
    # What no word means.
    empty: str = ""


_LIBRARY = _Spelling("LIBRARY_FUSION_TYPE_", case="any", has_signs=True, numbers=(1, 2, 3, 4, 5))
# By the first value of the enum.
_SPELLINGS = {
    "CPU_OPT_PRESET_DEFAULT": _Spelling("CPU_OPT_PRESET_", case="any"),
    "LIBRARY_FUSION_TYPE_DOT": _LIBRARY,
    "XNN_GRAPH_FUSION_MODE_DISABLED": _Spelling(case="any"),
    "WHILE_LOOP_UNROLLING_NO_UNROLL": _Spelling(case="any"),
    "COLLECTIVES_PRIVATE_MEMORY": _Spelling("COLLECTIVES_", "_MEMORY", case="any", numbers=(1, 2, 3)),
    "DETECTION_MODE_NONE": _Spelling("DETECTION_MODE_", case="lower"),
    "NOOP": _Spelling(case="any"),
    "COLLECTIVE_PIPELINING_MODE_DEFAULT": _Spelling("COLLECTIVE_PIPELINING_MODE_", case="any", is_short=True),
    "DETERMINISTIC_OPS_TRITON_MODE_UNSET": _Spelling("DETERMINISTIC_OPS_TRITON_MODE_", case="any", is_short=True),
    "STEP_MARK_AT_ENTRY": _Spelling(numbers=(0, 1, 3, 2)),
    "FUSION": _Spelling(case="any", has_signs=True, numbers=(1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13)),
    "CUDNN": _Spelling(
        case="any", has_signs=True, numbers=(1, 2, 4, 6, 7, 8, 9, 10, 11, 13, 14, 16, 17, 18, 19, 0), empty="UNSPECIFIED_BACKEND"
    ),
    "COLLECTIVE_KERNEL_ALL_REDUCE": _Spelling("COLLECTIVE_KERNEL_", case="any", has_signs=True, numbers=(1, 2, 3, 4, 8)),
}
_EXACT = _Spelling()


def scalar(kind: str, text: str) -> str:
    """Return a value of the type `kind` as the table writes it; raises ValueError with the reason if XLA does not take it."""
    match kind:
        case "bool":
            if text.lower() not in _BOOLS:
                raise ValueError(f"'{text}' is not a boolean (true, false)")
            return _BOOLS[text.lower()]
        case "int32" | "int64":
            return _integer(text, 32 if kind == "int32" else 64)
        case "float":
            return _float(text)
        case "duration":
            if _DURATION.fullmatch(text) is None:
                raise ValueError(f"'{text}' is not a time such as 10s, 1.5m or inf")
            return text
        case "ranges":
            return ",".join(map(_range, text.split(","))) if text else ""
        case _:
            return text


def choice(choices: Sequence[str], text: str) -> str:
    """Return the value of an enum that `text` names, by the proto's name or as XLA's command line writes it."""
    if text in choices:
        return text
    spelling = _SPELLINGS.get(choices[0], _EXACT)
    word = {"any": text.upper(), "lower": text.upper() if text.islower() else "", "exact": ""}[spelling.case]
    full = (word,) if spelling.case == "any" and not spelling.suffix and not spelling.is_short else ()
    if not text and spelling.empty:
        return spelling.empty
    for found in (*full, f"{spelling.prefix}{word}{spelling.suffix}"):
        if word and found in choices:
            return found
    raise ValueError(f"'{text}' is not one of {', '.join(choices)}")


def choice_list(choices: Sequence[str], text: str, default: Sequence[str]) -> list[str]:
    """Return the values of a list of an enum. `+VALUE` and `-VALUE` change the default, for the flags where XLA takes them."""
    spelling = _SPELLINGS.get(choices[0], _EXACT)
    if not spelling.has_signs:
        return [choice(choices, word) for word in text.split(",")] if text else []
    words = [word.strip(_BLANKS) for word in text.split(",")]
    if len(words) > 1 and not any(words):  # as in XLA, where no word lacks a sign
        return list(default)
    signed = [word for word in words if word[:1] in ("+", "-")]
    if not signed:
        return list(dict.fromkeys(choice(choices, word) for word in words if word))
    if len(signed) < len(words):
        raise ValueError(f"'{text}' has a sign before some values and not before others")
    values = list(default)
    for word in words:
        value = choice(choices, word[1:])
        if word[0] == "-":
            values = [other for other in values if other != value]
        elif value not in values:
            values.append(value)
    return values


def collective_filter(choices: Sequence[str], text: str) -> str:
    """Return a kind of collectives, which may end with their most bytes and their element type: AllReduce:8388608:f32."""
    name, *limits = text.split(":")
    kind = re.sub("[_-]", "", name).upper()
    values = [choice(choices, "ALLCOLLECTIVES" if kind == "ALL" else kind)]
    if len(limits) > 2:
        raise ValueError(f"'{text}' has more parts than KIND:BYTES:TYPE")
    values += [_integer(limits[0], 64)] if limits else []
    values += [limits[1].upper()] if limits[1:] else []
    return ":".join(values)


def from_proto(kind: str, choices: Sequence[str], text: str) -> str:
    """Return a scalar of a text proto as the command line writes it. Protos also have numbers of enums, t, f, 0x1F and 017."""
    if choices and text.isdecimal():
        numbers = _SPELLINGS.get(choices[0], _EXACT).numbers or range(len(choices))
        return next((name for name, number in zip(choices, numbers, strict=True) if number == int(text)), text)
    if kind == "bool":
        return _BOOLS_OF_PROTOS.get(text.lower(), text)
    if kind in ("int32", "int64") and (number := re.fullmatch(r"(-?)0([xX][0-9a-fA-F]+|[0-7]+)", text)):
        digits = number[2]
        return number[1] + str(int(digits[1:], 16) if digits[0] in "xX" else int(digits, 8))
    return text.rstrip("fF") if kind == "float" and text[:1] in "-.0123456789" else text


def _integer(text: str, bits: int) -> str:
    if _INTEGER.fullmatch(digits := text.strip(_BLANKS)) is None:
        raise ValueError(f"'{text}' is not an integer")
    value = int(digits)
    if not -(1 << bits - 1) <= value < 1 << bits - 1:
        raise ValueError(f"'{text}' does not fit into {bits} bits")
    return str(value)


def _float(text: str) -> str:
    """Return a number with the digits of a 32-bit float, to which XLA rounds it."""
    digits = text.strip(_BLANKS)
    if _HEXADECIMAL.fullmatch(digits):
        value = float.fromhex(digits)
    elif _DECIMAL.fullmatch(digits):
        value = float(digits.partition("(")[0])
    else:
        raise ValueError(f"'{text}' is not a number")
    try:
        (rounded,) = struct.unpack("f", struct.pack("f", value))
    except OverflowError:
        rounded = float("inf") if value > 0 else float("-inf")
    return f"{value:.9g}" if rounded not in (0.0, float("inf"), float("-inf")) else f"{rounded:.9g}"


def _range(text: str) -> str:
    """Check a number or a range: FIRST:LAST, FIRST: or :LAST."""
    first, colon, last = text.partition(":")
    numbers = [_integer(word, 64) for word in (first, last) if word]
    if not numbers or (colon and len(numbers) == 2 and int(numbers[0]) > int(numbers[1])):
        raise ValueError(f"'{text}' is not a number or a range FIRST:LAST")
    return text
