"""How a module is run and compared."""

from __future__ import annotations

from dataclasses import dataclass

from hlo_run.options.flag import flag


# Each method that is generated costs a start of the program a millisecond; those of `Options` do for comparing.
@dataclass(frozen=True, repr=False, eq=False)
class RunOptions:
    """The flags of a run on a platform: arguments, devices, bounds, reports."""

    platform: str = flag("", "CUDA, Host or Interpreter; empty: CUDA if a device can be opened, else Host.", "NAME")
    reference_platform: str = flag("default", 'Platform to compare with: Interpreter, or "" for none.', "NAME")
    reference_precision: str = flag(
        "native", "native: every op rounds to its type; f64: floats are float64 throughout.", "HOW", ("native", "f64")
    )
    num_replicas: int = flag(0, "Replicas to simulate (0: as the module's header says).", "N")
    num_partitions: int = flag(0, "Partitions to simulate (0: as the module's header says).", "N")
    input_format: str = flag(
        "", "Format of the input; empty: by extension.", "hlo|txt|pb|pbtxt|textproto|stablehlo|mhlo|mlir|mlirbc"
    )
    iterations: int = flag(1, "Run so many times, each with fresh arguments.", "N")
    seed: int = flag(1, "Seed of the random arguments.", "N")
    different_random_seeds: bool = flag(False, "The module's own seed is the iteration's number instead of 42.")
    inputs: str = flag("", "Arguments: FILE.npz with arg0, arg1, .., or A.npy,B.npy,..; tuples as their leaves.", "FILES")
    infeed: str = flag(
        "", "What infeeds take: infeed0, infeed1, .. of a file, in order, tuples as their leaves; else random.", "FILE.npz"
    )
    save_inputs: str = flag("", "Write the arguments, for --inputs.", "FILE.npz")
    save_outputs: str = flag("", "Write the result (out0, ..), and what was expected where it differs.", "FILE.npz")
    expected_output: str = flag("", "Compare with a result saved by --save_outputs, not with the reference.", "FILE.npz")
    isolate_fusion: str = flag(
        "", "Run one fusion of the module alone; write it and its operands as MODULE.NAME.hlo and .npz.", "NAME"
    )
    profile: str = flag(
        "", "Time every thunk (stderr: time, bytes, GB/s); with a FILE, write a Chrome trace as well.", "FILE.json", bare="-"
    )
    custom_calls: str = flag("", "Python files that register functions for custom calls.", "FILES.py")
    print_literals: bool = flag(False, "Print arguments and results to stdout.")
    abs_error_bound: float = flag(1e-3, "An element differs if both bounds are exceeded.", "X")
    rel_error_bound: float = flag(1e-3, "An element differs if both bounds are exceeded.", "X")
    relaxed_nans: bool = flag(False, "Where a NaN is expected anything will do.")
    fewer_infs_ok: bool = flag(False, "Compare an infinity as the type's largest number where a number is expected.")
    low_precision_fp_error_spec: str = flag("", "Results that are at most N numbers of TYPE apart agree.", "TYPE,N")
    report_json: str = flag("", "Write what became of every file, in full (docs/report.md).", "FILE")
    report_junit: str = flag("", "Write JUnit XML, a test case per file.", "FILE")
    random_init_input_literals: bool = flag(True, "Random arguments; false: zeros, as XLA fills them.")
    use_large_float_range: bool = flag(False, "Draw floats log-uniformly over the whole exponent range.")
    timeout: float = flag(0.0, "Stop a run on the device after so many seconds (0: never).", "SECONDS")
    host_engine: str = flag(
        "auto", "Host: emulator, jit, or auto: the JIT for long launches.", "NAME", ("auto", "emulator", "jit")
    )
    xla_gpu_deterministic_ops: bool = flag(False, "Host: atomics on floats take effect in the order of the blocks.")
    host_check: str = flag("", "Host: watch for bounds, align, barrier, init, race; statistics; all.", "CHECKS", bare="all")
