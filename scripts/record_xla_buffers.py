"""Record real XLA:GPU's texts about the buffers of optimised modules, for tests/runtime/test_buffers.py.

    python scripts/record_xla_buffers.py "PYTHON COMPILE_GPU.py" FILE.hlo ...

The command is called with `FILE --as-is --flag=FLAG --dump DIRECTORY` (it compiles HLO text with XLA:GPU and dumps everything).
For each module it keeps the text that XLA executes, and the four texts about its buffers.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

_TARGET = Path(__file__).parent.parent / "tests" / "data" / "xla_buffers"
# The text must name the elements of tuples, which are values.
_FLAGS = ("--as-is", "--flag=--xla_dump_compact_gte=false")
_TITLES = ("buffer-assignment", "buffer-assignment-values", "live-range", "memory-usage-report")


def main(arguments: list[str]) -> int:
    """Record every file and return the exit code."""
    command, *files = arguments
    _TARGET.mkdir(parents=True, exist_ok=True)
    for file in files:
        name = Path(file).name.split(".")[0]
        with tempfile.TemporaryDirectory() as directory:
            subprocess.run([*shlex.split(command), file, *_FLAGS, "--dump", directory], check=True)
            (module,) = Path(directory).rglob("*gpu_after_optimizations.txt")
            (_TARGET / f"{name}.hlo").write_text(module.read_text())
            for title in _TITLES:
                text = module.with_name(module.name.removesuffix(".txt") + f"-{title}.txt").read_text()
                (_TARGET / f"{name}.{title}.txt").write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
