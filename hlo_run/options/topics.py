"""The topics of `--help=TOPIC`: the commands and flags for one purpose."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Topic:
    """The help about a purpose: a sentence, commands with their effects, the names of flags, and a page of docs/."""

    about: str
    commands: Mapping[str, str]
    flags: tuple[str, ...]
    page: str = ""


TOPICS = {
    "triage": Topic(
        "From a failure to its cause: name the failure, shrink the module, find the pass.",
        {
            "hlo-run --check_each_pass FILE": "the HLO row, or the kernel and its row, that goes wrong: begin here",
            "hlo-run --localize FILE": "the first kernel of a run that is wrong, as files to run",
            "hlo-tool bisect FILE": "the pass, its rewrite, or the LLVM pass that breaks the module",
            "hlo-tool reduce FILE --run='hlo-run FLAGS'": "the smallest module that fails alike",
            "hlo-run --isolate_fusion=NAME FILE": "run one fusion alone",
            "hlo-run --isolate_instructions FILE": "a verdict on each instruction alone",
            "hlo-run --host_check=all FILE": "faults inside kernels: memory, races, barriers",
            "hlo-run --v=5 FILE": "every stage from the input to the PTX",
        },
        tuple(
            """check_each_pass localize localize_dir isolate_fusion isolate_instructions host_check verify explain v v_format
            crash_dir xla_disable_hlo_passes xla_enable_hlo_passes_only disable_kernel_passes enable_kernel_passes_only""".split()
        ),
        "triage.md",
    ),
    "goldens": Topic(
        "Keep the texts of stages, and fail in CI if the compilation of a module changes.",
        {
            "hlo-run --golden_dir=DIR --update_goldens FILES": "write the goldens: DIR/MODULE/STAGE.txt",
            "hlo-run --golden_dir=DIR FILES": "compare with them; exit code 1: a stage differs",
            "hlo-tool diff --format=html DIR NEW": "both sides in a browser",
        },
        (
            "golden_dir",
            "golden_stages",
            "golden_tolerance",
            "update_goldens",
            "target",
            "report_json",
            "report_junit",
            "report_html",
        ),
        "ci.md",
    ),
    "inputs": Topic(
        "Where arguments come from, and what the result is compared with.",
        {
            "hlo-run --seed=7 --iterations=3 FILE": "other random arguments, three times",
            "hlo-run --inputs=in.npz --expected_output=out.npz FILE": "given arguments, and a given result",
            "hlo-run --reference_platform=Host FILE": "compare with our own kernels on the CPU",
        },
        tuple(
            """seed iterations inputs infeed input_literals_file hlo_argument_mode input_scale use_large_float_range xla_arguments
            force_fake_data save_inputs save_outputs expected_output reference_platform reference_precision abs_error_bound
            rel_error_bound fixed_bounds relaxed_nans print_literals fail_on_vacuous check_kernels""".split()
        ),
        "report.md",
    ),
    "devices": Topic(
        "Modules for several devices: simulated in one process on Host, or shared between processes.",
        {
            "hlo-run --platform=Host --num_partitions=4 FILE": "four partitions on the CPU",
            "hlo-run --print_sharding FILE": "which device holds which piece",
            "hlo-run --num_nodes=2 --task_id=0 --address=HOST:PORT FILE": "one of two processes that share the run",
        },
        tuple(
            """num_replicas num_partitions use_spmd_partitioning use_shardy_partitioner print_sharding num_nodes task_id address
            secret_file""".split()
        ),
        "cookbook.md",
    ),
    "performance": Topic(
        "How long kernels, passes and runs take, and how kernels compare with those of XLA.",
        {
            "hlo-run --profile FILE": "the time of each thunk",
            "hlo-run --profile --report_html=page.html FILE": "the same in a browser",
            "hlo-run --time_passes --compile_only FILE": "the time of each row of the compilation",
            "hlo-run --xla_diff FILE": "kernels, fusions and bytes beside those of real XLA:GPU",
            "hlo-run --explain=fusion FILE": "why instructions were fused or not",
        },
        tuple("profile profile_execution append_profile_to_csv_file time_passes xla_diff explain target cache jobs".split()),
        "performance.md",
    ),
}
