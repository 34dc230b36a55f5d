"""The files that --xla_dump_to writes with each flag of dumps. The names are those of released XLA."""

from __future__ import annotations

import json
import re
import runpy
import sys
from pathlib import Path

import pytest

from hlo_run.cli import run
from hlo_run.target import from_text_proto, preset

MODULE = """HloModule small
ENTRY e { a = f32[64] parameter(0)
  b = f32[64] exponential(a)
  ROOT c = f32[64] add(b, a) }
"""
# Five kernels in a row, which a command buffer records.
CHAIN = """HloModule chain
less { x = f32[] parameter(0)
  y = f32[] parameter(1)
  ROOT l = pred[] compare(x, y), direction=LT }
ENTRY e { a = f32[64,64] parameter(0)
  b = f32[64,64] sort(a), dimensions={0}, to_apply=less
  c = f32[64,64] sort(b), dimensions={1}, to_apply=less
  d = f32[64,64] sort(c), dimensions={0}, to_apply=less
  g = f32[64,64] sort(d), dimensions={1}, to_apply=less
  ROOT h = f32[64,64] sort(g), dimensions={0}, to_apply=less }
"""
# A library's call, elements of 4 bits and a reduction of two arrays.
VARIED = """HloModule small
pick { a = f32[] parameter(0)
  i = s32[] parameter(1)
  b = f32[] parameter(2)
  j = s32[] parameter(3)
  l = pred[] compare(a, b), direction=LT
  v = f32[] select(l, b, a)
  n = s32[] select(l, j, i)
  ROOT r = (f32[], s32[]) tuple(v, n) }
ENTRY e { x = f32[1,4,4,3] parameter(0)
  w = f32[3,3,3,8] parameter(1)
  q = s4[8,8] parameter(2)
  n = s32[1,4,4,8] parameter(3)
  c = f32[1,4,4,8] convolution(x, w), window={size=3x3 pad=1_1x1_1}, dim_labels=b01f_01io->b01f
  lowest = f32[] constant(-inf)
  none = s32[] constant(0)
  t = s4[8,8] add(q, q)
  f = f32[8,8] convert(t)
  m = (f32[1,4,8], s32[1,4,8]) reduce(c, n, lowest, none), dimensions={2}, to_apply=pick
  ROOT r = (f32[8,8], (f32[1,4,8], s32[1,4,8])) tuple(f, m) }
"""
DIVIDED = """HloModule small, num_partitions=2
add { x = f32[] parameter(0)
  y = f32[] parameter(1)
  ROOT r = f32[] add(x, y) }
ENTRY e { p = f32[9] parameter(0)
  ROOT r = f32[9] all-reduce(p), channel_id=3, replica_groups={{0,1}}, use_global_device_ids=true, to_apply=add }
"""
AFTER = "sm_9.0a_gpu_after_optimizations"
BUFFERS = {f"{AFTER}-{kind}.txt" for kind in ("buffer-assignment", "memory-usage-report")}
ANALYSIS = {f"{AFTER}-{kind}.txt" for kind in ("buffer-assignment-values", "live-range")}
LLVM_IR = {"0.ir-no-opt.ll", "1.ir-with-opt.ll"}
LOG = {"loop_add_fusion.mlir-passes.log"}
SETTINGS = {"autotune_results.pbtxt", "config.pbtxt", "debug_options", "gpu_target_config.pbtxt"}
HLO = {"before_optimizations", "after_spmd_partitioner", "before_config_assignment", AFTER}
THUNKS = {"thunk_sequence.txt"}
PROTO = {"thunk_metadata.pb"}
DEFAULT = SETTINGS | BUFFERS | ANALYSIS | {f"{name}.txt" for name in HLO} | THUNKS | {"thunk_metadata.txt"}


@pytest.fixture(autouse=True)
def no_flags_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XLA_FLAGS", raising=False)


