"""How a module is compiled: all that passes see of the command line."""

from __future__ import annotations

from dataclasses import dataclass, fields

from hlo_run.options.flag import flag, names


# Each method that is generated costs a start of the program a millisecond; those of `Options` do for comparing.
@dataclass(frozen=True, repr=False, eq=False)
class CompileOptions:
    """The flags that decide what a compilation makes; those that do not say why.

    `compilation_key` is part of the key of everything that is kept from one compilation to the next, so a new field is in it.
    """

    target: str = flag(
        "",
        "GPU to compile for (default h100); a100, v100, h200, b200, ..; several for --stage=fusion-analysis.",
        "NAME",
    )
    xla_gpu_target_config_filename: str = flag("", "Read the GPU from an XLA gpu_target_config.", "FILE")
    xla_gpu_cuda_data_dir: str = flag("", "Where to look for ptxas and libdevice first.", "DIR")
    xla_backend_optimization_level: int = flag(3, "LLVM optimisation level, 0 to 3.", "N")
    xla_allow_excess_precision: bool = flag(
        True, "Keep floats in a wider type between conversions; false: round where the module says so."
    )
    run_test_hlo_passes: bool = flag(True, "false: the input is optimised already, run only required rows.")
    xla_disable_all_hlo_passes: bool = flag(False, "Run only the rows marked required.")
    xla_disable_hlo_passes: str = flag("", "Rows to leave out, comma separated (short: --disable).", "ROWS")
    xla_enable_hlo_passes_only: str = flag("", "Run only these and required rows (short: --only).", "ROWS")
    xla_fuel: str = flag("", "How many rewrites passes may make (passes without rewrites to count: how many runs).", "PASS=N,..")
    kernel_ir_file: str = flag("", "Dumps of kernel IR that replace kernels and go on from their row.", "FILES")
    xla_gpu_llvm_ir_file: str = flag("", "LLVM IR (.ll) that replaces the kernels it defines.", "FILES")
    xla_gpu_ptx_file: str = flag("", "PTX that replaces the kernels it defines.", "FILES")
    xla_gpu_enable_command_buffer: str = flag(
        "",
        "Record runs of thunks once, replay them: FUSION,CUBLAS,.. or +WHILE (added to XLA's).",
        "KINDS",
    )
    xla_gpu_graph_min_graph_size: int = flag(5, "Shorter runs of thunks are not recorded.", "N")
    cache: str = flag(
        "",
        "Where kernels are kept for later runs, or off (default: the user's cache directory).",
        "off|DIR",
        no_effect="says where results are kept, not what they are",
    )
    compile_processes: int = flag(
        0, "Processes that compile kernels (0: one per core).", "N", no_effect="says who makes kernels, not what they are"
    )
    check_each_pass: bool = flag(False, "Evaluate the module with the reference after every row that changed it.")
    verify: str = flag("ends", "Verify: at the ends, every row, off.", "WHEN", ("ends", "every", "off"))
    output: str = flag(
        "",
        "Compile, save the executable, and do not run it; hlo-run FILE.hlox does.",
        "FILE.hlox",
        no_effect="says where the executable goes",
    )
    output_machine_code: bool = flag(
        False,
        "With --output: add machine code of the kernels for this processor, for Host.",
        no_effect="adds to the file, after compilation",
    )

    @property
    def disabled_rows(self) -> tuple[str, ...]:
        return names(self.xla_disable_hlo_passes)

    @property
    def only_rows(self) -> tuple[str, ...]:
        return names(self.xla_enable_hlo_passes_only)

    @property
    def fuel_limits(self) -> tuple[str, ...]:
        return names(self.xla_fuel)

    @property
    def required_rows_only(self) -> bool:
        """True if only rows marked required shall run."""
        return self.xla_disable_all_hlo_passes or not self.run_test_hlo_passes

    def compilation_key(self) -> str:
        """Return the options that what is compiled depends on, with their values."""
        return repr(
            [(field.name, getattr(self, field.name)) for field in fields(CompileOptions) if not field.metadata["no_effect"]]
        )
