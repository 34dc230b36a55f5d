"""Make random programs and hold the whole pipeline, on Host, against the reference: what differs is printed and kept.

    python3 scripts/venv.py python scripts/fuzz_pipeline.py [--seconds N] [--seed N] [--steps N] [--keep FOLDER] [--target NAME]
                                                            [--engine jit|emulator|auto] [--disable ROWS]
                                                            [--verify ends|every]

Programs are those of tests/random_programs.py; every seed is one. A program fails if compiling or running raises anything, or if
a result is out of the bounds of `hlo_run.reference.agreement`. Exit code 1 if any failed.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
import traceback
import zlib
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from random_programs import random_program

import hlo_run
from hlo_run.backends.host.backend import HostBackend
from hlo_run.cache import choose_cache
from hlo_run.options import Options
from hlo_run.pipeline.compile import compile_module
from hlo_run.pipeline.passes import PassContext
from hlo_run.reference.agreement import disagreements
from hlo_run.reference.arguments import make_fake_arguments
from hlo_run.reference.evaluate import evaluate
from hlo_run.target import preset


def problem(text: str, seed: int, options: Options) -> str:
    """Return what is wrong with a program's run, or nothing."""
    module = hlo_run.parse(text)
    arguments = make_fake_arguments(module, seed)
    expected, shape = evaluate(module, arguments), module.entry.root.shape
    try:
        executable = compile_module(PassContext(preset(options.target or "h100"), options), module)
        actual = HostBackend(engine=options.host_engine).run(executable, arguments)
    except Exception as error:  # anything at all is a finding
        return f"{type(error).__name__}: {error}\n{traceback.format_exc(limit=-4)}"
    found = disagreements(expected, actual, shape)
    return "\n".join(f"result {list(index)}: {comparison.summary()}" for index, comparison in found)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--target", default="h100")
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--disable", default="")
    parser.add_argument("--verify", default="ends")
    arguments = parser.parse_args()
    choose_cache("off")
    # Every rounding is kept: programs round to narrow floats on their way.
    options = Options(
        target=arguments.target,
        host_engine=arguments.engine,
        xla_disable_hlo_passes=arguments.disable,
        verify=arguments.verify,
        xla_allow_excess_precision=False,
    )
    end = time.monotonic() + arguments.seconds
    seed, failed = arguments.seed, 0
    while time.monotonic() < end:
        text = random_program(random.Random(seed), arguments.steps)
        what = problem(text, seed, options)
        if what:
            failed += 1
            name = f"seed_{seed}_{zlib.crc32(text.encode()):08x}.hlo"
            print(f"seed {seed}: {what}", flush=True)
            if arguments.keep is not None:
                arguments.keep.mkdir(parents=True, exist_ok=True)
                (arguments.keep / name).write_text(text)
        seed += 1
    print(f"{seed - arguments.seed} programs, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