def _dump(tmp_path: Path, *flags: str, text: str = MODULE) -> Path:
    """Compile a module and return the folder of its dumps."""
    file, folder = tmp_path / "small.hlo", tmp_path / "d"
    file.write_text(text)
    assert run([f"--xla_dump_to={folder}", f"--output={tmp_path}/m.hlox", *flags, str(file)]) == 0
    return folder


def _names(folder: Path) -> set[str]:
    return {path.name.removeprefix("module_0000.small.") for path in folder.iterdir()} if folder.exists() else set()


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("", DEFAULT),
        ("--xla_dump_hlo_as_text", DEFAULT),
        ("--xla_dump_full_hlo_config=false", DEFAULT - {"config.pbtxt"}),
        ("--xla_dump_buffer_assignment_analysis=false", DEFAULT - ANALYSIS),
        ("--xla_dump_emitter_re=nosuch", DEFAULT),
        ("--xla_dump_emitter_re=llvm", DEFAULT | LLVM_IR),
        ("--xla_dump_emitter_re=^ptx$", DEFAULT | {"1.ptx"}),
        ("--xla_dump_emitter_re=mlir", DEFAULT | LOG),
        ("--xla_dump_emitter_re=.*", DEFAULT | LLVM_IR | {"1.ptx"} | LOG),
        ("--xla_dump_hlo_module_re=nosuch", {"config.pbtxt"}),
        ("--xla_dump_hlo_as_dot", SETTINGS | THUNKS | PROTO | {f"{name}.dot" for name in HLO}),
        ("--xla_dump_hlo_as_html", SETTINGS | THUNKS | PROTO | {f"{n}.html" for n in (*HLO, f"{AFTER}.top_level")}),
        ("--xla_gpu_experimental_dump_fdo_profiles", DEFAULT | {f"{name}.fdo_profile" for name in HLO}),
        ("--xla_gpu_experimental_aot_compiled_thunks=false", DEFAULT - {"thunk_metadata.txt", "gpu_target_config.pbtxt"}),
        ("--xla_dump_hlo_as_dot --xla_dump_hlo_as_text", DEFAULT | {f"{name}.dot" for name in HLO}),
        ("--xla_enable_dumping=false", set[str]()),
        ("--xla_dump_max_hlo_modules=0", DEFAULT),
        ("--xla_dump_max_hlo_modules=1", DEFAULT),
        ("--xla_dump_hlo_pass_re=nosuch", DEFAULT),
        (
            "--xla_dump_hlo_pass_re=.* --xla_dump_hlo_pipeline_re=^async-wrapper$",
            DEFAULT | {"0000.async-wrapper.after_pipeline-start.before_pipeline-end.txt", "priority_fusion_dump.txt"}
            | {f"000{n}.copy-insertion.after_{step}.txt" for n, step in (
                (1, "adding_copies_to_resolve_interference"),
                (2, "removing_unnecessary_copies"),
                (3, "adding_special-case_copies"),
            )},
        ),
    ],
)  # fmt: skip
def test_files(flags: str, expected: set[str], tmp_path: Path) -> None:
    assert _names(_dump(tmp_path, *flags.split())) == expected


def test_protos(tmp_path: Path) -> None:
    pytest.importorskip("jaxlib")
    found = _names(_dump(tmp_path, "--xla_dump_hlo_as_proto", "--xla_dump_compress_protos"))
    own = {f"{AFTER}-memory-usage-report.pb.gz"} | PROTO
    assert found == SETTINGS | THUNKS | own | {f"{name}.hlo.pb.gz" for name in HLO}


def test_protos_about_buffers_and_thunks(tmp_path: Path) -> None:
    pytest.importorskip("jaxlib")
    folder = _dump(tmp_path, "--xla_dump_hlo_as_proto")
    # The bytes that XLA writes, up to the text of the report.
    metadata = (folder / "module_0000.small.thunk_metadata.pb").read_bytes()
    assert metadata == b"\x0a$\x0a\x13\x0a\x0floop_add_fusion\x18\x01\x12\x0dkCustomKernel"
    report = (folder / f"module_0000.small.{AFTER}-memory-usage-report.pb").read_bytes()
    assert b"\x08\x80\x04\x10\x00\x1a" in report, "512 bytes in memory space 0"
    assert b"\x10\x80\x02\x18\x80\x02!" + b"\x00" * 6 + b"\xe0?*\x0floop_add_fusion2" in report, "half of them are the result"


