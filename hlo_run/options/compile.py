"""The flags of compilation, the only part of the command line that passes see."""

from __future__ import annotations

from dataclasses import fields
from typing import NamedTuple

from hlo_run.options.flag import flag, flag_record, names
from hlo_run.options.xla_flags import XlaFlags


class RowSelection(NamedTuple):
    """The optional rows of a table that run: those that `only` names (empty: all) without those that `disabled` names.

    Names are rows, passes or pipelines. With `required_only` no optional row runs.
    """

    only: tuple[str, ...] = ()
    disabled: tuple[str, ...] = ()
    required_only: bool = False


@flag_record
class CompileOptions(XlaFlags):
    """The flags that decide the result of a compilation. A flag without influence on the result gives the reason in `no_effect`.

    `compilation_key` is part of the key of everything that is kept from one compilation to the next, so a new field is in it.
    """

    target: str = flag(
        "",
        "Compile for this GPU: v100, a100, h100, h200, b200, .. "
        "Default: the GPU of the run, else h100. --stage=fusion-analysis takes a comma-separated list.",
        "NAME",
    )
    xla_gpu_target_config_filename: str = flag(
        "", "Compile for the GPU that this XLA gpu_target_config text proto describes.", "FILE"
    )
    dumped_target: str = flag("", "The gpu_target_config beside a dumped input file.", hidden=True)
    xla_gpu_cuda_data_dir: str = flag("", "Look for ptxas and libdevice in this CUDA directory first.", "DIR")
    xla_backend_optimization_level: int = flag(3, "Optimise kernels at this LLVM level, 0 to 3.", "N")
    xla_gpu_experimental_pack_dot_operands_along_k_dimension: bool = flag(
        True, "Let products read operands of 4-bit and narrower elements along the contracting dimensions."
    )
    block_level_fusions: bool = flag(
        False,
        "Make block-level fusions, which XLA gives to Triton by default: matrix products with what surrounds them, and rows of "
        "softmaxes and normalisations. Not complete yet.",
    )
    xla_allow_excess_precision: bool = flag(
        True, "Omit conversions of floats to a narrower type and back, as XLA does. false: round wherever the module converts."
    )
    run_test_hlo_passes: bool = flag(
        True, "Run the HLO passes. false: the input is already optimised, so run only the required rows."
    )
    run_xla_backend_only: bool = flag(False, "The same as --run_test_hlo_passes=false.")
    is_spmd_partitioned_module: bool = flag(
        False,
        "The module is the result of partitioning: mark its parameters and result as manually sharded, and run no HLO passes "
        "(--xla_disable_all_hlo_passes).",
    )
    use_shardy_partitioner: bool = flag(
        True,
        "Propagate the shardings of modules with Shardy's attributes by Shardy's rules. false: by GSPMD's, which refuses "
        "Shardy's custom calls.",
    )
    xla_disable_all_hlo_passes: bool = flag(False, "Run only the HLO rows that --list_passes marks required.")
    xla_disable_hlo_passes: str = flag("", "Skip these HLO rows of --list_passes (comma-separated).", "ROWS")
    xla_enable_hlo_passes_only: str = flag("", "Run only these HLO rows (comma-separated) and the required ones.", "ROWS")
    disable_kernel_passes: str = flag("", "Skip these kernel rows of --list_passes (comma-separated).", "ROWS")
    enable_kernel_passes_only: str = flag("", "Run only these kernel rows (comma-separated) and the required ones.", "ROWS")
    insert_passes: str = flag(
        "",
        "Run these passes of other packages (entry points of the group hlo_run.passes) in the pipeline: "
        "NAME:before:ROW or NAME:after:ROW, comma-separated.",
        "NAME:after:ROW",
    )
    xla_fuel: str = flag(
        "",
        "Stop a pass after N rewrites. A pass that does not count rewrites stops after N runs that change the module.",
        "PASS=N,..",
    )
    kernel_fuel: str = flag(
        "",
        "As --xla_fuel, for the passes of kernel rows: N rewrites, or N runs that change a kernel, counted over all kernels.",
        "PASS=N,..",
    )
    llvm_opt_bisect_limit: int = flag(
        -1,
        "Run only the first N of LLVM's passes that can be skipped, counted over all kernels (-1: all); list them on stderr.",
        "N",
        least=-1,
    )
    ptxas_opt_level: str = flag(
        "",
        "Run ptxas at this level (default: its own, and not on PTX of more than 300,000 characters). It checks the PTX; the "
        "driver compiles PTX for the device by itself.",
        "N",
        ("", "0", "1", "2", "3"),
    )
    kernel_ir_file: str = flag(
        "",
        "Replace kernels by these dumps of kernel IR (comma-separated) and continue after the row that wrote each dump. "
        "XLA's logs of kernel passes (*.mlir-passes.log) are such files too.",
        "FILES",
    )
    kernel_ir_before: str = flag(
        "", "Of XLA's log of kernel passes, take the dump before this pass (xla-lower-tensors, ..). Default: the first.", "PASS"
    )
    kernel_launch: str = flag(
        "",
        "The launch of a kernel whose dump by XLA does not show it, or of a gpu.func that no function launches, as grid and "
        "block: 16x1x1,128x1x1.",
        "GRID,BLOCK",
    )
    sizes: str = flag(
        "",
        "For a module of the gpu dialect (.mlir): values of index arguments and sizes of memrefs, n=1000,x=64x32. A number "
        "without a name is for all others (default: 1024, or 64 beside a memref of several dimensions).",
        "SIZES",
        acts="compile mlir",
    )
    xla_gpu_enable_pdl: bool = flag(
        True, "Let kernels for sm_90 and later begin with griddepcontrol.wait, as XLA does for dependent launches."
    )
    xla_gpu_enable_pdl_launch: bool = flag(
        True, "pdl-launch-annotation: mark fusions of Triton whose successors may start before they end."
    )
    xla_gpu_llvm_ir_file: str = flag("", "Replace the kernels that these LLVM IR files (.ll, comma-separated) define.", "FILES")
    xla_gpu_ptx_file: str = flag("", "Replace the kernels that these PTX files (comma-separated) define.", "FILES")
    xla_gpu_enable_command_buffer: str = flag(
        "COLLECTIVES_KERNEL,CONDITIONAL,CUBLAS,CUBLASLT,CUDNN,CUSTOM_CALL,DYNAMIC_SLICE_FUSION,FUSION",
        "Record thunks of these kinds in command buffers (CUDA graphs): FUSION,CUBLAS,.. "
        "or changes to XLA's default: +WHILE,-FUSION.",
        "KINDS",
    )
    xla_gpu_graph_min_graph_size: int = flag(5, "Record a command buffer only for N or more consecutive thunks.", "N")
    cache: str = flag(
        "",
        "Keep compiled kernels and executables for later runs in this directory, or off. Default: the user's cache directory.",
        "off|DIR",
        acts="",  # the environment can name it too
        no_effect="chooses where results are kept, not what they are",
    )
    compile_processes: int = flag(
        0,
        "Compile kernels in N processes (0: one per core).",
        "N",
        acts="file",
        no_effect="chooses the processes that compile kernels, not the kernels",
        least=0,
    )
    timeout: float = flag(
        0.0,
        "Stop a compilation, and a run, after this many seconds (0: never).",
        "SECONDS",
        no_effect="stops a compilation, or does not change it",
        acts="file",
        least=0,
    )
    one_process: bool = flag(
        False,
        "Do everything in one process, for debuggers. A crash of native code then ends the command.",
        no_effect="chooses the processes that work, not the result",
        acts="",
    )
    crash_dir: str = flag(
        "",
        "Write reproducers of crashes and bugs to this directory, which keeps the newest 32. "
        "Default: HLO_RUN_CRASH_DIR, else crashes in the user's cache directory.",
        "DIR",
        no_effect="chooses where reproducers are written",
        acts="",
    )
    check_each_pass: bool = flag(
        False,
        "Evaluate the module with the reference after every row that changed it, and what the row rewrote alone, on random "
        "operands; stop at the first row that changes the result or rewrites a part wrongly.",
        acts="compile",
    )
    verify: str = flag(
        "ends",
        "Verify the module before the first and after the last row (ends), after every row, or never.",
        "WHEN",
        ("ends", "every", "off"),
        acts="file",
    )
    output: str = flag(
        "",
        "Compile, save the executable and stop. hlo-run FILE.hlox runs it.",
        "FILE.hlox",
        no_effect="chooses where the executable is written",
        acts="file",
    )
    output_machine_code: bool = flag(
        False,
        "With --output: also save machine code of the kernels for this processor, which the Host platform runs.",
        no_effect="adds to the file, after compilation",
        acts="output",
    )

    @property
    def hlo_rows(self) -> RowSelection:
        """The rows of the HLO tables that run. Flags of XLA that switch passes off act on these alone, as in XLA."""
        return RowSelection(
            names(self.xla_enable_hlo_passes_only),
            (*names(self.xla_disable_hlo_passes), *self.rows_off),
            required_only=self.xla_disable_all_hlo_passes
            or self.is_spmd_partitioned_module
            or self.run_xla_backend_only
            or not self.run_test_hlo_passes,
        )

    @property
    def kernel_rows(self) -> RowSelection:
        """The rows of the kernel table that run."""
        return RowSelection(names(self.enable_kernel_passes_only), names(self.disable_kernel_passes))

    @property
    def names_passes(self) -> bool:
        """True if a flag names rows or passes, so that the names must be checked."""
        selections = (self.hlo_rows, self.kernel_rows)
        return bool(self.xla_fuel or self.kernel_fuel) or any(selection.only or selection.disabled for selection in selections)

    @property
    def fuel_limits(self) -> tuple[str, ...]:
        """The limits in `--xla_fuel`, as `PASS=N`."""
        return names(self.xla_fuel)

    @property
    def kernel_fuel_limits(self) -> tuple[str, ...]:
        """The limits in `--kernel_fuel`, as `PASS=N`."""
        return names(self.kernel_fuel)

    def compilation_key(self) -> str:
        """Return the options that a compilation depends on, with their values."""
        return repr(
            [(field.name, getattr(self, field.name)) for field in fields(CompileOptions) if not field.metadata["no_effect"]]
        )
