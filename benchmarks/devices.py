"""Time modules on Host with several simulated devices against real XLA:CPU with as many virtual devices.

    python3 scripts/venv.py python benchmarks/devices.py FILE... [--iterations N] [--engine auto]

Every file has `num_partitions`, and both sides divide it. Both sides get the same arguments; XLA's lie on its devices before the
first run, ours are handed over in each. XLA (JAX's, in a child process) runs after Host. The figures are least elapsed times.
"""

from __future__ import annotations

import argparse
import math
import os
import pickle
import subprocess
import sys
import tempfile
import time
from pathlib import Path

# XLA in its own process: the text and the arguments by pickle, one list of seconds on stdout.
_XLA_WORKER = """
import pickle, sys, time
import jax, numpy, jax.extend
from jax._src.sharding_impls import GSPMDSharding
from jaxlib import _hlo, _jax, xla_client
text, arguments, count, iterations = pickle.load(open(sys.argv[1], "rb"))
client = jax.extend.backend.get_backend("cpu")
devices = tuple(client.devices())
proto = _hlo.hlo_module_from_text(text).as_serialized_hlo_module_proto()
options = xla_client.CompileOptions()
for each in (options, options.executable_build_options):
    each.num_partitions, each.num_replicas = count, 1
build = options.executable_build_options
build.use_spmd_partitioning, build.use_shardy_partitioner = True, "xla.sdy" in text
build.device_assignment = xla_client.DeviceAssignment.create(numpy.arange(count).reshape(1, count))
mlir = _jax.mlir.xla_computation_to_mlir_module(_hlo.XlaComputation(proto))
program = client.compile_and_load(mlir, xla_client.DeviceList(devices), options)
shardings = [GSPMDSharding(devices, each) for each in program.get_parameter_shardings()]
placed = [jax.device_put(each, sharding) for each, sharding in zip(arguments, shardings, strict=True)]
seconds = []
for _ in range(iterations + 1):
    begin = time.perf_counter()
    results = program.execute_sharded(placed).disassemble_into_single_device_arrays()
    for part in results:
        for each in part:
            each.block_until_ready()
    seconds.append(time.perf_counter() - begin)
print(seconds[1:])
"""


def main() -> int:
    """Print a table in Markdown; return 1 if a module failed on one of the sides."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE")
    parser.add_argument("--iterations", type=int, default=10)
    parser.add_argument("--engine", choices=("auto", "emulator", "jit"), default="jit")
    options = parser.parse_args()
    print("| module | least XLA:CPU ms | least Host ms | ratio |\n| --- | --- | --- | --- |")
    ratios: list[float] = []
    for path in options.files:
        try:
            ours, theirs = _times(path, options.iterations, options.engine)
        except subprocess.CalledProcessError as error:
            print(f"{path.stem}: {error.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
            continue
        ratios.append(ours / theirs)
        print(f"| {path.stem} | {1e3 * theirs:.2f} | {1e3 * ours:.2f} | {ours / theirs:.2f} |", flush=True)
    if ratios:
        print(f"\ngeometric mean of {len(ratios)} ratios: {math.exp(sum(map(math.log, ratios)) / len(ratios)):.2f}")
    return int(len(ratios) < len(options.files))


def _times(path: Path, iterations: int, engine: str) -> tuple[float, float]:
    """Return the least seconds of a run on Host and on XLA:CPU."""
    import hlo_run
    from hlo_run.backends.host.backend import HostBackend
    from hlo_run.backends.tiles import split_arguments
    from hlo_run.options import Options
    from hlo_run.pass_support.hlo_pass import PassContext
    from hlo_run.pipeline.compile import compile_module
    from hlo_run.reference.arguments.fake_arguments import make_fake_arguments
    from hlo_run.target import preset

    text = path.read_text(encoding="utf-8")
    module = hlo_run.parse(text, path.name)
    count = module.num_partitions
    values = make_fake_arguments(module, 1)
    executable = compile_module(PassContext(preset("h100"), Options(), ()), module)
    whole = [values] * count
    arguments = split_arguments(executable.divided, whole, count) if executable.divided is not None else whole
    backend = HostBackend(engine=engine)
    seconds: list[float] = []
    for _ in range(iterations + 1):
        begin = time.perf_counter()
        backend.run_devices(executable, arguments, 1, count)
        seconds.append(time.perf_counter() - begin)
    with tempfile.NamedTemporaryFile(suffix=".pickle") as request:
        pickle.dump((text, values, count, iterations), request)
        request.flush()
        environment = os.environ | {"XLA_FLAGS": f"--xla_force_host_platform_device_count={count}", "JAX_PLATFORMS": "cpu"}
        command = [sys.executable, "-c", _XLA_WORKER, request.name]
        answer = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    theirs = [float(number) for number in answer.stdout.strip().strip("[]").split(",")]
    return min(seconds[1:]), min(theirs)


if __name__ == "__main__":
    raise SystemExit(main())
