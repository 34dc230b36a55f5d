"""The flags of dumps: what `--xla_dump_to` writes, and in which formats."""

from __future__ import annotations

from hlo_run.options.flag import FlagRecord, flag, flag_record


@flag_record
class DumpOptions(FlagRecord):
    """The flags of dumps, XLA's but for `dump_kernel_rows`."""

    xla_dump_to: str = flag("", "Write dumps to this directory. -: print them to stdout.", "DIR")
    xla_dump_hlo_as_text: bool = flag(
        False, "Dump HLO as text. It is the default if no other format is chosen. Without --xla_dump_to, print to stdout."
    )
    xla_dump_hlo_as_proto: bool = flag(False, "Dump HLO as HloProto (.hlo.pb).")
    xla_dump_hlo_as_url: bool = flag(
        False, "Write NAME.url where XLA does. Released XLA has no renderer that uploads drawings, and its files say so."
    )
    xla_dump_hlo_snapshots: bool = flag(
        False, "Write every execution as HloSnapshot: the module that ran, arguments and result (.hlo_snapshot.pb)."
    )
    xla_dump_hlo_unoptimized_snapshots: bool = flag(
        False,
        "Write every execution as HloUnoptimizedSnapshot: the module as read and its arguments, and dump nothing else. .pb: a "
        "message, with --xla_dump_hlo_as_proto XLA's stream for large arguments; with --xla_dump_hlo_as_text .txt.",
    )
    xla_dump_compress_protos: bool = flag(False, "Compress dumped HloProtos with gzip (.hlo.pb.gz).")
    xla_dump_hlo_as_dot: bool = flag(False, "Dump HLO as graphs in DOT.")
    xla_dump_hlo_as_html: bool = flag(False, "Dump HLO as pages that draw its graph.")
    xla_dump_fusion_visualization: bool = flag(
        False,
        "Write COMPUTATION.module_NNNN.MODULE._fusion.pyz, which Python shows: the steps of fusion, and the instructions around.",
    )
    xla_dump_hlo_pass_re: str = flag(
        "", "Dump the HLO before and after passes whose name matches. .*: dump it after every change.", "RE"
    )
    xla_dump_hlo_pipeline_re: str = flag("", "Dump the HLO between passes only in pipelines whose name matches.", "RE")
    xla_dump_hlo_module_re: str = flag("", "Dump only modules whose name matches.", "RE")
    xla_dump_emitter_re: str = flag(
        "",
        "Dump the IR of kernels before every row if this matches mlir-fusion, LLVM IR if it matches llvm, PTX if it matches ptx.",
        "RE",
    )
    dump_kernel_rows: bool = flag(
        False, "With --xla_dump_to: also write NAME.NNN.after_ROW.mlir, the kernel after each row that changed it.", acts="dump"
    )
    xla_dump_latency_hiding_schedule: bool = flag(
        False,
        "Write MODULE.schedule.txt (.pb without texts): the module before the latency-hiding scheduler, and when each "
        "instruction runs by its estimate, with the memory in use.",
    )
    xla_gpu_experimental_dump_fdo_profiles: bool = flag(
        False, "Write NAME.fdo_profile beside every dump of a module: the module's profile, which is empty here."
    )
    xla_gpu_experimental_aot_compiled_thunks: bool = flag(
        True,
        "false: dump no gpu_target_config.pbtxt, thunk_metadata and thunk_sequence_after_thunk_passes, as XLA does, which then "
        "makes thunks only when it loads the executable.",
    )
    xla_dump_max_hlo_modules: int = flag(-1, "Dump at most N modules (-1: all).", "N")
    xla_dump_module_metadata: bool = flag(False, "Dump the passes that ran on a module, with their times.")
    xla_dump_include_timestamp: bool = flag(False, "Begin the names of HLO dumps with the time in microseconds.")
    xla_dump_hlo_to_subfolder: bool = flag(False, "Write dumps to DIR/MODULE/HOST_PROCESS.")
    xla_dump_full_hlo_config: bool = flag(True, "Dump the configuration of the module (config.pbtxt).")
    xla_dump_buffer_assignment_analysis: bool = flag(True, "Dump the values of buffers and their live ranges.")
    xla_dump_enable_mlir_pretty_form: bool = flag(True, "Dump kernel IR in its short form. false: in MLIR's generic form.")
    xla_enable_dumping: bool = flag(True, "false: dump nothing, whatever other flags say.")
    xla_dump_large_constants: bool = flag(
        False, "Print all elements of constants. false: elide constants of more than 10 elements."
    )
    xla_dump_disable_metadata: bool = flag(False, "Omit metadata from HLO text.")
    xla_hlo_print_inline_stack_frames: bool = flag(
        False, "Print file, line and column of an instruction's stack frame in its metadata, not the number of the frame."
    )
    xla_dump_hlo_as_long_text: bool = flag(True, "Print HLO with operand shapes, computation signatures and % before names.")
    xla_dump_compact_gte: bool = flag(
        True, "Print %t#0 for element 0 of the tuple %t. false: print a get-tuple-element for each element."
    )

    @property
    def dumps_to(self) -> str:
        """The directory of dumps, `-` for stdout, or "" for none."""
        if not self.xla_enable_dumping:
            return ""
        formats = (
            self.xla_dump_hlo_as_text,
            self.xla_dump_hlo_as_proto,
            self.xla_dump_hlo_as_dot,
            self.xla_dump_hlo_as_html,
            self.xla_dump_hlo_snapshots,
            self.xla_dump_hlo_unoptimized_snapshots,
        )
        return self.xla_dump_to or ("-" if any(formats) else "")

    @property
    def dumps_snapshots(self) -> bool:
        """True if executions are dumped."""
        return self.xla_enable_dumping and (self.xla_dump_hlo_snapshots or self.xla_dump_hlo_unoptimized_snapshots)

    @property
    def dumps_text(self) -> bool:
        """True if HLO is dumped as text: the default format."""
        others = (
            self.xla_dump_hlo_as_proto,
            self.xla_dump_hlo_as_dot,
            self.xla_dump_hlo_as_html,
            self.xla_dump_hlo_as_url,
            self.xla_dump_hlo_snapshots,
            self.xla_dump_hlo_unoptimized_snapshots,
        )
        return self.xla_dump_hlo_as_text or not any(others)
