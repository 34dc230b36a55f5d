"""Print texts that must not depend on the machine, as JSON: run by `test_same_on_every_machine.py` under several settings."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import numpy as np

import hlo_run
from hlo_run.cli import parse_arguments
from hlo_run.commands.dispatch import run_files
from hlo_run.errors import HloRunError
from hlo_run.reference.arguments.fake_arguments import make_fake_arguments
from hlo_run.reference.evaluate.evaluate import evaluate

_UNARY = """abs acos acosh asin asinh atanh cbrt cosine cosh erf exponential exponential-minus-one log log-plus-one logistic
    rsqrt sine sinh sqrt tan tanh""".split()
_REAL_ONLY = frozenset(("cbrt", "erf"))
_BINARY = ("atan2", "power", "multiply", "divide")
_REAL = ("f64", "f32", "bf16", "f16", "f8e5m2")
_COMPLEX = ("c128", "c64")


class _Collector:
    """Collects what a command prints."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def out(self, text: str) -> None:
        self.lines.append(text)

    artefact = record = err = out

    def error(self, error: HloRunError) -> None:
        raise error


def _numbers(count: int, low: float, high: float) -> str:
    """Return numbers whose digits are not round, of the same bits everywhere."""
    spread = [(k * 0.6180339887498949) % 1.0 for k in range(1, count + 1)]
    return ", ".join(repr(low + (high - low) * part) for part in spread)


def _literal(dtype: str, count: int) -> str:
    if dtype in _REAL:
        return f"{dtype}[{count + 4}] constant({{{_numbers(count, -1.75, 2.5)}, 0, -0.0, inf, nan}})"
    parts = _numbers(2 * count, -1.75, 2.5).split(", ")
    pairs = ", ".join(f"({a}, {b})" for a, b in zip(parts[::2], parts[1::2], strict=True))
    return f"{dtype}[{count}] constant({{{pairs}}})"


def _functions() -> str:
    lines: list[str] = []
    roots: list[tuple[str, str]] = []
    for dtype in (*_REAL, *_COMPLEX):
        is_real = dtype in _REAL
        shape = f"{dtype}[10]" if is_real else f"{dtype}[6]"
        for number in range(2):
            lines.append(f"  {dtype}.{number} = {_literal(dtype, 6)}" if not number else f"  {dtype}.1 = {shape} sine({dtype}.0)")
        for opcode in (*_UNARY, *_BINARY):
            if not is_real and opcode in _REAL_ONLY:
                continue
            result = shape.replace("c128", "f64").replace("c64", "f32") if opcode == "abs" else shape
            operands = f"{dtype}.0, {dtype}.1" if opcode in _BINARY else f"{dtype}.0"
            lines.append(f"  {dtype}.{opcode} = {result} {opcode}({operands})")
            roots.append((f"{dtype}.{opcode}", result))
    shapes, names = ", ".join(shape for _, shape in roots), ", ".join(name for name, _ in roots)
    return "\n".join(("HloModule functions", "ENTRY e {", *lines, f"  ROOT r = ({shapes}) tuple({names})", "}"))


def _sums() -> str:
    lines: list[str] = []
    roots: list[tuple[str, str]] = []
    adders: list[str] = []
    for dtype in ("f64", "f32", "bf16", "c64"):
        adders.append(f"add_{dtype} {{ p = {dtype}[] parameter(0) q = {dtype}[] parameter(1) ROOT s = {dtype}[] add(p, q) }}")
        lines += [
            f"  {dtype}.line = {_literal(dtype, 1536).replace(', 0, -0.0, inf, nan', '').replace('[1540]', '[1536]')}",
            f"  {dtype}.a = {dtype}[24,64] reshape({dtype}.line)",
            f"  {dtype}.image = {dtype}[1,16,16,6] reshape({dtype}.line)",
            f"  {dtype}.some = {dtype}[108] slice({dtype}.line), slice={{[0:108]}}",
            f"  {dtype}.taps = {dtype}[3,3,6,2] reshape({dtype}.some)",
            f"  {dtype}.long = {dtype}[3,512] reshape({dtype}.line)",
            f"  {dtype}.zero = {dtype}[] constant({'0' if dtype != 'c64' else '(0, 0)'})",
            f"  {dtype}.dot = {dtype}[24,24] dot({dtype}.a, {dtype}.a), lhs_contracting_dims={{1}}, rhs_contracting_dims={{1}}",
            f"  {dtype}.few = {dtype}[3,3] dot({dtype}.long, {dtype}.long), "
            "lhs_contracting_dims={1}, rhs_contracting_dims={1}",
            f"  {dtype}.conv = {dtype}[1,14,14,2] convolution({dtype}.image, {dtype}.taps), window={{size=3x3}}, "
            "dim_labels=b01f_01io->b01f",
            f"  {dtype}.sum = {dtype}[24] reduce({dtype}.a, {dtype}.zero), dimensions={{1}}, to_apply=add_{dtype}",
            f"  {dtype}.window = {dtype}[24,33] reduce-window({dtype}.a, {dtype}.zero), window={{size=1x32}}, "
            f"to_apply=add_{dtype}",
        ]
        shapes = {"dot": "[24,24]", "few": "[3,3]", "conv": "[1,14,14,2]", "sum": "[24]", "window": "[24,33]"}
        roots += [(f"{dtype}.{name}", dtype + dims) for name, dims in shapes.items()]
    shapes, names = ", ".join(shape for _, shape in roots), ", ".join(name for name, _ in roots)
    return "\n".join(("HloModule sums", *adders, "ENTRY e {", *lines, f"  ROOT r = ({shapes}) tuple({names})", "}"))


_DRAWN = """HloModule drawn
ENTRY e {
  p = f32[40] parameter(0)
  q = f64[40] parameter(1)
  zero = f32[] constant(0)
  one = f32[] constant(1)
  n = f32[40] rng(zero, one), distribution=rng_normal
  s = f32[40] add(n, p)
  t = f64[40] tanh(q)
  ROOT r = (f32[40], f64[40]) tuple(s, t)
}
"""


def _printed(text: str, folder: Path, *flags: str) -> str:
    """Return what a command prints for a module."""
    file = folder / "module.hlo"
    file.write_text(text, encoding="utf-8")
    options, _, _ = parse_arguments(["--cache=off", *flags, str(file)])
    console = _Collector()
    run_files(options, [str(file)], console)  # pyright: ignore[reportArgumentType] - it has what this command needs
    return "\n".join(console.lines).replace(str(folder), "")


def texts() -> dict[str, str]:
    """Return the texts by name."""
    gelu = (Path(__file__).parent.parent / "examples" / "gelu.hlo").read_text(encoding="utf-8")
    module = hlo_run.parse(_DRAWN, "drawn.hlo")
    values = evaluate(module, make_fake_arguments(module, 1))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        return {
            "functions": _printed(_functions(), folder, "--stage=hlo", "--xla_dump_large_constants"),
            "sums": _printed(_sums(), folder, "--stage=hlo", "--xla_dump_large_constants"),
            "gelu": _printed(gelu, folder, "--stage=hlo"),
            "values": " ".join(np.asarray(value).tobytes().hex() for value in values),
        }


if __name__ == "__main__":
    json.dump(texts(), sys.stdout)
