"""Record real XLA:CPU's results for the modules in tests/data/xla_cpu, for the test of the numpy reference.

    python3 scripts/venv.py python scripts/record_xla_cpu.py --xla "PYTHON RUN_CPU.py" [--seed N] [--folder FOLDER]

`--folder` records another folder of modules, such as tests/data/xla_rng.

Each module runs on random arguments, rounded after every op. Arguments and results of all modules go into one
`results.npz` with the keys `MODULE/arg0`, .., `MODULE/out0`, ... Types that numpy lacks are stored as bytes or 16-bit
words, and their ml_dtypes name under `KEY.dtype`. A module that XLA:CPU cannot run is an error.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

FOLDER = Path(__file__).resolve().parent.parent / "tests" / "data" / "xla_cpu"


def record(command: list[str], seed: int, file: Path) -> dict[str, NDArray[Any]]:
    """Return the arguments and results of one module under their keys."""
    found: dict[str, NDArray[Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        arguments, results = Path(folder) / "arguments.npz", Path(folder) / "results.npz"
        places = ["--save-inputs", str(arguments), "--outputs", str(results)]
        subprocess.run([*command, str(file), "--round-each-op", "--seed", str(seed), *places], check=True, capture_output=True)
        for path in (arguments, results):
            with np.load(path) as data:
                found |= {f"{file.stem}/{key}": data[key] for key in data.files}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--xla", required=True, help='how to run real XLA:CPU: "PYTHON RUN_CPU.py"')
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--folder", type=Path, default=FOLDER, help="folder with the modules, where results.npz is written")
    arguments = parser.parse_args()
    everything: dict[str, NDArray[Any]] = {}
    for file in sorted(arguments.folder.glob("*.hlo")):
        everything |= record(shlex.split(arguments.xla), arguments.seed, file)
    np.savez_compressed(arguments.folder / "results.npz", **everything)  # pyright: ignore[reportArgumentType] - no key is `allow_pickle`


if __name__ == "__main__":
    main()
