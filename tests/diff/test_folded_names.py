"""Names in texts about memory, thunks and kernels: other names are the same, other contents are not."""

from __future__ import annotations

import pytest

from hlo_run.diff.texts import diff_texts

TABLE = """target h100_sxm: sm_90, 132 SMs
fusion          kind    heroes                  emitter    launch          shared
{0:14}  kInput  {1:>9}, {2:11}  reduction  grid 38x1x1     0
wrapped         kLoop   k                       loop       grid 1x1x1      0
"""
BUFFERS = """allocation 0: size 48000, parameter 0, shape |f32[300,40]| at ShapeIndex {{}}:
 value: <6 {0} @0> (size=48000,offset=0): f32[300,40]{{1,0}}
 value: <7 {1}{{0}} (phi) @0> (size=48000,offset=0): f32[300,40]{{1,0}}
 value: <8 {2} @0> (size=8,offset=0): f32[2]{{0}}
"""
VALUES = """<6 {0} @0>
 positions:
  {0}
  {1} {{1}}
 uses:
  {2}, operand 0 {{1}}
 from instruction: %{0} = f32[4]{{0}} add(%{1}, %{2}), metadata={{scheduling_name="{0}"}}
"""
# Values of equal size are in the order of their names.
LIVE = """  InstructionSequence:
    0:{0}
    1:{1}
    2:{2}
  BufferLiveRange:
    {0}{{0}}:8-9
  Live ranges at 18 (peak):
{3}
  Stack trace breakdown for peak usage: 8 bytes
      ├── {0}{{1}} (50.0%, total: 4 bytes, current: 4 bytes, remaining: 4 bytes)
      └── {1} (50.0%, total: 4 bytes, current: 4 bytes, remaining: 0 bytes)
"""
THUNKS = """001: kCopy         [source       | next=002 (1)] kCopy
002: kCustomKernel [prev=001 (1) | sink        ] {0} grid: [32, 1, 1] threads: [128, 1, 1]  shared_memory: 0 bytes
003: kCustomKernel [prev=001 (1) | sink        ] {1} grid: [32, 1, 1] threads: [128, 1, 1]  shared_memory: 0 bytes
"""
PTX = """// kernel: {0}
.visible .entry {0}(
\t.param .u64 .ptr .align 256 {0}_param_0
)
{{
\tld.param.b64 %rd1, [{0}_param_0];
\tadd.s64 %rd6, %rd1, %rd5;
}}
// kernel: {1}
.visible .entry {1}(
\t.param .u64 .ptr .align 256 {1}_param_0
)
"""
LLVM = """; ModuleID = '{0}'
source_filename = "{0}"
define ptx_kernel void @{0}(ptr %0) {{
  br i1 %12, label %{1}.exit4, label %13

{1}.exit4:         ; preds = %13, %2
  %3 = call float @__nv_sinf(float %2)
!3 = distinct !{{!3, !4, !"{1}: argument 0"}}
"""
IR = """module {{
  func.func @{0}(%arg0: tensor<i32>) -> tensor<i8> attributes {{xla.entry}} {{
    %pure_call = xla_gpu.pure_call @{1}(%arg0) : (tensor<i32>) -> i8
    llvm.func @__nv_sinf(f32) -> f32
  }}
  func.func private @{1}(%arg0: tensor<i32>) -> i8 {{
"""
METADATA = 'thunk_metadata {{\n  profile_annotation: "{0}"\n  profile_annotation: "{1}"\n}}\n'
TEXTS = {
    "fusion-analysis": TABLE,
    "buffer-assignment": BUFFERS,
    "buffer-assignment-values": VALUES,
    "thunks": THUNKS,
    "thunk-metadata": METADATA,
    "ptx": PTX,
    "llvm": LLVM,
    "emit-kernels": IR,
}


@pytest.mark.parametrize("stage", TEXTS)
def test_other_names_are_the_same(stage: str) -> None:
    # A longer one, and one that was another's.
    before, after = (TEXTS[stage].format(*names) for names in (("fusion_1", "c_1", "x"), ("c_1", "longer_1", "x2")))
    diff = diff_texts(stage, before, after)
    assert not diff.differs, diff.rows
    assert diff.summary.startswith("same; ")
    assert diff_texts(f"goldens/module/{stage}.txt", before, after).summary == diff.summary


@pytest.mark.parametrize("stage", TEXTS)
def test_names_that_do_not_correspond_differ(stage: str) -> None:
    """Two names become one."""
    before, after = (TEXTS[stage].format(*names) for names in (("a1", "b1", "c1"), ("z1", "z1", "z1")))
    assert diff_texts(stage, before, after).differs


@pytest.mark.parametrize(
    ("stage", "change"),
    [
        ("fusion-analysis", ("kInput", "kLoop")),
        ("fusion-analysis", ("38x1x1", "39x1x1")),
        ("buffer-assignment", ("offset=0", "offset=8")),
        ("buffer-assignment-values", ("add(", "subtract(")),
        ("thunks", ("[32, 1, 1]", "[33, 1, 1]")),
        ("ptx", ("add.s64", "sub.s64")),
        ("ptx", ("%rd5", "%rd7")),
        ("llvm", ("__nv_sinf", "__nv_cosf")),
        ("emit-kernels", ("tensor<i8>", "tensor<i16>")),
    ],
)
def test_other_contents_differ(stage: str, change: tuple[str, str]) -> None:
    before = TEXTS[stage].format("k1", "k2", "k3")
    after = TEXTS[stage].format("k1", "k2", "k3").replace(*change)
    assert diff_texts(stage, before, after).differs


def test_only_the_lines_of_a_change_are_shown_beside_other_names() -> None:
    before, after = PTX.format("one", "two"), PTX.format("four", "five").replace("add.s64", "sub.s64")
    diff = diff_texts("ptx", before, after)
    assert diff.summary == "1 line removed, 1 added"
    # A kernel before the others, so that the numbers in their names move.
    shifted = PTX.format("k_0", "k_1").replace("add", "mul") + PTX.format("k_2", "k_3")
    assert diff_texts("ptx", PTX.format("k_0", "k_1"), shifted).summary == "0 lines removed, 12 added"


def test_live_ranges_of_equal_size_are_in_any_order() -> None:
    def entries(*names: str) -> str:
        return "\n".join(f"    {name}{{}}: 48 bytes (cumulative: {48 * (n + 1)} bytes)" for n, name in enumerate(sorted(names)))

    one, two = ("a", "b", "c"), ("z", "y", "x")
    before, after = (LIVE.format(*names, entries(*names)) for names in (one, two))
    assert not diff_texts("live-range", before, after).differs
    assert diff_texts("live-range", before, after.replace("48 bytes", "49 bytes")).differs


def test_the_fingerprint_does_not_count() -> None:
    text = "HloModule m, frontend_attributes={{{0}}}\n\nENTRY e {{\n  ROOT p = f32[4]{{0}} parameter(0)\n}}\n"
    one, two = (text.format(f'fingerprint_before_lhs="{number}"') for number in "12")
    assert diff_texts("hlo", one, two).summary == "same"
    more = text.format('a="1",fingerprint_before_lhs="3"')
    changed = diff_texts("hlo", one, more).module
    assert changed is not None
    assert [detail.after for detail in changed.changes[0].details] == ['{a="1"}']
    # A text that cannot be parsed is compared by lines.
    assert not diff_texts("hlo", one + "}", two + "}").differs