def test_names_with_the_time(tmp_path: Path) -> None:
    found = {
        re.sub(r"^\d{16}\.module_0000\.small", "TIME", name) for name in _names(_dump(tmp_path, "--xla_dump_include_timestamp"))
    }
    timed = {f"{name}.txt" for name in HLO} | BUFFERS | ANALYSIS | {"thunk_metadata.txt"}
    assert found == (DEFAULT - timed) | {f"TIME.{name}" for name in timed}


def test_a_folder_per_module_and_process(tmp_path: Path) -> None:
    folder = _dump(tmp_path, "--xla_dump_hlo_to_subfolder")
    (inside,) = (folder / "small").iterdir()
    assert re.fullmatch(r".+_\d+", inside.name)
    assert _names(inside) == DEFAULT


def test_only_so_many_modules(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / f"{name}.hlo").write_text(MODULE.replace("small", name))
    folder = tmp_path / "d"
    files = [str(tmp_path / "one.hlo"), str(tmp_path / "two.hlo")]
    assert run(["--platform=Host", f"--xla_dump_to={folder}", "--xla_dump_max_hlo_modules=1", *files]) == 0
    assert {path.name.split(".")[1] for path in folder.iterdir()} == {"one"}


def test_pass_metadata(tmp_path: Path) -> None:
    folder = _dump(tmp_path, "--xla_dump_module_metadata", "--xla_dump_hlo_pass_re=^priority-fusion$")
    text = (folder / "module_0000.metadata.textproto").read_text()
    block = next(block for block in text.split("pass_metadata {") if 'pass_name: "priority-fusion"' in block)
    assert 'pipeline_name: "fusion"' in block
    assert "module_changed: true" in block
    assert re.search(r'dump_filenames: ".*fusion\.after_priority-fusion\.before_cse\.txt"', block)


def test_passes_that_change_nothing_are_dumped_unless_all_are(tmp_path: Path) -> None:
    """Names recorded from released XLA."""
    names = [name for name in sorted(_names(_dump(tmp_path, "--xla_dump_hlo_pass_re=scan"))) if re.match(r"\d{4}\.", name)]
    assert names == [
        "0000.optimization.after_dynamic-dimension-simplifier.before_associative-scan-rewriter.txt",
        "0001.optimization.after_associative-scan-rewriter.before_reduce-window-rewriter.txt",
        "0002.optimization.after_reduce-window-resizer.before_scan_expander.txt",
        "0003.optimization.after_scan_expander.before_call-inliner.txt",
        "0004.hlo_normalization.after_deviceless-estimate-cub-sort-scratch-size.before_estimate-cub-scan-scratch-size.txt",
        "0005.hlo_normalization.after_estimate-cub-scan-scratch-size.before_pipeline-end.txt",
    ]


def _changes(folder: Path) -> list[str]:
    """Return the dumps after passes that changed something, without their numbers."""
    return [name[5:] for name in sorted(_names(folder)) if re.match(r"\d{4}\.", name) and "pipeline-start" not in name]


def test_changes_that_xla_reports(tmp_path: Path) -> None:
    """Names recorded from released XLA."""
    passes = "layout_normalization|reduction-layout-normalizer|sub-byte-size-setter"
    names = _changes(_dump(tmp_path, "--xla_dump_hlo_pass_re=.*", text=VARIED))
    assert [name for name in names if re.search(rf"after_(?:{passes})\.", name)] == [
        "optimization.after_sub-byte-size-setter.before_rng-expander.txt",
        "layout_assignment.after_sub-byte-size-setter.before_optimize_input_output_buffer_alias.txt",
        "layout_normalization.after_layout_normalization.before_algsimp.txt",
        "hlo_normalization.after_reduction-layout-normalizer.before_algsimp.txt",
    ]


