"""The layers of docs/architecture.md: imports go only up the list, never within a line, and have no cycles."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent / "hlo_run"

# A line may import from the lines above it, never from below, never from a neighbour on its own line. A folder's name
# stands for the files directly in it.
LAYERS: tuple[tuple[str, ...], ...] = tuple(
    tuple(line.split())
    for line in """
        garbage_collection native_record
        errors cache colours columns interrupts loading records version walks whole_files
        containment
        options target artifact custom_calls elementary indexing parallel processes
        hlo.values
        hlo.attributes hlo.opcodes hlo.shardings
        hlo
        hlo.text hlo.verify dialects formats
        ops dialects.editing
        analysis builder reference
        analysis.sharding analysis.tiling reference.arguments reference.compare reference.numerics
        analysis.buffers analysis.cost analysis.layout reference.evaluate
        analysis.fusion analysis.latency reference.sensitivity
        hlo_passes hlo_passes.dynamic hlo_passes.subgraphs hlo_passes.subgraphs.loops
        hlo_passes.code_motion hlo_passes.communication hlo_passes.partitioning hlo_passes.precision hlo_passes.propagation
        hlo_passes.shardy hlo_passes.pipelining
        hlo_passes.simplifiers.algebraic hlo_passes.gemm hlo_passes.partitioning.handlers fuzz.program triage.edits
        hlo_passes.collectives hlo_passes.control_flow hlo_passes.dots hlo_passes.fusion hlo_passes.layout hlo_passes.memory
        hlo_passes.library hlo_passes.reductions hlo_passes.simplifiers hlo_passes.expanders hlo_passes.asynchronous
        hlo_passes.collectives.all_gather hlo_passes.collectives.all_reduce hlo_passes.collectives.combiners
        hlo_passes.collectives.exchange hlo_passes.expanders.indexed hlo_passes.expanders.linalg hlo_passes.expanders.sorts
        codegen codegen.elemental codegen.to_llvm codegen.llvm runtime fuzz.families fuzz.mutations
        codegen.kernel_passes codegen.kernel_passes.pdl codegen.emitters codegen.gpu_modules
        backends backends.host.ptx backends.host.numerics pipeline.observers
        backends.library backends.host.emulator
        backends.host.jit backends.exchange
        backends.host backends.cuda
        pipeline platforms
        triage.diff triage.interpret triage.regions kernel_checks
        execution
        report triage.localize
        commands fuzz
        api terminal
        cli
        triage
        tools
        tool
    """.strip().splitlines()
)
# `hlo_run` itself is the package's front door: it names what users import, and no other file imports it.
FRONT = {
    "__init__": {"hlo", "hlo.values", "ops", "errors", "builder", "api", "custom_calls", "version"},
    "__main__": {"cli"},
}
THIRD_PARTY: dict[str, tuple[str, ...]] = {
    "pycuda": ("backends/cuda",),
    "cuda": ("backends/cuda",),
    "nccl": ("backends/cuda",),
    "llvmlite": ("codegen/llvm", "backends/host"),
    "xdsl": ("dialects", "codegen", "pipeline", "triage/interpret", "triage/reduce_kernel.py"),
    "click": ("cli.py", "tool.py", "tools"),
    "scipy": ("backends/library/lapack.py",),
    "rich": ("cli.py", "terminal.py"),
    "jaxlib": ("formats",),
    "jax": ("formats",),
    "google": ("formats",),  # the protobuf package
    "ml_dtypes": ("hlo", "reference", "backends", "codegen", "triage/interpret"),
    "numpy": (
        *("hlo", "hlo_passes", "reference", "backends", "codegen", "runtime", "pipeline", "ops", "analysis", "dialects"),
        *("elementary", "formats", "builder", "fuzz", "triage/interpret", "triage/regions"),
    ),
}
_WITHOUT_STRUCTS = ("cli", "containment", "errors", "garbage_collection", "loading", "options", "version")
_MOST_FILES = 25
# A pass that takes a step of another one, and the reason.
PASSES_THAT_SHARE = {
    ("control_flow/hlo_module_dce.py", "control_flow.while_loop_simplifier"): "XLA's pass runs the other one",
    ("control_flow/while_loop_concat_code_motion.py", "control_flow.while_loop_simplifier"): "XLA's pass runs the other one",
    ("library/custom_fusion_inliner.py", "fusion.fusion_wrapper"): "what it inlines is wrapped again at once",
}


@cache
def _files() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


@cache
def _modules() -> frozenset[str]:
    """The dotted names of all modules below `hlo_run`, packages included."""
    names = (path.relative_to(PACKAGE).with_suffix("").as_posix().replace("/", ".") for path in _files())
    return frozenset(name.removesuffix(".__init__") for name in names)


def _owner(path: Path) -> str:
    """The name of a file's folder; of a file at the top its own."""
    relative = path.relative_to(PACKAGE)
    return ".".join(relative.parts[:-1]) or relative.stem


