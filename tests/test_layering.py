"""The layers of docs/architecture.md: imports go only up the list, never within a line, and have no cycles."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent / "hlo_run"

_DOCUMENT = PACKAGE.parent / "docs" / "architecture.md"
_ROW = re.compile(r"^\| (\d+) \| ((?:`[\w.]+`,? ?)+)\| (.+) \|$", re.MULTILINE)


def _rows() -> list[tuple[tuple[str, ...], str]]:
    """The layers as the document lists them: the names of a line, and why they lie there."""
    text = _DOCUMENT.read_text(encoding="utf-8").partition("\n## Layers\n")[2].partition("\n## ")[0]
    found = [(int(row[1]), tuple(re.findall(r"[\w.]+", row[2])), row[3]) for row in _ROW.finditer(text)]
    assert [number for number, _, _ in found] == list(range(len(found))), "the lines are numbered from 0"
    return [(names, reason) for _, names, reason in found]


LAYERS = tuple(names for names, _ in _rows())
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
    "xdsl": ("dialects", "codegen", "pipeline", "interpret", "triage/reduce_kernel.py"),
    "click": ("cli.py", "tool.py", "tools"),
    "scipy": ("backends/library/lapack.py",),
    "rich": ("cli.py", "terminal.py"),
    "jaxlib": ("formats",),
    "jax": ("formats",),
    "google": ("formats",),  # the protobuf package
    "ml_dtypes": ("hlo", "reference", "backends", "codegen", "interpret", "sharding"),
    "numpy": (
        *("hlo", "hlo_passes", "reference", "backends", "codegen", "runtime", "pipeline", "ops", "analysis", "dialects"),
        *("arrays", "elementary", "formats", "builder", "fuzz", "interpret", "region_checks", "sharding"),
    ),
}
_WITHOUT_STRUCTS = ("cli", "containment", "errors", "garbage_collection", "loading", "options", "version")
_MOST_FILES = 25
_LOOPS = "control_flow.loops."
# A pass that takes a step of another one, and the reason.
PASSES_THAT_SHARE = {
    ("control_flow.hlo_module_dce", "control_flow.loops.while_loop_simplifier"): "XLA's pass runs the other one",
    (
        "control_flow.loops.while_loop_concat_code_motion",
        "control_flow.loops.while_loop_simplifier",
    ): "XLA's pass runs the other one",
    ("fusion.custom_fusion_inliner", "fusion.fusion_wrapper"): "what it inlines is wrapped again at once",
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


def _room(name: str) -> str:
    """The name in the list of layers that holds a folder: its own, or that of the nearest folder around it."""
    known = {known for names in LAYERS for known in names}
    around = name
    while around not in known:
        assert "." in around, f"{name} has no layer"
        around = around.rpartition(".")[0]
    return around


def _layer(room: str) -> int:
    return next(number for number, names in enumerate(LAYERS) if room in names)


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
        theirs, own = _room(target), _room(owner)
        if theirs == own or _layer(theirs) < _layer(own):
            return ""
        return f"layer {_layer(own)} must not import layer {_layer(theirs)}"
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


def test_the_parts_of_a_folder_do_not_import_each_other_in_circles() -> None:
    """Of every folder, its files and the folders in it: what lies in a folder counts as the folder."""
    folders = {path.parent.relative_to(PACKAGE).as_posix().replace("/", ".").removeprefix(".") for path in _files()}
    modules = {path.relative_to(PACKAGE).with_suffix("").as_posix().replace("/", "."): path for path in _files()}
    circles: dict[str, list[list[str]]] = {}
    for folder in folders:
        prefix = f"{folder}." if folder else ""
        imports: dict[str, set[str]] = {}
        for name, path in modules.items():
            if not name.startswith(prefix) or name.endswith("__init__"):
                continue
            part = name.removeprefix(prefix).split(".")[0]
            ours = (target.removeprefix("hlo_run.") for target, _ in _imports(path) if target.startswith("hlo_run."))
            others = {target.removeprefix(prefix).split(".")[0] for target in ours if target.startswith(prefix)}
            imports.setdefault(part, set()).update(others - {part})
        if found := _circles(imports):
            circles[folder] = found
    assert not circles


_A_PASS = re.compile(r"^    def apply\(self, \w+: (?:Pass)?Context, \w+: (?:HloModule|ModuleOp)\b", re.MULTILINE)


@cache
def _passes() -> dict[str, Path]:
    """The modules that define a pass, by dotted name."""
    folders = ("hlo_passes", "sharding", "codegen/kernel_passes")
    files = [path for folder in folders for path in (PACKAGE / folder).rglob("*.py")]
    return {
        "hlo_run." + path.relative_to(PACKAGE).with_suffix("").as_posix().replace("/", "."): path
        for path in sorted(files)
        if _A_PASS.search(path.read_text(encoding="utf-8"))
    }


def _shares(importer: str, imported: str) -> bool:
    prefix = "hlo_run.hlo_passes."
    return (importer.removeprefix(prefix), imported.removeprefix(prefix)) in PASSES_THAT_SHARE


def test_passes_do_not_import_each_other() -> None:
    wrong = [
        f"{path.relative_to(PACKAGE)}:{line}: {name}"
        for importer, path in _passes().items()
        for name, line in _imports(path)
        if name in _passes() and not _shares(importer, name)
    ]
    assert not wrong, "\n".join(wrong)


def test_a_kind_of_passes_takes_steps_of_no_other_kind() -> None:
    """A feature lies in one folder: what several kinds of passes need lies in `subgraphs`."""
    wrong: list[str] = []
    for path in sorted((PACKAGE / "hlo_passes").rglob("*.py")):
        kind, *_ = path.relative_to(PACKAGE / "hlo_passes").parts
        importer = "hlo_run." + path.relative_to(PACKAGE).with_suffix("").as_posix().replace("/", ".")
        for name, line in _imports(path):
            other = name.removeprefix("hlo_run.hlo_passes.").split(".")[0]
            is_other = name.startswith("hlo_run.hlo_passes.") and other not in (kind, "subgraphs")
            if is_other and not _shares(importer, name):
                wrong.append(f"{path.relative_to(PACKAGE)}:{line}: {name}")
    assert not wrong, "\n".join(wrong)


def test_a_step_of_one_kind_of_passes_lies_with_them() -> None:
    """What lies in `subgraphs` serves several kinds, itself or through other files of `subgraphs`."""
    kinds: dict[str, set[str]] = {}
    users: dict[str, set[str]] = {}
    prefix = "hlo_run.hlo_passes.subgraphs."
    for path in _files():
        importer = "hlo_run." + path.relative_to(PACKAGE).with_suffix("").as_posix().replace("/", ".")
        for name in {name for name, _ in _imports(path) if name.startswith(prefix)}:
            if importer.startswith(prefix):
                users.setdefault(name, set()).add(importer)
            else:
                kinds.setdefault(name, set()).add(".".join(importer.split(".")[1:3]))

    def served(step: str) -> set[str]:
        return kinds.get(step, set()).union(*(served(user) for user in users.get(step, ())))

    assert len(served(prefix + "inlining")) > 2, "the rule sees the kinds"
    alone = {step: served(step) for step in kinds.keys() | users.keys() if len(served(step)) < 2}
    assert not alone, f"move each to the passes that it serves: {alone}"


def test_the_rule_sees_all_passes() -> None:
    assert len([name for name in _passes() if name.startswith("hlo_run.hlo_passes.")]) > 120
    assert len([name for name in _passes() if name.startswith("hlo_run.codegen.")]) > 20
    assert "hlo_run.sharding.partitioning.spmd_partitioning" in _passes()


def test_every_layer_says_why_and_there_are_few() -> None:
    assert all(len(reason) > 15 for _, reason in _rows())
    assert 15 < len(LAYERS) <= 22


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