def test_the_partitioner_runs_a_pipeline(tmp_path: Path) -> None:
    """Names recorded from released XLA."""
    folder = _dump(tmp_path, "--xla_dump_hlo_pass_re=.*", text=DIVIDED)
    assert _changes(folder)[:3] == [
        "spmd-cleanup.after_dce.before_tuple-simplifier.txt",
        "spmd-partitioner.after_spmd-partitioning.before_nullary-function-wrap-inliner.txt",
        "layout_assignment.after_layout-assignment.before_sub-byte-size-setter.txt",
    ]
    before, after = (next(folder.glob(f"*.spmd-cleanup.{place}.txt")).read_text() for place in ("after_p*", "after_dce*"))
    config = (folder / "module_0000.small.config.pbtxt").read_text()
    assert "num_partitions: 2\nuse_spmd_partitioning: true\n" in config
    assert re.search(r"(?s)computation_count: 2\n.* replica_device_ids: 0\n.* replica_device_ids: 1\n", config)
    assert "%partition-id" in before
    assert "%partition-id" not in after


def test_texts_about_flags(tmp_path: Path) -> None:
    folder = _dump(
        tmp_path, "--xla_gpu_autotune_level=0", "--xla_disable_hlo_passes=cse,algsimp", "--xla_gpu_ftz", "--iterations=1"
    )
    assert (folder / "module_0000.small.debug_options").read_text() == (
        'xla_gpu_autotune_level: 0\nxla_gpu_ftz: true\nxla_disable_hlo_passes: "algsimp"\nxla_disable_hlo_passes: "cse"\n'
        f'xla_dump_to: "{folder}"\n'
    )
    config = (folder / "module_0000.small.config.pbtxt").read_text()
    assert "\n  xla_gpu_autotune_level: 0\n" in config
    assert "\n  xla_gpu_ftz: true\n" in config
    assert config.count("\n  xla_gpu_enable_command_buffer: ") == 8
    assert "replica_count: 1\nnum_partitions: 1\n" in config
    target = (folder / "module_0000.small.gpu_target_config.pbtxt").read_text()
    assert from_text_proto(target, "x").core_count == preset("h100").core_count


def test_command_buffers_are_on(tmp_path: Path) -> None:
    folder = _dump(tmp_path, "--xla_gpu_enable_cub_radix_sort=false", text=CHAIN)
    text = (folder / "module_0000.chain.thunk_sequence_after_thunk_passes.txt").read_text()
    assert "kCommandBuffer" in text
    off = tmp_path / "off"
    off.mkdir()
    flags = ("--xla_gpu_enable_cub_radix_sort=false", "--xla_gpu_enable_command_buffer=")
    assert not list(_dump(off, *flags, text=CHAIN).glob("*after_thunk_passes*"))


def test_files_without_hlo_passes(tmp_path: Path) -> None:
    text = MODULE.replace("ENTRY e {", "fused { a = f32[64] parameter(0) ROOT n = f32[64] negate(a) }\nENTRY e {").replace(
        "exponential(a)", "fusion(a), kind=kLoop, calls=fused"
    )
    names = _names(_dump(tmp_path, "--xla_disable_all_hlo_passes", text=text.replace("add(b, a)", "copy(b)")))
    assert "after_spmd_partitioner.txt" in names


def test_a_module_with_a_schedule_has_no_settings(tmp_path: Path) -> None:
    found = _names(_dump(tmp_path, text=MODULE.replace("HloModule small", "HloModule small, is_scheduled=true")))
    assert not {"after_spmd_partitioner.txt", "autotune_results.pbtxt", "config.pbtxt"} & found
    assert "debug_options" in found


