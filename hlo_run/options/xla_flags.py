"""XLA's flags that act in single passes and in the tools that make machine code."""

from __future__ import annotations

from hlo_run.errors import UsageError
from hlo_run.options.collective_flags import CollectiveFlags
from hlo_run.options.flag import flag, flag_record

# The rows that call libraries which are not open source. XLA also leaves out the constant folding after the padding.
_LIBRARY_ROWS = (
    "conv-rewriter cudnn-fused-convolution-rewriter conv-padding-legalization cudnn_pad_for_convolutions cudnn_simplify_padding "
    "cublas-pad-for-gemms triangular-solve-rewriter"
).split()

_UNROLLING = "WHILE_LOOP_UNROLLING_"
_ORDERINGS = {"SERIALIZE": "schedule", "CONCURRENT": "dependencies", "LHS": "schedule", "CONCURRENT_REGIONS": "regions"}
_STRATEGIES = ("NO_UNROLL", "DOUBLE_BUFFER", "FULL_UNROLL", "AUTO_UNROLL", "MANUAL_UNROLL")


@flag_record
class XlaFlags(CollectiveFlags):
    """The flags of DebugOptions that change single passes. All have XLA's defaults."""

    xla_gpu_dot_merger_threshold_mb: int = flag(64, "dot-merger: leave products of more than N MiB alone.", "N")
    xla_gpu_gemm_rewrite_size_threshold: int = flag(
        100, "Emit kernels for matrix products with fewer than N elements in the operands' dimensions, instead of cuBLAS.", "N"
    )
    xla_gpu_enable_triton_gemm: bool = flag(
        True, "With --block_level_fusions: make fusions of matrix products. false: call cuBLAS."
    )
    xla_gpu_override_gemm_autotuner: str = flag(
        "",
        "config-assigner: the tile of products in block-level fusions: block_m:64,block_n:32,block_k:32,num_stages:1,num_warps:4",
        "TILE",
    )
    xla_gpu_gemm_autotuner_override_file: str = flag(
        "", "config-assigner: take the tile from the first config { .. } of this text proto.", "FILE"
    )
    xla_gpu_experimental_force_split_k: int = flag(
        0, "splitk-rewriter: divide each contracting dimension into N parts (0: by the cost model; 1: do not).", "N", least=0
    )
    xla_gpu_experimental_enable_subchannel_dequantisation_fusion: bool = flag(
        False, "triton-gemm-rewriter: let a product take multiplications of operands that it reads once."
    )
    xla_reduce_window_rewrite_base_length: int = flag(
        16, "reduce-window-rewriter: split running reductions into blocks of N elements (0: do not).", "N", least=0
    )
    xla_while_loop_all_reduce_dus_code_motion_max_size_bytes: int = flag(
        10240,
        "while-loop-all-reduce-code-motion: reduce what a loop writes slice by slice after it, if it is at most N bytes.",
        "N",
    )
    xla_recognize_reduction_optimization_level: int = flag(
        0,
        "recognize-reduce-window: 1 makes windows of sums of slices, 2 also dots of weighted sums, 3 also dots of sums of "
        "products. The pass runs if `--passes` names it.",
        "LEVEL",
    )
    xla_gpu_enable_cub_radix_sort: bool = flag(True, "false: sort in kernels, never by CUB.")
    xla_gpu_experimental_disable_binary_libraries: bool = flag(
        False, "Run no pass that calls cuDNN, pads for cuBLAS, or solves triangular systems by cuBLAS."
    )
    xla_gpu_enable_while_loop_double_buffering: bool = flag(
        False, "loop-double-buffer-transformer: let one iteration of a loop with a known trip count do the work of two."
    )
    xla_gpu_enable_while_loop_unrolling: str = flag(
        "WHILE_LOOP_UNROLLING_AUTO_UNROLL",
        "loop-double-buffer-transformer: WHILE_LOOP_UNROLLING_DOUBLE_BUFFER lets one iteration do the work of two, "
        "_FULL_UNROLL that of all. The other strategies do nothing at XLA's default effort.",
        "STRATEGY",
    )
    xla_gpu_force_conv_nchw: bool = flag(False, "layout-assignment: let features of convolutions be outside of the window.")
    xla_gpu_force_conv_nhwc: bool = flag(False, "layout-assignment: let features of convolutions be innermost.")
    xla_gpu_default_to_alg_dot_bf16_bf16_f32: bool = flag(
        False, "dot-algorithm-rewriter: compute f32 products without an algorithm or a precision from operands in bf16."
    )
    xla_gpu_ftz: bool = flag(False, "Flush denormal numbers of f32 to zero in kernels.")
    xla_gpu_deterministic_ops: bool = flag(
        False,
        "Make results the same in every run. Scatters combine equal indices by a sort or in a loop; on Host, float atomics keep "
        "the order of the blocks.",
    )
    xla_gpu_enable_scatter_determinism_expander: bool = flag(
        False, "Combine the updates of equal indices before a scatter, by a sort, so that its result is the same in every run."
    )
    xla_gpu_exclude_nondeterministic_ops: bool = flag(
        False, "Compile no scatter whose result depends on the order of its updates."
    )
    xla_gpu_disable_gpuasm_optimizations: bool = flag(False, "Run ptxas without optimisations.")
    xla_gpu_ptx_compiler_extra_flags: str = flag("", "Pass these flags to ptxas (comma-separated).", "FLAGS")
    xla_gpu_fail_ptx_compilation_on_register_spilling: bool = flag(
        False, "Stop with an error if ptxas spills registers of a kernel."
    )
    xla_gpu_enable_latency_hiding_scheduler: bool = flag(
        False,
        "Run the latency-hiding scheduler on all GPUs, not only on Hopper and Blackwell for collectives with known speeds.",
    )
    xla_gpu_enable_analytical_sol_latency_estimator: bool = flag(
        True, "Let the latency-hiding scheduler run on Hopper and Blackwell, with measured speeds of collectives and products."
    )
    xla_gpu_enable_approx_costly_collectives: bool = flag(
        False, "Count the latency of all-reduces of more than 30 MiB four times where there are no measured speeds."
    )
    xla_gpu_experimental_parallel_collective_overlap_limit: int = flag(
        1, "latency-hiding-scheduler: N collectives may be in flight.", "N", least=1
    )
    xla_gpu_experimental_parallel_async_compute_limit: int = flag(
        2, "latency-hiding-scheduler: N asynchronous computations may be in flight.", "N"
    )
    xla_gpu_enable_analytical_latency_estimator: bool = flag(
        False, "latency-hiding-scheduler: estimate times from the sizes of arrays alone, not from measured speeds."
    )
    xla_gpu_experimental_collective_start_as_early_as_possible: bool = flag(
        False, "latency-hiding-scheduler: if more than one collective may be in flight, start collectives as early as possible."
    )
    xla_gpu_analytical_latency_estimator_options: str = flag(
        "chunk_prep_us=-1,chunk_size_bytes=-1,gpus_per_node=-1,nccl_op_launch_us=-1,nic_speed_gbps=-1,rtt_us=-1",
        "latency-hiding-scheduler: figures of the network that replace the GPU's own. Times are in microseconds; values that "
        "are not positive count as not given.",
        "FIGURES",
    )
    xla_gpu_experimental_collective_perf_table_path: str = flag(
        "",
        "latency-hiding-scheduler: take the speeds of collectives from this DeviceHloInstructionProfiles text proto. With "
        "--xla_gpu_collect_cost_model_stats, write its times into backend_configs, too.",
        "FILE",
    )
    xla_gpu_experimental_matmul_perf_table_path: str = flag(
        "",
        "latency-hiding-scheduler: take the speeds of products from this DeviceHloInstructionProfiles text proto. With "
        "--xla_gpu_collect_cost_model_stats, write its times into backend_configs, too.",
        "FILE",
    )
    xla_gpu_pgle_profile_file_or_directory_path: str = flag(
        "",
        "latency-hiding-scheduler: take the times of instructions from this profile (.pbtxt or .pb), or from that in this folder "
        "which is called after the module's fingerprint_before_lhs.",
        "PATH",
    )
    xla_gpu_pgle_accuracy_checker: str = flag(
        "PGLE_STRICTNESS_LEVEL_WARN",
        "PGLE_STRICTNESS_LEVEL_ERROR: stop if the profile lacks an instruction. XLA logs them at .._WARN; hlo-run does not.",
        "LEVEL",
    )
    xla_gpu_memory_limit_slop_factor: int = flag(
        95, "latency-hiding-scheduler: use N percent of the memory that parameters and results leave (below 0: no limit).", "N"
    )
    xla_gpu_enable_dynamic_slice_fusion: bool = flag(
        True, "Let products of libraries read and write slices of large arrays in place. false: copy the slices."
    )
    xla_gpu_enable_dus_accumulator_zero_init_elimination: bool = flag(
        False, "Do not fill arrays with a constant that a loop overwrites slice by slice."
    )
    xla_gpu_temp_buffer_use_separate_color: bool = flag(
        False, "Show temporary buffers in a memory space of their own (color 2). They are where they would be without it."
    )
    xla_gpu_experimental_enable_fusion_block_level_rewriter: bool = flag(
        False, "fusion-block-level-rewriter: take all fusions that can be tiled. Acts with --block_level_fusions."
    )
    xla_gpu_experimental_enable_triton_heroless_priority_fusion: bool = flag(
        False,
        "priority-fusion: make block-level fusions of any instructions that can be tiled. Acts with --block_level_fusions.",
    )
    xla_gpu_experimental_stream_annotation: bool = flag(
        True, "Run calls with the attribute _xla_stream_annotation on that stream. false: run them in order."
    )
    xla_early_exit_with_layouts: bool = flag(
        False, "Stop after the pipeline layout_assignment. Needs --compile_only, --stage or hlo-opt, since nothing can run then."
    )
    xla_gpu_experimental_early_exit: str = flag(
        "EARLY_EXIT_POINT_UNSET",
        "EARLY_EXIT_POINT_AFTER_CONFIG_ASSIGNMENT: stop after the pipeline config-assigner, before anything is scheduled. Needs "
        "--compile_only, --stage or hlo-opt.",
        choices=("EARLY_EXIT_POINT_UNSET", "EARLY_EXIT_POINT_AFTER_CONFIG_ASSIGNMENT"),
    )
    xla_gpu_command_buffer_scheduling_mode: str = flag(
        "LHS",
        "CONCURRENT: values share memory only where the dependencies of instructions allow it, so that thunks could run at the "
        "same time. CONCURRENT_REGIONS: so that neighbouring small thunks could. SERIALIZE and LHS plan memory by the schedule.",
        "MODE",
    )
    xla_gpu_graph_enable_concurrent_region: bool = flag(
        False, "The same as --xla_gpu_command_buffer_scheduling_mode=CONCURRENT, an older name."
    )
    xla_multiheap_size_constraint_per_heap: int = flag(
        -1, "Put temporary buffers into blocks of at most N bytes (-1: into one). A larger buffer has a block of its own.", "N"
    )
    xla_gpu_collect_cost_model_stats: bool = flag(
        False, "Write the estimated times of fusions, products and collectives into backend_configs (reification_cost)."
    )
    xla_gpu_async_copy_min_bytes: int = flag(
        -1, "gpu-copy-async-wrapper: copy arrays of N bytes and more asynchronously (-1: none).", "N", least=-1
    )
    xla_gpu_async_dot: bool = flag(False, "async-wrapper: run matrix products of cuBLASLt asynchronously.")
    xla_gpu_disable_async_collectives: str = flag(
        "", "Run these kinds of collectives synchronously: ALLREDUCE,ALLGATHER,.. or ALLCOLLECTIVES.", "KINDS"
    )
    xla_gpu_force_compilation_parallelism: int = flag(
        0,
        "Compile kernels in N processes, unless --compile_processes says otherwise.",
        "N",
        no_effect="chooses the processes that compile kernels, not the kernels",
        least=0,
    )

    @property
    def requires_determinism(self) -> bool:
        """True if a run must have the same result each time."""
        return self.xla_gpu_deterministic_ops or self.xla_gpu_exclude_nondeterministic_ops

    @property
    def loop_unrolling(self) -> str:
        """The strategy of loop unrolling: `double_buffer`, `full`, or "" for none. Raises UsageError for an unknown strategy."""
        chosen = self.xla_gpu_enable_while_loop_unrolling.upper().removeprefix(_UNROLLING)
        if chosen not in _STRATEGIES:
            hint = f"choose from {', '.join(_UNROLLING + name for name in _STRATEGIES)}"
            raise UsageError(f"--xla_gpu_enable_while_loop_unrolling: unknown strategy '{chosen}'", hint=hint)
        if chosen == "FULL_UNROLL":
            return "full"
        return "double_buffer" if chosen == "DOUBLE_BUFFER" or self.xla_gpu_enable_while_loop_double_buffering else ""

    @property
    def convolution_features_innermost(self) -> bool | None:
        """True or False if flags choose the layouts of convolutions; None for XLA's heuristic."""
        if self.xla_gpu_force_conv_nchw:
            return False
        return True if self.xla_gpu_force_conv_nhwc else None

    @property
    def thunk_ordering(self) -> str:
        """The order of thunks for the planning of memory: schedule, dependencies, or regions of thunks that may run at once.

        Raises UsageError for an unknown mode.
        """
        mode = self.xla_gpu_command_buffer_scheduling_mode.upper()
        if mode not in _ORDERINGS:
            raise UsageError(
                f"--xla_gpu_command_buffer_scheduling_mode: unknown mode '{mode}'", hint=f"choose from {', '.join(_ORDERINGS)}"
            )
        return "dependencies" if self.xla_gpu_graph_enable_concurrent_region else _ORDERINGS[mode]

    @property
    def orders_scatters(self) -> bool:
        """True if no scatter's result may depend on the order of its updates."""
        return self.requires_determinism or self.xla_gpu_enable_scatter_determinism_expander

    @property
    def early_exit(self) -> tuple[str, str]:
        """The flag that ends compilations early, and the pipeline after which it does; two empty texts without one."""
        if self.xla_early_exit_with_layouts:
            return "xla_early_exit_with_layouts", "layout assignment"
        if self.xla_gpu_experimental_early_exit != "EARLY_EXIT_POINT_UNSET":
            return "xla_gpu_experimental_early_exit", "config-assigner"
        return "", ""

    @property
    def rows_off(self) -> tuple[str, ...]:
        """The HLO rows that flags switch off."""
        rows: list[str] = []
        if not self.xla_gpu_enable_cub_radix_sort:
            rows.append("sort-rewriter")
        if self.xla_gpu_experimental_disable_binary_libraries:
            rows += _LIBRARY_ROWS
        if self.xla_reduce_window_rewrite_base_length == 0:
            rows += ["reduce-window-rewriter", "reduce-window-resizer"]
        return tuple(rows)

    @property
    def ptxas_flags(self) -> tuple[str, ...]:
        """The flags for ptxas."""
        extra = tuple(word for word in self.xla_gpu_ptx_compiler_extra_flags.replace(",", " ").split() if word)
        return ("-O0", *extra) if self.xla_gpu_disable_gpuasm_optimizations else extra
