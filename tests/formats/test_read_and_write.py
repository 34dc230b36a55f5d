"""Other formats than HLO text, compared with the output of real XLA for the same module."""

from __future__ import annotations

import functools
import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hlo_run
from hlo_run.cli import run
from hlo_run.errors import HloRunError, ParseError, Unsupported, UsageError
from hlo_run.formats import conversions, protos, xla
from hlo_run.formats.proto_literals import literal_of_proto
from hlo_run.formats.read import read_module
from hlo_run.formats.write import hlo_proto, module_to_bytes
from hlo_run.hlo.values.literal import Literal

pytest.importorskip("jaxlib")
pytest.importorskip("google.protobuf")

DATA = Path(__file__).resolve().parent.parent / "data" / "xla_cpu"
SMALL = """HloModule small
ENTRY e {
  p = f32[2,3] parameter(0)
  q = f32[2,3] parameter(1)
  ROOT a = f32[2,3] subtract(p, q)
}
"""
# Sort, reduce, gather, scatter, conditional, while, fusion, bitcast, sub-byte types, complex: one of each.
_PROTO_SHAPE = b"hlo_module { computations { instructions { shape { %s } } } }"
SAMPLE = (
    "sort_u8",
    "reduce_or",
    "gather_collapsed",
    "gpu__scatter__overwrite",
    "cond_switch",
    "raw_while_trip_count",
    "common__loop__s2_to_s8",
    "raw_constant_forms",
)


def real_xla() -> Any:
    return importlib.import_module("jaxlib._hlo")


@pytest.mark.parametrize("name", SAMPLE)
def test_a_proto_is_real_xlas_and_reads_back(name: str, tmp_path: Path) -> None:
    text = (DATA / f"{name}.hlo").read_text()
    # Printed once, because ids follow the order of the text, and XLA prints another order than that of the file.
    theirs = real_xla().hlo_module_from_text(xla.full_text(real_xla().hlo_module_from_text(text)))
    data = module_to_bytes(hlo_run.parse(text), "pb")
    proto: Any = protos.message_types("t")("xla.HloProto").FromString(data)
    expected: Any = protos.message_types("t")("xla.HloModuleProto").FromString(theirs.as_serialized_hlo_module_proto())
    expected.id = 0  # counts the modules of a process
    assert proto.hlo_module == expected
    file = tmp_path / "module.pb"
    file.write_bytes(data)
    assert read_module(str(file)).text == xla.full_text(theirs)


@pytest.mark.parametrize("name", ["cond_switch", "gpu__scatter__overwrite"])
def test_the_text_format_holds_the_same_module(name: str, tmp_path: Path) -> None:
    text = (DATA / f"{name}.hlo").read_text()
    for output_format, extension in (("pb", "pb"), ("pbtxt", "pbtxt"), ("pbtxt", "textproto")):
        (tmp_path / f"module.{extension}").write_bytes(module_to_bytes(hlo_run.parse(text), output_format))
    binary, *texts = (read_module(str(tmp_path / f"module.{kind}")).text for kind in ("pb", "pbtxt", "textproto"))
    assert texts == [binary, binary]
    for kind in ("proto_text", "unoptimized_snapshot_proto_text", "proto_binary", "snapshot_proto_binary"):
        assert read_module(str(tmp_path / f"module.{'pb' if 'binary' in kind else 'pbtxt'}"), kind).text == binary


def test_every_message_that_holds_a_module_is_read(tmp_path: Path) -> None:
    module = _module_proto(SMALL).SerializeToString(deterministic=True)
    message = protos.message_types("t")
    unoptimized = message("xla.HloUnoptimizedSnapshot")()
    unoptimized.hlo_module.ParseFromString(module)
    argument = unoptimized.partitions.add().arguments.add()
    argument.CopyFrom(_literal_proto("f32[2,3] {{1,2,3},{4,5,6}}"))
    bare = protos.read_binary(module, "t")
    assert bare.arguments is None
    assert protos.read_binary(hlo_proto(module), "t") == bare
    contents = protos.read_binary(unoptimized.SerializeToString(), "t")
    assert contents.module == bare.module
    assert contents.arguments is not None
    np.testing.assert_array_equal(contents.arguments[0], [[1, 2, 3], [4, 5, 6]])


@functools.cache
def _module_proto(text: str) -> Any:
    """Return the HloModuleProto that real XLA makes of HLO text."""
    return protos.message_types("t")("xla.HloModuleProto").FromString(xla.text_to_proto(text, "t"))