def _owner_of(module: str) -> str:
    """The folder of a module below `hlo_run`; the module itself if it is a package or at the top."""
    path = PACKAGE.joinpath(*module.split("."))
    return module if path.is_dir() or "." not in module else module.rsplit(".", 1)[0]


def _layer(name: str) -> int:
    found = [number for number, names in enumerate(LAYERS) if name in names]
    assert found, f"{name} has no layer"
    return found[0]


# An import begins a line of its own, as ruff demands. To parse only these takes a tenth of the time.
_STATEMENT = re.compile(r"^[ \t]*((?:from[ \t]+[\w.]+[ \t]+)?import\b[^(\n]*(?:\([^)]*\))?)", re.MULTILINE)


def _import_statements(text: str) -> Iterator[ast.Import | ast.ImportFrom]:
    for found in _STATEMENT.finditer(text):
        (node,) = ast.parse(found[1]).body
        assert isinstance(node, ast.Import | ast.ImportFrom)
        yield ast.increment_lineno(node, text.count("\n", 0, found.start(1)))


@cache
def _imports(path: Path) -> list[tuple[str, int]]:
    """Return (dotted name, line) of everything a file imports, inside functions too; of our own the module."""
    found: list[tuple[str, int]] = []
    for node in _import_statements(path.read_text(encoding="utf-8")):
        if isinstance(node, ast.Import):
            found += [(alias.name, node.lineno) for alias in node.names]
        else:
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                ours = full.removeprefix("hlo_run.")
                found.append((full if ours in _modules() else node.module or "", node.lineno))
    return found


def _violation(path: Path, name: str) -> str:
    """Return why `path` must not import `name`, or nothing."""
    owner = _owner(path)
    first = name.split(".")[0]
    if first == "hlo_run":
        module = name.removeprefix("hlo_run").removeprefix(".")
        if not module:
            return "hlo_run is the front door: import the module that has the name"
        target = _owner_of(module)
        if target == owner:
            return ""
        if owner in FRONT:
            return "" if target in FRONT[owner] else f"{owner} is the front door for {sorted(FRONT[owner])} only"
        return "" if _layer(target) < _layer(owner) else f"layer {_layer(owner)} must not import layer {_layer(target)}"
    if first == "msgspec":
        return f"{owner} is imported by --help, which msgspec would slow down" if owner in _WITHOUT_STRUCTS else ""
    allowed = THIRD_PARTY.get(first)
    if allowed is not None:
        relative = path.relative_to(PACKAGE).as_posix()
        return "" if relative.startswith(allowed) else f"{first} belongs into {', '.join(allowed)}"
    return "" if first in sys.stdlib_module_names else "not a known dependency"


def test_imports_follow_the_layers() -> None:
    wrong = [
        f"{path.relative_to(PACKAGE)}:{line}: imports {name}: {reason}"
        for path in _files()
        for name, line in _imports(path)
        if (reason := _violation(path, name))
    ]
    assert not wrong, "\n".join(wrong)


# What backends take from the reference: types of values, and the numbers of devices. `interpreter.py` runs the reference.
_OF_THE_REFERENCE = ("hlo_run.reference.values", "hlo_run.reference.evaluate.devices")


