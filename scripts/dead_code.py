"""List code that nothing uses, by vulture, without what a convention or a reason explains.

    python3 scripts/venv.py python scripts/dead_code.py

Exits with 1 if something is unused, or if `known_names.txt` beside this file names what is used or gone. Tests do not count as
users. A word in a string counts as a use, since tables name functions and attributes.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

from vulture import Vulture

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("hlo_run", "scripts", "benchmarks")
KNOWN_NAMES = ROOT / "scripts" / "known_names.txt"
# Names that a convention uses: the pass tables find the class of a module, users call the builder, xDSL reads the fields.
CONVENTIONS = (
    (r"hlo_run/(hlo_passes|sharding|codegen/kernel_passes|codegen/to_llvm)/", "class"),
    (r"hlo_run/builder/", "method"),
    (r"hlo_run/dialects/", "variable|method"),
)


def main() -> int:
    """Print what is unused; return 1 if something is."""
    files = [file for folder in FOLDERS for file in sorted((ROOT / folder).rglob("*.py"))]
    words = words_of_strings(files)
    lines = KNOWN_NAMES.read_text(encoding="utf-8").splitlines()
    known = {name for line in lines if line.startswith("  ") for name in line.split()}
    finder = Vulture()
    finder.scavenge([str(file) for file in files])
    unused: dict[str, str] = {}
    for item in finder.get_unused_code():
        file = str(Path(item.filename).relative_to(ROOT))
        if item.name not in words and not is_by_convention(file, item.typ):
            unused[item.name] = f"{file}:{item.first_lineno}: unused {item.typ} '{item.name}'"
    wrong = [place for name, place in unused.items() if name not in known]
    wrong += [f"scripts/known_names.txt: '{name}' is used, or gone" for name in sorted(known - unused.keys())]
    sys.stdout.write("".join(f"{line}\n" for line in wrong))
    return 1 if wrong else 0


def is_by_convention(file: str, kind: str) -> bool:
    """True if names of this kind in this file are used without being named."""
    return any(re.match(folder, file) and re.fullmatch(kinds, kind) for folder, kinds in CONVENTIONS)


def words_of_strings(files: list[Path]) -> set[str]:
    """Return the words of all strings but docstrings."""
    words: set[str] = set()
    for file in files:
        tree = ast.parse(file.read_text(encoding="utf-8"))
        statements = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in statements:
                words.update(re.findall(r"\w+", node.value))
    return words


if __name__ == "__main__":
    raise SystemExit(main())