def _literal_proto(text: str) -> Any:
    """Return the LiteralProto that real XLA makes of `shape value`."""
    shape, _, value = text.partition(" ")
    module = _module_proto(f"HloModule m\nENTRY e {{ ROOT c = {shape} constant({value}) }}")
    return module.computations[0].instructions[0].literal


def test_literals_of_every_type_are_read() -> None:
    rows = [
        "pred[3] {1,0,1}",
        *(f"{kind}[5] {{0,1,1,0,1}}" for kind in ("u1", "u2", "u4", "u8", "u16", "u32", "u64", "s8", "s16", "s32", "s64")),
        *(f"{kind}[2,2]{{0,1}} {{{{-2,1}},{{-1,0}}}}" for kind in ("s2", "s4", "s16", "s64", "f64", "f32")),
        "s1[2] {-1,0}",
        *(f"{kind}[3] {{1.5,-2,0.5}}" for kind in ("bf16", "f16", "f8e5m2", "f8e4m3", "f8e4m3fn", "f8e3m4", "f4e2m1fn")),
        *(f"{kind}[3] {{1,-2,0.5}}" for kind in ("f8e4m3b11fnuz", "f8e4m3fnuz", "f8e5m2fnuz")),
        "f8e8m0fnu[3] {1,2,0.5}",
        "c64[1,2] {{(1,2),(-3,4)}}",
        "c128[2] {(1,2),(-3,4)}",
        "f32[2,3,2]{0,2,1} {{{1,2},{3,4},{5,6}},{{7,8},{9,10},{11,12}}}",
    ]
    pairs = [(row[: row.index(" ")], row[row.index(" ") + 1 :]) for row in rows]
    pairs.append(("(s4[2], (f32[], pred[]))", "({-8,7}, (2.5, true))"))
    body = "".join(f"  c{number} = {shape} constant({value})\n" for number, (shape, value) in enumerate(pairs))
    text = f"HloModule m\nENTRY e {{\n{body}}}"
    ours = hlo_run.parse(text)
    theirs = {i.name: i.literal for i in _module_proto(text).computations[0].instructions}
    for instruction in ours.entry.instructions:
        _same(literal_of_proto(theirs[instruction.name], "argument 0"), instruction.literal, str(instruction))


def _same(actual: Literal, expected: Literal, what: str) -> None:
    if isinstance(expected, tuple):
        assert isinstance(actual, tuple)
        for a, e in zip(actual, expected, strict=True):
            _same(a, e, what)
        return
    assert not isinstance(actual, tuple)
    assert actual.dtype == expected.dtype, what
    assert actual.tobytes() == expected.tobytes(), what


def _snapshot(text: str, *literals: str) -> Any:
    snapshot = protos.message_types("t")("xla.HloSnapshot")()
    snapshot.hlo.hlo_module.CopyFrom(_module_proto(text))
    for literal in literals:
        snapshot.arguments.add().CopyFrom(_literal_proto(literal))
    return snapshot