def test_no_backend_computes_with_the_reference() -> None:
    """The reference judges what the backends compute: code that both used would hide its own bugs."""
    wrong = [
        f"{path.relative_to(PACKAGE)}:{line}: imports {name}"
        for path in _files()
        if path.is_relative_to(PACKAGE / "backends") and path.name != "interpreter.py"
        for name, line in _imports(path)
        if name.startswith("hlo_run.reference") and name not in _OF_THE_REFERENCE
    ]
    assert not wrong, "\n".join(wrong)


def test_a_wrong_import_is_found() -> None:
    assert "must not import" in _violation(PACKAGE / "hlo" / "graph.py", "hlo_run.pipeline.runner")
    assert "must not import" in _violation(PACKAGE / "hlo" / "graph.py", "hlo_run.hlo.text.parser"), "inner layers count"
    assert "belongs into" in _violation(PACKAGE / "reference" / "evaluate" / "evaluate.py", "xdsl.ir")


def _circles(imports: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """Return the sets of modules that import each other, directly or not (Tarjan's strongly connected components)."""
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(module: str) -> None:
        number[module] = lowest[module] = len(number)
        stack.append(module)
        for other in imports.get(module, ()):
            if other not in number:
                visit(other)
                lowest[module] = min(lowest[module], lowest[other])
            elif other in stack:
                lowest[module] = min(lowest[module], number[other])
        if lowest[module] == number[module]:
            place = stack.index(module)
            if len(stack) > place + 1:
                found.append(sorted(stack[place:]))
            del stack[place:]

    for module in imports:
        if module not in number:
            visit(module)
    return found


def test_files_do_not_import_each_other_in_circles() -> None:
    """Imports for types alone count too."""
    assert _circles({"a": ["b"], "b": ["c"], "c": ["b"]}) == [["b", "c"]]
    imports = {
        name: sorted({target.removeprefix("hlo_run.") for target, _ in _imports(path)} & _modules())
        for path in _files()
        if (name := path.relative_to(PACKAGE).with_suffix("").as_posix().replace("/", ".").removesuffix(".__init__"))
        != "__init__"
    }
    assert not _circles(imports)


def _passes(folder: str) -> list[Path]:
    return sorted(path for path in (PACKAGE / folder).rglob("*.py") if path.name != "__init__.py")


def test_passes_do_not_import_each_other() -> None:
    wrong: list[str] = []
    steps = ("subgraphs", "dynamic", "simplifiers.algebraic", "gemm", "code_motion", "communication", "precision", "propagation")
    steps = (*steps, "partitioning", "pipelining", "shardy")
    for folder, shared in (("hlo_passes", steps), ("codegen/kernel_passes", ())):
        prefix = "hlo_run." + folder.replace("/", ".") + "."
        for path in _passes(folder):
            place = path.relative_to(PACKAGE / folder).as_posix()
            for name, line in _imports(path):
                target = name.removeprefix(prefix)
                is_face = "." not in target and folder == "hlo_passes"
                if not name.startswith(prefix) or is_face or target.startswith(shared):
                    continue
                if (place, target) not in PASSES_THAT_SHARE:
                    wrong.append(f"{place}:{line}: {name}")
    assert not wrong, "\n".join(wrong)


def test_the_rule_sees_all_passes() -> None:
    assert len(_passes("hlo_passes")) > 120
    assert len(_passes("codegen/kernel_passes")) > 20


def test_no_folder_is_flat_and_long() -> None:
    long: dict[str, int] = {}
    for folder in sorted({path.parent for path in _files()}):
        count = len(list(folder.glob("*.py")))
        has_folders = any(child.is_dir() and child.name != "__pycache__" for child in folder.iterdir())
        if count > _MOST_FILES and not has_folders:
            long[str(folder.relative_to(PACKAGE))] = count
    assert not long, f"over {_MOST_FILES} files: {long}"


def test_every_file_is_short_enough() -> None:
    long = {
        str(path.relative_to(PACKAGE)): count
        for path in _files()
        if (count := len(path.read_text(encoding="utf-8").splitlines())) > 600
    }
    assert not long, f"over 600 lines: {long}"
