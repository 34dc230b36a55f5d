"""Write down what changed between two releases of XLA, so that hlo-run can mirror the newer one.

    python3 scripts/venv.py python scripts/follow_release.py OLD_PYTHON NEW_PYTHON [FILE.hlo..]

Both Pythons have jaxlib and the XLA:GPU plugin. It lists the flags of DebugOptions that are new, gone, or of another type, and
the first lines that the two print differently for each file. Pipelines are recorded by `scripts/record_xla_pipelines.py`.
"""

from __future__ import annotations

import argparse
import subprocess
from pathlib import Path
from typing import Any

from xla_descriptors import read_files
from xla_text import XlaText

_FIND = "import jax_plugins.xla_cuda13 as p; print(list(p.__path__)[0])"


def flags(python: str) -> dict[str, str]:
    """Return the fields of DebugOptions in the plugin of a Python, with their types in numbers of descriptors."""
    found = subprocess.run([python, "-c", _FIND], capture_output=True, text=True, check=True).stdout.splitlines()[-1]
    file: Any = read_files(Path(found, "xla_cuda_plugin.so"))["xla/xla.proto"]
    options = next(message for message in file.message_type if message.name == "DebugOptions")
    return {field.name: f"{field.type} {field.type_name} {field.label}" for field in options.field}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("old", metavar="OLD_PYTHON")
    parser.add_argument("new", metavar="NEW_PYTHON")
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE.hlo")
    arguments = parser.parse_args()
    before, after = flags(arguments.old), flags(arguments.new)
    print("# Flags", *(f"- new: {name}" for name in after if name not in before), sep="\n")
    print(*(f"- gone: {name}" for name in before if name not in after), sep="\n")
    print(*(f"- other type: {name}" for name in after if before.get(name, after[name]) != after[name]), sep="\n")
    print("# Text")
    with XlaText(arguments.old) as old, XlaText(arguments.new) as new:
        for file in arguments.files:
            text = file.read_text(encoding="utf-8")
            one, other = (xla.print(text) for xla in (old, new))
            pairs = zip(one[1].splitlines(), other[1].splitlines(), strict=False)
            if one != other:
                print(f"- {file.name}: {next((f'{a.strip()} | {b.strip()}' for a, b in pairs if a != b), 'longer or shorter')}")


if __name__ == "__main__":
    main()
