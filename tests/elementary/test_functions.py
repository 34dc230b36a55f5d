"""Elementary functions give the recorded bits, which mpmath confirmed; narrower types get the nearest number."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hlo_run.elementary import complex_functions, exact, functions
from hlo_run.elementary.rounding import Elementary
from hlo_run.hlo.values.dtype import DTYPES
from hlo_run.reference.values import Array, narrow, quiet

REAL = tuple(name for name, value in vars(functions).items() if isinstance(value, Elementary))


def _recorded() -> dict[str, list[list[float]]]:
    """Return the rows of a function: its operands (complex: both parts) and its value, in hexadecimal."""
    rows: dict[str, list[list[float]]] = {}
    for line in (Path(__file__).parent / "values.tsv").read_text(encoding="utf-8").splitlines():
        name, *numbers = line.split("\t")
        rows.setdefault(name, []).append([-math.nan if n == "-nan" else float.fromhex(n) for n in numbers])
    return rows


RECORDED = _recorded()


def _bits(numbers: Any) -> list[str]:
    return [np.float64(number).tobytes().hex() for number in np.asarray(numbers, np.float64).reshape(-1)]


def _function(name: str) -> Elementary:
    return getattr(functions, name)


@pytest.mark.parametrize("name", REAL)
def test_a_real_function_gives_the_recorded_bits(name: str) -> None:
    *operands, values = np.array(RECORDED[name]).T
    before = [operand.copy() for operand in operands]
    assert _bits(_function(name)(*operands)) == _bits(values)
    assert _bits(before) == _bits(operands)


@pytest.mark.parametrize("name", REAL)
def test_one_element_is_computed_as_in_an_array(name: str) -> None:
    *operands, values = np.array(RECORDED[name]).T
    for place in range(0, values.size, 5):
        alone = _function(name)(*(operand[place : place + 1].reshape(()) for operand in operands))
        assert alone.shape == ()
        assert _bits(alone) == _bits(values[place])


@pytest.mark.parametrize("name", [name[2:] for name in RECORDED if name.startswith("c.")])
def test_a_complex_function_gives_the_recorded_bits(name: str) -> None:
    a, b, real, imaginary = np.array(RECORDED[f"c.{name}"]).T
    found = getattr(complex_functions, name)(complex_functions.join(a, b))
    assert _bits(found.real) == _bits(real)
    assert _bits(found.imag) == _bits(imaginary)


@pytest.mark.parametrize("name", REAL)
def test_the_decimal_method_agrees(name: str) -> None:
    """Random numbers, among them those that the quick method would leave in doubt once in a thousand."""
    rng = np.random.Generator(np.random.Philox(5))
    count = len(RECORDED[name][0]) - 1
    operands = [rng.random(40) * (1 if count == 1 else 9) + (1.0001 if name == "acosh" else 0.0001) for _ in range(count)]
    decimal: Callable[..., Any] = getattr(exact, name)
    wanted = [exact.nearest(decimal, *(operand.item(place) for operand in operands)) for place in range(40)]
    assert _function(name)(*operands).tolist() == wanted


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16", "f8e4m3fn", "f8e5m2"])
@pytest.mark.parametrize("name", ["exp", "tanh", "sin", "power", "cbrt", "rsqrt", "erf"])
def test_a_narrow_type_gets_the_nearest_number(name: str, dtype: str) -> None:
    """An approximation that is off by up to 2^-43 gives the same numbers."""
    rng = np.random.Generator(np.random.Philox(6))
    target, function = DTYPES[dtype], _function(name)
    operands = [narrow(np.exp2(rng.random(3000) * 8 - 4), target).astype(np.float64) for _ in range(2 if name == "power" else 1)]
    digits, smallest = target.float_format.mantissa_bits + 1, 2.0 ** (1 - target.float_format.bias)

    def rough(*given: Array) -> Array:
        return np.asarray(function.approximate(*given)) * (1 + 2.0**-44 * np.sign(rng.random(np.shape(given[0])) - 0.5))

    other = Elementary(function.ordinary, function.special, function.evaluate, function.exact, rough)
    with quiet():
        found, again = (narrow(f.narrowed(digits, smallest)(*operands), target) for f in (function, other))
        nearest = narrow(function(*operands), target)
    assert found.tobytes() == again.tobytes()
    if digits + 2 <= 24:
        # No f64 that is nearest to a true value lies in the middle of two narrow numbers, unless it is the value itself.
        assert found.tobytes() == nearest.tobytes()


def test_numbers_of_bf16_are_rounded_once() -> None:
    """f64 → f32 → bf16 would take this number for the middle of two, and round down to the even one."""
    assert narrow(np.array([1 + 2.0**-8 + 2.0**-30]), DTYPES["bf16"]).astype(np.float64).tolist() == [1 + 2.0**-7]


def test_f32_values_at_a_middle_are_decided_by_the_pair() -> None:
    """The square of 1 + 2^-12 + 2^-23 has 47 digits; that of 1 + 2^-12 lies in the middle of two f32 numbers."""
    x = np.array([1 + 2.0**-12, 1 + 2.0**-12 + 2.0**-23, 1 - 2.0**-13])
    found = functions.power.narrowed(24, 2.0**-126)(x, np.full(3, 2.0)).astype(np.float32)
    assert found.tolist() == (x * x).astype(np.float32).tolist()


def test_products_and_quotients_of_complex_numbers_round_each_step() -> None:
    x, y = np.array([0.1 + 0.7j, 1e200 + 1e200j]), np.array([0.3 - 0.9j, 3e-200 + 1e200j])
    with quiet():
        product, quotient = complex_functions.multiplied(x, y), complex_functions.divided(x, y)
    assert product[0] == complex(0.1 * 0.3 - 0.7 * -0.9, 0.1 * -0.9 + 0.7 * 0.3)
    assert abs(quotient[1] - (1 - 1j)) < 1e-15


def test_integer_powers_of_complex_numbers_are_products() -> None:
    z = np.array([2 + 3j, 1 + 1j, 2 + 0j])
    assert complex_functions.power(z, np.array([2 + 0j, 2, -2])).tolist() == [-5 + 12j, 2j, 0.25 + 0j]


def test_absolute_values_do_not_overflow() -> None:
    z = np.array([3e300 + 4e300j, 3e-320 + 4e-320j, complex(-math.inf, math.nan), 0])
    assert complex_functions.absolute(z).tolist() == [5e300, 5e-320, math.inf, 0]
    assert complex_functions.absolute(np.array([3 + 4j], np.complex64)).dtype == np.float32
