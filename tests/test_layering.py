"""The layers of the package, as docs/architecture.md lists them: imports go up the list only, never sideways."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent / "hlo_run"

# A line may import from the lines above it, never from below, never from a neighbour on its own line.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("errors", "options", "target", "artifact", "cache", "collection", "custom_calls"),
    ("hlo", "indexing", "parallel"),
    ("dialects",),
    ("ops",),
    ("analysis", "reference", "builder"),
    ("pipeline", "backends", "formats", "results"),
    ("execution", "isolation", "executables", "executable_cache", "fuzz"),
    ("compilation", "explain", "pass_check", "xla_diff"),
    ("driver", "api", "opt"),
    ("triage", "terminal", "interrupts"),
    ("cli",),
)
# errors.py and options.py stand on one line, yet every record raises the family's errors.
SAME_LINE_ALLOWED = {("options", "errors"), ("target", "errors"), ("artifact", "errors"), ("custom_calls", "errors")}
# `hlo_run` itself is the package's front door: `parse` uses parser, inference and verifier, all other names it hands on;
# the driver may use it.
FRONT = {"__init__": {"collection", "hlo", "ops", "errors", "builder", "api", "custom_calls"}, "__main__": {"cli"}}
THIRD_PARTY: dict[str, tuple[str, ...]] = {
    "pycuda": ("backends/cuda",),
    "cuda": ("backends/cuda",),
    "llvmlite": ("pipeline/llvm", "backends/host"),
    "xdsl": ("dialects", "pipeline"),
    "click": ("cli.py",),
    "rich": ("cli.py", "terminal.py"),
    "jaxlib": ("formats",),
    "jax": ("formats",),
    "google": ("formats",),  # the protobuf package
    "ml_dtypes": ("hlo", "reference", "backends", "pipeline"),
    "numpy": (
        "fuzz",
        "hlo",
        "reference",
        "backends",
        "pipeline",
        "ops",
        "analysis",
        "dialects",
        "formats",
        "builder",
        "driver.py",
    ),
}


def _files() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def _layer(name: str) -> int:
    return next(number for number, names in enumerate(LAYERS) if name in names)


def _owner(path: Path) -> str:
    relative = path.relative_to(PACKAGE)
    return relative.parts[0].removesuffix(".py")


def _imports(path: Path) -> list[tuple[str, int]]:
    """Return (dotted name, line) of everything a file imports, inside functions too."""
    found: list[tuple[str, int]] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            module = node.module or ""
            found += [(f"{module}.{alias.name}", node.lineno) for alias in node.names]
    return found


def _violation(path: Path, name: str) -> str:
    """Return why `path` must not import `name`, or nothing."""
    parts = name.split(".")
    owner = _owner(path)
    relative = path.relative_to(PACKAGE).as_posix()
    if parts[0] == "hlo_run":
        target = parts[1] if len(parts) > 1 else ""
        if target in ("", owner, "parse"):
            return ""
        if owner in FRONT:
            return "" if target in FRONT[owner] else f"{owner} is the front door for {sorted(FRONT[owner])} only"
        if (owner, target) in SAME_LINE_ALLOWED:
            return ""
        return "" if _layer(target) < _layer(owner) else f"layer {_layer(owner)} must not import layer {_layer(target)}"
    allowed = THIRD_PARTY.get(parts[0])
    if allowed is not None:
        return "" if relative.startswith(allowed) else f"{parts[0]} belongs into {', '.join(allowed)}"
    return "" if parts[0] in sys.stdlib_module_names else "not a known dependency"


def test_imports_follow_the_layers() -> None:
    wrong = [
        f"{path.relative_to(PACKAGE)}:{line}: imports {name}: {reason}"
        for path in _files()
        for name, line in _imports(path)
        if (reason := _violation(path, name))
    ]
    assert not wrong, "\n".join(wrong)


def test_a_wrong_import_is_found() -> None:
    assert "must not import" in _violation(PACKAGE / "hlo" / "graph.py", "hlo_run.pipeline.runner")
    assert "belongs into" in _violation(PACKAGE / "reference" / "evaluate.py", "xdsl.ir")


def test_passes_do_not_import_each_other() -> None:
    wrong: list[str] = []
    for folder in ("pipeline/hlo", "pipeline/ir"):
        dotted = "hlo_run." + folder.replace("/", ".")
        for path in sorted((PACKAGE / folder).glob("*.py")):
            wrong += [f"{path.name}:{line}: {name}" for name, line in _imports(path) if name.startswith(dotted + ".")]
    assert not wrong, "\n".join(wrong)


def test_every_file_is_short_enough() -> None:
    long = {
        str(path.relative_to(PACKAGE)): count
        for path in _files()
        if (count := len(path.read_text(encoding="utf-8").splitlines())) > 600
    }
    assert not long, f"over 600 lines: {long}"