def test_fusion_visualization(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Labels recorded from released XLA, without those about Triton."""
    text = """HloModule shown
less { x = f32[] parameter(0)
  y = f32[] parameter(1)
  ROOT l = pred[] compare(x, y), direction=LT }
ENTRY e { a = f32[64,64] parameter(0)
  t = f32[64,64] transpose(a), dimensions={1,0}
  b = f32[64,64] exponential(a)
  c = f32[64,64] add(b, t)
  ROOT s = f32[64,64] sort(c), dimensions={1}, to_apply=less }
"""
    folder = _dump(tmp_path, "--xla_dump_fusion_visualization", text=text)
    programs = list(folder.glob("*_fusion.pyz"))
    assert [program.name for program in programs] == ["e.module_0000.shown._fusion.pyz"]
    monkeypatch.setattr(sys, "argv", [str(programs[0]), str(tmp_path / "page.html")])
    runpy.run_path(str(programs[0]), run_name="__main__")
    frames = json.loads(re.findall(r"^const frames = (.*);$", (tmp_path / "page.html").read_text(), re.MULTILINE)[0])
    shown = [frame for frame in frames if "inside PriorityFusion" in frame[0]]
    assert [label for label, *_ in frames if label not in {frame[0] for frame in shown}] == [
        "Cannot fuse producer |c.1| with consumer |s.1|: the consumer is not fusible",
        "Ineligible |c.1|: the consumer is not fusible",
        "Cannot fuse producer |fusion| with consumer |s.1|: the consumer is not fusible",
        "Ineligible |fusion|: the consumer is not fusible",
        "Cannot fuse producer |fusion| with consumer |s.1|: the consumer is not fusible",
        "Ineligible |fusion|: the consumer is not fusible",
    ]
    frames = shown
    assert [label for label, *_ in frames] == [
        "About to fuse |b.1| into |c.1| inside PriorityFusion",
        "Fused |b.1| into |fusion| inside PriorityFusion",
        "About to fuse |t.1| into |fusion| inside PriorityFusion",
        "Fused |t.1| into |fusion| inside PriorityFusion",
    ]
    assert frames[0][1:3] == ["c.1", "b.1"]
    assert {name for name, *_ in frames[0][3]} == {"a", "t.1", "b.1", "c.1", "s.1"}
    assert frames[3][3][-1][:2] == ["fusion", "f32[64,64]{1,0} fusion kInput of transpose, exponential, add"]


def test_the_folder_of_the_dumps_need_not_be_text(tmp_path: Path) -> None:
    (tmp_path / "small.hlo").write_text(MODULE)
    folder = tmp_path / "\udcff"
    assert run([f"--xla_dump_to={folder}", "--stage=hlo", str(tmp_path / "small.hlo")]) == 0
    assert b"\xff" in next(folder.glob("*.debug_options")).read_bytes()


def test_disabled_passes_stay_in_their_pipelines(tmp_path: Path) -> None:
    """Names recorded from released XLA."""
    found = _names(
        _dump(tmp_path, "--xla_dump_hlo_pass_re=reduction-dimension-grouper|^algsimp$", "--xla_disable_hlo_passes=algsimp")
    )
    names = [name[5:-4] for name in sorted(found) if re.match(r"\d{4}\.", name)]
    assert "hlo_normalization.after_reduction-layout-normalizer.before_algsimp" in names
    assert not any("after_algsimp" in name or "before_reduction-dimension-grouper" in name for name in names)


def test_bodies_of_collectives_that_became_synchronous_stay_until_rematerialization(tmp_path: Path) -> None:
    """Names recorded from released XLA."""
    names = _changes(_dump(tmp_path, "--xla_dump_hlo_pass_re=.*", "--xla_gpu_experimental_use_collective_kernels=", text=DIVIDED))
    assert [name for name in names if "remat" in name][-2:] == [
        "remat-pipeline.after_rematerialization.before_stream-attribute-annotator.txt",
        "post-scheduling-passes.after_remat-pipeline.before_fusion-wrapper.txt",
    ]
