"""MLIR (jaxlib's) parses the printed IR: the lowered stages in custom form, every stage in generic form."""

from __future__ import annotations

from pathlib import Path

import pytest
from gpu_programs import DATA, EXAMPLES
from released_xla import as_installed_mlir_reads
from text_sections import Section, read_sections

from hlo_run.dialects.parse import parse_gpu_module, parse_module
from hlo_run.dialects.printer import print_module

ir = pytest.importorskip("jaxlib.mlir.ir", reason="jaxlib is not installed (extra 'xla')")
HERE = Path(__file__).parent


def upstream_reads(text: str) -> None:
    """Parse and verify a text with MLIR. Raises if either fails."""
    registered = pytest.importorskip("jaxlib.mlir._mlir_libs._jax_mlir_ext", reason="jaxlib without dialect registration")
    registry = ir.DialectRegistry()
    registered.register_dialects(registry)
    with ir.Context() as context:
        context.append_dialect_registry(registry)
        context.load_all_available_dialects()
        context.allow_unregistered_dialects = True
        ir.Module.parse(as_installed_mlir_reads(text))


def printed_sections(name: str) -> list[Section]:
    return [section for section in read_sections(HERE / name) if section.error is None]


@pytest.mark.parametrize("section", printed_sections("upstream.mlir"), ids=lambda s: str(s.line))
def test_upstream_ops_in_their_own_syntax(section: Section) -> None:
    upstream_reads(print_module(parse_module(section.text)))


@pytest.mark.parametrize(
    "section",
    [s for name in ("upstream.mlir", "xla_gpu.mlir", "gpu.mlir") for s in printed_sections(name)],
    ids=lambda s: f"{s.path.stem}-{s.line}",
)
def test_everything_in_generic_form(section: Section) -> None:
    upstream_reads(print_module(parse_module(section.text), generic=True))


@pytest.mark.parametrize("file", [*sorted(DATA.glob("*.mlir")), *EXAMPLES.glob("*.mlir")], ids=lambda file: file.stem)
def test_modules_of_the_gpu_dialect(file: Path) -> None:
    module = parse_gpu_module(file.read_text()).module
    upstream_reads(print_module(module))
    upstream_reads(print_module(module, generic=True))


def test_apply_indexing_after_lower_tensors() -> None:
    text = """
    func.func @f(%p: !llvm.ptr, %i: index) -> index {
      %0 = xla_gpu.apply_indexing #xla_gpu.indexing_map<"(d0) -> (d0 * 2), domain: d0 in [0, 3]">(%i)
      return %0 : index
    }
    """
    upstream_reads(print_module(parse_module(text)))


def test_properties_of_the_llvm_dialect_in_two_spellings() -> None:
    """XLA of jaxlib 0.12.0.1 dumps the first, of 0.10.2 the second."""
    text = """
    func.func @f(%p: !llvm.ptr, %x: f32) {
      %0 = llvm.load %p invariant ALIGNED : !llvm.ptr -> vector<2xf32>
      llvm.store %0, %p ALIGNED : vector<2xf32>, !llvm.ptr
      %1 = llvm.fadd %x, %x FLAGS : f32
      %2 = llvm.atomicrmw MODE fadd %p, %1 monotonic : !llvm.ptr, f32
      return
    }"""
    spellings = (
        {"ALIGNED": "<alignment = 4>", "FLAGS": "fastmath<nsz>", "MODE ": "ignore_denormal_mode "},
        {"ALIGNED": "{alignment = 4 : i64}", "FLAGS": "{fastmathFlags = #llvm.fastmath<nsz>}", "MODE ": ""},
    )
    printed: list[str] = []
    for words in spellings:
        made = text
        for name, word in words.items():
            made = made.replace(name, word)
        printed.append(print_module(parse_module(made)))
    assert printed[0] == printed[1]
    assert printed[0].count("alignment = 4") == 2
    assert "nsz" in printed[0]


def test_a_switch_whose_default_has_no_yield() -> None:
    text = """
    func.func @f(%i: index, %b: i1, %p: !llvm.ptr, %x: f32) {
      scf.index_switch %i
      case 1 {
        scf.yield
      }
      default {
        scf.if %b {
          llvm.store %x, %p : f32, !llvm.ptr
        }YIELD
      }
      return
    }"""
    texts = [print_module(parse_module(text.replace("YIELD", word))) for word in ("", "\n scf.yield")]
    assert texts[0] == texts[1]