def test_a_snapshot_runs_with_its_own_arguments(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    snapshot = _snapshot(SMALL, "f32[2,3] {{1,2,3},{4,5,6}}", "f32[2,3]{0,1} {{7,1,2},{3,4,5}}")
    binary, text = tmp_path / "s.pb", tmp_path / "s.pbtxt"
    binary.write_bytes(snapshot.SerializeToString())
    text.write_text(str(snapshot))
    for file in (binary, text):
        assert run(["--platform=Interpreter", "--print_literals", "--iterations=2", str(file)]) == 0
        out = capsys.readouterr().out
        assert out.count("** Argument 1 **\nf32[2,3] {\n  { 7, 1, 2 },\n  { 3, 4, 5 }\n}") == 2
        assert "** Result with test runner Interpreter **\nf32[2,3] {\n  { -6, 1, 1 },\n  { 1, 1, 1 }\n}" in out


def test_snapshot_arguments_must_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "s.pb"
    cases = {
        ("f32[2,3] {{1,2,3},{4,5,6}}",): "takes 2 arguments, but",
        ("f32[2,3] {{1,2,3},{4,5,6}}", "f32[3] {1,2,3}"): "argument 1 ('q') has dimensions [3], but the parameter is f32[2,3]",
        ("s32[2,3] {{1,2,3},{4,5,6}}", "f32[2,3] {{1,2,3},{4,5,6}}"): "argument 0 ('p') has elements of int32",
    }
    for literals, message in cases.items():
        file.write_bytes(_snapshot(SMALL, *literals).SerializeToString())
        assert run(["--platform=Interpreter", str(file)]) == 2
        assert message in capsys.readouterr().err


@pytest.mark.parametrize("output_format", ["pb", "pbtxt", "stablehlo"])
def test_the_executed_module_can_be_written_and_read(output_format: str, tmp_path: Path) -> None:
    source = tmp_path / "small.hlo"
    source.write_text(SMALL)
    file = tmp_path / f"out.{output_format}"
    assert run(["--stage=hlo", f"--output_format={output_format}", f"-o={file}", str(source)]) == 0
    module = hlo_run.load(str(file))
    arguments = np.random.default_rng(5).standard_normal((2, 2, 3)).astype(np.float32)
    np.testing.assert_array_equal(hlo_run.evaluate(module, *arguments), arguments[0] - arguments[1])
    if output_format != "stablehlo":  # which has no fusions
        assert any(i.opcode == "fusion" for i in module.instructions), "the module as executed, not as read"


def test_bytes_go_to_stdout(tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    source = tmp_path / "small.hlo"
    source.write_text(SMALL)
    assert run(["--stage=hlo-input", "--output_format=pb", str(source)]) == 0
    assert capfdbinary.readouterr().out == module_to_bytes(hlo_run.parse(SMALL), "pb")


def test_signs_of_zero_and_nan_bits_survive(tmp_path: Path) -> None:
    text = (
        'HloModule z\nENTRY e {\n  a = f32[4] constant({-0.0, 0, nan(0x1234), -nan}), metadata={op_name="constant(-0)"}\n'
        "  b = c64[2] constant({(-0.0, 1), (2, -0.0)})\n  c = bf16[] constant(-0.0)\n"
        "  ROOT t = (f32[4], c64[2], bf16[]) tuple(a, b, c)\n}"
    )
    module = hlo_run.parse(text)
    file = tmp_path / "z.pb"
    file.write_bytes(module_to_bytes(module, "pb"))
    again = hlo_run.load(str(file))
    before, after = ({i.name: i for i in m.instructions if i.opcode == "constant"} for m in (module, again))
    for name, constant in before.items():
        _same(after[name].literal, constant.literal, name)
    assert 'op_name="constant(-0)"' in str(after["a"].metadata)


def _random_damage(data: bytes, rng: np.random.Generator) -> bytes:
    broken = bytearray(data)
    place = int(rng.integers(len(broken)))
    match int(rng.integers(3)):
        case 0:
            del broken[place:]
        case 1:
            broken[place] ^= int(rng.integers(1, 256))
        case _:
            broken[place:place] = rng.bytes(int(rng.integers(1, 6)))
    return bytes(broken)


@pytest.mark.parametrize("extension", ["pb", "mlirbc", "pbtxt", "mlir"])
def test_damaged_files_end_with_an_error_of_ours_or_none(extension: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(17)
    text = (DATA / "cond_switch.hlo").read_text()
    if extension == "mlirbc":
        mlir: Any = importlib.import_module("jaxlib._jax").mlir
        data = mlir.hlo_to_stablehlo(xla.text_to_proto(text, "t"))
    else:
        data = module_to_bytes(hlo_run.parse(text), {"mlir": "stablehlo"}.get(extension, extension))
    file = tmp_path / f"broken.{extension}"
    refused = 0
    for _ in range(4):
        file.write_bytes(_random_damage(data, rng))
        try:
            hlo_run.load(str(file))
        except (ParseError, UsageError):
            refused += 1
    assert refused


def test_an_input_that_ends_xlas_process_is_an_error_like_any_other(tmp_path: Path) -> None:
    file = tmp_path / "fatal.mlir"
    file.write_text(
        "func.func @main() -> tensor<2xf6E2M3FN> {\n  %0 = stablehlo.constant dense<[1.0, 2.0]> : tensor<2xf6E2M3FN>\n"
        "  return %0 : tensor<2xf6E2M3FN>\n}"
    )
    with pytest.raises(ParseError, match=r"fatal\.mlir' crashes XLA's own reader: (Check failed: |Unhandled primitive type)"):
        read_module(str(file))
    module = hlo_run.parse("HloModule m\nENTRY e { ROOT c = f6e2m3fn[2] constant({1, 2}) }")
    with pytest.raises(Unsupported, match="XLA cannot convert the module"):
        module_to_bytes(module, "pb")


def test_a_conversion_that_does_not_end_is_an_error_like_any_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "conversions.py"
    limits = f"import sys; sys.path.insert(0, {str(tmp_path)!r})"
    program.write_text(f"{limits}\nimport real as c\nc._LEAST_SECONDS = 0\nc.limit_time(b'')\nwhile True:\n    pass\n")
    (tmp_path / "real.py").write_text(Path(conversions.__file__).read_text())
    monkeypatch.setattr(conversions, "__file__", str(program))
    with pytest.raises(ParseError, match=r"'m' crashes XLA's own reader: it does not end"):
        xla.mlir_to_text(b"", "m")


def test_what_is_no_module_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = module_to_bytes(hlo_run.parse(SMALL), "pb")
    cases = {
        "empty.pb": (b"", 3, "is not an HloSnapshot, HloProto or HloModuleProto"),
        "cut.pb": (whole[:200], 3, "is not an HloSnapshot"),
        "text.pb": (SMALL.encode(), 2, "is HLO text, not binary proto"),
        "text.mlir": (SMALL.encode(), 2, "pass --input_format=hlo"),
        "proto.hlo": (whole, 2, "pass --input_format=pb"),
        "bytes.hlo": (b"ML\xefR\r rest", 2, "pass --input_format=stablehlo"),
        "mlir.hlo": (module_to_bytes(hlo_run.parse(SMALL), "stablehlo"), 2, "pass --input_format=stablehlo"),
        "bytes.mlir": (b"ML\xefR\r rest", 3, "bytes.mlir"),
        "latin.mlir": (b"module \xe9", 2, "is not a text file"),
        "field.pbtxt": (b'hlo_module {\n  name: "x"\n  nonsense: 3\n}', 3, "field.pbtxt:3:3: error: "),
        "enum.pbtxt": (_PROTO_SHAPE % b"element_type: 99999999999", 3, "cannot be read: Value out of range: 99999999999"),
        "id.pbtxt": (b"hlo_module { id: 99999999999999999999 }", 3, "id.pbtxt:1:18: error: "),
        "deep.pbtxt": (_PROTO_SHAPE % (b"tuple_shapes {" * 3000 + b"}" * 3000), 3, "messages are nested too deeply"),
        "only.pbtxt": (b'name: "x"', 3, "does not contain a module"),
        "op.mlir": (b"func.func @main(%a: tensor<f32>) {\n  stablehlo.nonsense %a : tensor<f32>\n}", 3, "op.mlir:2:3: error: "),
        "main.mlir": (b"func.func @other() { return }", 3, "main"),
        "module.riegeli": (b"", 2, "riegeli files are not supported"),
    }
    for name, (data, code, message) in cases.items():
        file = tmp_path / name
        file.write_bytes(data)
        assert run([str(file)]) == code, name
        assert message in capsys.readouterr().err, name


def test_output_flags_that_nothing_obeys(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "small.hlo"
    file.write_text(SMALL)
    for flags in (["--output_format=pb"], ["--output_format=pb", "--stage=ptx"], ["--output_file=x"], ["--output_format=xml"]):
        assert run([*flags, str(file)]) == 2
    assert run(["--stage=hlo-input", f"--output_file={tmp_path}/no/folder", str(file)]) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_without_the_extra_the_hint_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def find_nothing(name: str, package: str | None = None) -> None:
        del name, package

    monkeypatch.setattr("importlib.util.find_spec", find_nothing)
    for name in ("m.pb", "m.pbtxt", "m.mlir", "m.mhlo"):
        file = tmp_path / name
        file.write_text("x")
        with pytest.raises(UsageError, match="not installed") as caught:
            read_module(str(file))
        assert caught.value.hint == "pip install 'hlo-run[xla]'"
    with pytest.raises(UsageError, match="not installed"):
        module_to_bytes(hlo_run.parse(SMALL), "pb")
    with pytest.raises(HloRunError, match="jax, which is not installed"):
        hlo_run.from_jax(abs, 1.0)


def test_an_mlir_module_keeps_its_numbers_of_devices(tmp_path: Path) -> None:
    file = tmp_path / "m.mlir"
    body = "{\n  func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> {\n    return %a : tensor<4xf32>\n  }\n}\n"
    file.write_text("module @m attributes {mhlo.num_partitions = 2 : i32, mhlo.num_replicas = 1 : i32} " + body)
    assert hlo_run.parse(read_module(str(file)).text).attrs["num_partitions"] == 2
    file.write_text("module @m attributes {mhlo.num_partitions = 1 : i32} " + body)
    assert "num_partitions" not in hlo_run.parse(read_module(str(file)).text).attrs
