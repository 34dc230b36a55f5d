"""Limits that type checkers cannot hold: how much of the code has no types, and that attributes are read with their types."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent / "hlo_run"

# Adapters to libraries without types, and the machinery of definitions and records.
ADAPTERS = (
    *(
        "backends/cuda/",
        "backends/host/jit/llvm.py",
        "backends/library/lapack.py",
        "codegen/llvm/nvptx.py",
        "formats/",
        "records/",
    ),
    *("dialects/late_definitions.py", "dialects/lean_operations.py"),
)
# Lines with the word `Any`. Lower it when there are fewer; a file that needs `Any` for a library is an adapter.
MOST_OUTSIDE_OF_ADAPTERS = 340
_ANY = re.compile(r"\bAny\b")
_RAW_READ = re.compile(r"\.attrs\.get\(\"|\.attrs\[\"\w+\"\](?!.* = )")
# To drop an attribute, or to give another instruction the same one, says nothing about its type.
_UNREAD = re.compile(r"^del .*|\.attrs\[(\"\w+\")\] = [\w.]+\.attrs\[\1\]")
# The typed accessors themselves; holders that are modules or instructions; a default that is not the accessor's.
_READS_BY_NAME = (
    "hlo/",
    "sharding/analysis/shardy_attributes.py",
    "sharding/shardy/export.py",
    "ops/linalg.py",
    "hlo_passes/indexed/select_and_scatter_expander.py",
)


def _lines() -> Iterator[tuple[str, str]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        for line in path.read_text(encoding="utf-8").splitlines():
            yield name, line


def test_any_stays_in_the_adapters() -> None:
    lines = [
        f"{name}: {line.strip()}" for name, line in _lines() if re.search(r"\bAny\b", line) and not name.startswith(ADAPTERS)
    ]
    assert len(lines) <= MOST_OUTSIDE_OF_ADAPTERS, "\n".join(lines)


def test_attributes_are_read_by_their_typed_accessors() -> None:
    found = ((name, line.strip()) for name, line in _lines() if _RAW_READ.search(_UNREAD.sub("", line.strip())))
    raw = [f"{name}: {line}" for name, line in found if not name.startswith(_READS_BY_NAME)]
    assert not raw, "use or add a property of hlo/instruction_attributes.py:\n" + "\n".join(raw)
