"""The flags that decide how a module is run and compared."""

from __future__ import annotations

from hlo_run.options.flag import FlagRecord, flag, flag_record


@flag_record
class RunOptions(FlagRecord):
    """The flags of a run on a platform: arguments, devices, error bounds, reports."""

    platform: str = flag(
        "",
        "Run on CUDA, Host (the kernels' PTX on the CPU) or Interpreter (the numpy reference). "
        "Default: CUDA if a device can be opened, else Host.",
        "NAME",
        acts="",  # scripts name the platform for every mode, as XLA's tools let them
    )
    reference_platform: str = flag(
        "default",
        "Compare with this platform: Interpreter (the numpy reference), CPU (XLA:CPU, with 'hlo-run[xla]'), CUDA or Host (our "
        'own kernels), or "" for no comparison.',
        "NAME",
        acts="choice",
    )
    run_reference_hlo_passes: bool = flag(
        True,
        "On the reference platform CUDA or Host: run the HLO passes. false: the module is already optimised, so run only the "
        "required rows.",
        acts="passes",
    )
    reference_precision: str = flag(
        "native",
        "How the reference computes floats. native: round the result of every op to its type. f64: compute in float64.",
        "HOW",
        ("native", "f64"),
        acts="reference",
    )
    num_replicas: int = flag(
        0,
        "Simulate N replicas, at most 4096 devices (0 or -1: replica_count in the module's header).",
        "N",
        acts="file",
        least=-1,
    )
    num_partitions: int = flag(
        0,
        "Simulate N partitions, at most 4096 devices (0 or -1: num_partitions in the module's header).",
        "N",
        acts="file",
        least=-1,
    )
    input_format: str = flag(
        "",
        "Read FILE in this format, as run_hlo_module or hlo_runner_main calls it. Default: the format of the file's extension.",
        "hlo|txt|pb|pbtxt|stablehlo|mhlo|text|proto_text|..",
        acts="file",
    )
    jobs: int = flag(
        1,
        "Run N files at a time (0: one per core). Output and reports are as with one, in the order of files.",
        "N",
        acts="file processes",
        least=0,
    )
    iterations: int = flag(1, "Run the module N times, each time with new arguments.", "N", least=1)
    num_repeats: int = flag(1, "Run each iteration N times with the same arguments, and compare the last result.", "N", least=1)
    while_execution_count: int = flag(
        -1,
        "Let every loop run N times, or less often if its condition compares with a smaller constant. Compiler and reference "
        "both get the changed module. 0 or less: loops run as they are.",
        "N",
        acts="file",
    )
    remove_infeed_outfeed: bool = flag(False, "Remove outfeeds, and replace infeeds by zeros, before anything else.", acts="file")
    compile_only: bool = flag(False, "Compile the module, with all dumps, and stop.", acts="file")
    output_mode: str = flag(
        "return_outputs",
        "Which results come back from the devices. return_device_0_outputs: compare, print and write only that of device 0. "
        "not_return_outputs: run, and do none of these.",
        "MODE",
        ("return_outputs", "return_device_0_outputs", "not_return_outputs"),
    )
    compile_as_stablehlo: bool = flag(
        False, "Convert the module to StableHLO and back before anything else, as XLA's runner hands it to PjRt.", acts="file"
    )
    num_nodes: int = flag(
        0,
        "Share the run with N processes of the same command line (0: those that a launcher started, else 1).",
        "N",
        least=0,
    )
    task_id: int = flag(
        -1, "The number of this process from 0 (-1: the launcher's). Process 0 compares and writes.", "N", acts="", least=-1
    )
    address: str = flag(
        "", "Where process 0 listens for the others. Default: the launcher's. Port 0: any, which it prints.", "HOST:PORT", acts=""
    )
    secret_file: str = flag(
        "",
        "Share a run only with processes that know the secret in FILE. Default: that in HLO_RUN_SECRET, else the user's own key.",
        "FILE",
        acts="",
    )
    gpu_client_initialization_timeout_sec: int = flag(
        300, "Wait N seconds for the other processes to come.", "N", acts="", least=1
    )
    xla_gpu_executable_terminate_timeout_seconds: int = flag(
        30,
        "End a run in which a device waits N seconds for another one (0 or less: never). At the default, time in which that one "
        "computes does not count. A process that is silent for N seconds counts as dead.",
        "N",
    )
    gpu_client_mem_fraction: float = flag(
        0.75, "Accepted: the part of the memory that XLA's allocator may reserve. hlo-run reserves none.", "PART", acts=""
    )
    use_layouts_from_hlo_module: bool = flag(
        False, "Accepted: arguments and results always have the layouts of the module's header.", acts=""
    )
    force_auto_layout: bool = flag(
        False, "Let the compiler choose the layouts of arguments and results. Refused: they are those of the header.", acts=""
    )
    execution_options_path: str = flag("", "Read an ExecutionOptions message. Refused: its parts have flags.", "FILE", acts="")
    enable_mock_nccl: bool = flag(
        False, "Simulate other hosts by collectives that do nothing. Refused: results would be meaningless.", acts=""
    )
    run_single_shard_id: int = flag(
        -1,
        "Run one shard of a module for several devices, by collectives that do nothing. Refused, as mock NCCL.",
        "N",
        acts="",
    )
    use_spmd_partitioning: bool = flag(
        True, "Partition modules with several partitions. Always on: false is refused for them.", acts="file"
    )
    seed: int = flag(1, "Seed of the random arguments.", "N", acts="random")
    different_random_seeds: bool = flag(
        False, "Seed the module's own random numbers with the number of the iteration (1, 2, ..) instead of 42.", acts="run"
    )
    inputs: str = flag(
        "",
        "Read the arguments from FILE.npz (arg0, arg1, ..) or from A.npy,B.npy,.. A tuple is the list of its arrays. One set "
        "serves all devices; else give one per device (docs/report.md).",
        "FILES",
        acts="arguments",
    )
    input_literals_file: str = flag(
        "",
        "Read the arguments of each iteration from FILE, XLA's RunHloModuleLiterals as a binary or text proto. Iterations beyond "
        "the file's get random arguments.",
        "FILE",
        acts="arguments",
    )
    output_literals_file: str = flag(
        "",
        "Write the arguments, the result and the expected result of each iteration as XLA's RunHloModuleLiterals: as text if the "
        "name ends in .pbtxt, .textproto or .txt, else binary.",
        "FILE",
        acts="run returned",
    )
    force_fake_data: bool = flag(False, "Make arguments also for a snapshot, which brings its own.", acts="arguments")
    hlo_argument_mode: str = flag(
        "use_random_inputs",
        "Make arguments so. use_shared_random_inputs: the same on every device. use_device_id_as_input: all elements are the "
        "number of the device that holds them. use_random_normal_inputs: mean 0, standard deviation 1, whatever their uses. "
        "uninitialized: arguments may hold anything; here they hold zeros.",
        "MODE",
        (
            "use_random_inputs",
            "use_shared_random_inputs",
            "use_zeros_as_input",
            "use_device_id_as_input",
            "use_random_normal_inputs",
            "uninitialized",
        ),
        acts="random mode",
    )
    infeed: str = flag(
        "",
        "Feed infeeds with infeed0, infeed1, .. of FILE.npz in order. A tuple is the list of its arrays. Default: random.",
        "FILE.npz",
    )
    save_inputs: str = flag("", "Write the arguments to this file, for --inputs.", "FILE.npz")
    save_outputs: str = flag(
        "",
        "Write the result (out0, ..); after a mismatch also the expected values and a mask of the differences.",
        "FILE.npz",
        acts="run returned",
    )
    expected_output: str = flag(
        "", "Compare with this result, which --save_outputs wrote, instead of the reference.", "FILE.npz", acts="run returned"
    )
    isolate_fusion: str = flag(
        "",
        "Run only this fusion of the optimised module; write it as MODULE.NAME.hlo and its operands as .npz.",
        "NAME",
        acts="compile",
    )
    isolate_instructions: bool = flag(
        False,
        "Run every instruction of the module alone on the reference's operands, and print a verdict on each.",
        acts="compile",
    )
    localize: bool = flag(
        False,
        "Replay the run on Host beside the reference, name the first kernel that differs, and write files that reproduce it.",
        acts="compile",
    )
    localize_dir: str = flag(
        "", "Write the files of --localize to this directory. Default: MODULE.localize.", "DIR", acts="localize"
    )
    profile: str = flag(
        "",
        "Print time, bytes and GB/s of every thunk (stderr). With FILE.json, also write a Chrome trace.",
        "FILE.json",
        bare="-",
        acts="device",
    )
    custom_calls: str = flag(
        "", "Run these Python files, which register functions for custom calls (comma-separated).", "FILES.py", acts="arguments"
    )
    profile_execution: bool = flag(
        False,
        "Print the time in thunks of every repeat of the run, in ns (stdout), as XLA's hlo_runner_main does.",
        acts="device",
    )
    append_profile_to_csv_file: str = flag(
        "",
        "Append the times that --profile_execution measures to FILE.csv: a row per command with the mean of each file in ms, "
        "without the first repeat if there are several. A new file begins with the names.",
        "FILE",
        acts="times",
    )
    dump_output_literal_to: str = flag(
        "",
        "Write the elements of the result as text, each to NAME.task_0.device_D.literal_L.txt. One input file only.",
        "NAME.txt",
        acts="run returned",
    )
    log_output: bool = flag(False, "Print the arguments and the result of each device (stderr).")
    trust_machine_code: bool = flag(
        False,
        "Run the machine code in a .hlox file, which may do anything that you may do. false: compile the file's PTX instead.",
    )
    print_literals: bool = flag(False, "Print the arguments and results to stdout.")
    abs_error_bound: float = flag(
        1e-3, "Largest absolute error. An element differs if it exceeds this bound and --rel_error_bound.", "X", acts="comparison"
    )
    rel_error_bound: float = flag(
        1e-3, "Largest relative error. An element differs if it exceeds this bound and --abs_error_bound.", "X", acts="comparison"
    )
    fixed_bounds: bool = flag(
        False,
        "Judge floats by the two bounds alone, as XLA does; bounds other than the defaults mean this too. false: the rounding "
        "of the module's types decides about elements beyond the bounds, and about those with a relative error that is large "
        "for their type.",
        acts="comparison",
    )
    relaxed_nans: bool = flag(False, "Accept any value where the reference has a NaN.", acts="comparison")
    fewer_infs_ok: bool = flag(
        False, "Compare an infinity as the largest number of its type where the reference has a number.", acts="comparison"
    )
    low_precision_fp_error_spec: str = flag(
        "", "Accept results that are at most N representable numbers of TYPE apart.", "TYPE,N", acts="comparison"
    )
    report_json: str = flag("", "Write the full results of all files as JSON (schema: docs/report.md).", "FILE", acts="file")
    report_jsonl: str = flag(
        "",
        "Write one line of JSON per file as soon as it is finished, then one with the counts. -: on stdout, all else on stderr.",
        "FILE",
        acts="file",
    )
    report_junit: str = flag(
        "", "Write the results as JUnit XML: a test case per file, of goldens per stage.", "FILE", acts="file"
    )
    report_html: str = flag(
        "",
        "Write one HTML page: verdict, passes with diffs, graphs, kernels, memory, differences, times (docs/report.md).",
        "FILE",
        acts="page",
    )
    random_init_input_literals: bool = flag(True, "Make random arguments. false: zeros.", acts="random")
    xla_arguments: bool = flag(
        False,
        "Draw random arguments exactly as XLA's run_hlo_module does. Without this flag, integers are in the range that makes "
        "sense for their uses, and floats in one that keeps values finite.",
        acts="random",
    )
    input_scale: float = flag(
        1.0,
        "Draw random floats uniformly from [-0.1, 0.2) times X. Any other value than 1 also turns later tries off.",
        "X",
        acts="random range",
    )
    fail_on_vacuous: bool = flag(
        False,
        "End with exit code 6 if the comparison sees no kernel, or no element: all are zero, too small, NaN or infinite.",
        acts="comparison",
    )
    check_kernels: str = flag(
        "sample",
        "Compare the result of each kernel with the reference's on the same operands while the first iteration runs. sample: "
        "equal kernels once, some iterations of loops, no very large ones. all: every kernel each time that it runs.",
        "off|sample|all",
        ("off", "sample", "all"),
        acts="comparison device",
    )
    use_large_float_range: bool = flag(
        False, "Draw random floats log-uniformly over the whole range of exponents.", acts="random"
    )
    host_engine: str = flag(
        "auto",
        "Run kernels on Host in the emulator or in native code (jit). auto: jit for long or many launches and for "
        "long code, else the emulator.",
        "NAME",
        ("auto", "emulator", "jit"),
        acts="host",
    )
    host_check: str = flag(
        "",
        "On Host: check every access. CHECKS are bounds, align, barrier, init, race, statistics (comma-separated), "
        "or all (docs/host_checks.md).",
        "CHECKS",
        bare="all",
        acts="checks",
    )
