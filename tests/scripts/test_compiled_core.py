"""The compiled core: structs become classes that behave alike, an edited file is compiled again, both forms write one text."""

from __future__ import annotations

import copy
import importlib
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from hlo_run import cli
from hlo_run.records import IS_COMPILED, field_types, replace

ROOT = Path(__file__).resolve().parent.parent.parent
SAMPLE = '''"""Records."""

from msgspec import Struct, field

SIDES = 2


class Pair(Struct, frozen=True):
    """Two numbers and a name."""

    left: int
    right: int = SIDES
    name: str = field(default="pair")

    @property
    def total(self) -> int:
        return self.left + self.right


class Spot(Struct, frozen=True, cache_hash=True):
    row: int
    column: int = 0


class Basket(Struct, eq=False):
    things: list[int] = field(default_factory=list[int])
    by_name: dict[str, int] = {}

    def __post_init__(self) -> None:
        self.things.append(len(self.things))


def is_one_of(value: int, others: list[int]) -> bool:
    return value in (*others, 7)
'''


@pytest.fixture(name="tool", scope="module")
def _tool() -> Iterator[Callable[[str], ModuleType]]:
    """Return what imports a module of `scripts/compiled_core`."""
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        yield lambda name: importlib.import_module(f"compiled_core.{name}")
    finally:
        sys.path.remove(str(ROOT / "scripts"))


def _module(name: str, text: str) -> Any:
    made = ModuleType(name)
    sys.modules[name] = made
    exec(compile(text, f"{name}.py", "exec"), vars(made))
    return made


def _interrupt(package: Path, modules: list[Any]) -> None:
    raise KeyboardInterrupt


@pytest.fixture(name="forms", params=["struct", "class"])
def _forms(request: pytest.FixtureRequest, tool: Callable[[str], ModuleType]) -> Iterator[Any]:
    if IS_COMPILED and request.param == "class":
        pytest.skip("no class of pure Python has a compiled base")
    name = f"sample_{request.param}"
    yield _module(name, SAMPLE if request.param == "struct" else tool("records").rewrite(SAMPLE, "sample.py"))
    del sys.modules[name]


def test_a_record_behaves_alike_as_a_struct_and_as_a_class(forms: Any) -> None:
    pair = forms.Pair(1)
    assert (pair.left, pair.right, pair.name, pair.total) == (1, 2, "pair", 3)
    assert repr(pair) == "Pair(left=1, right=2, name='pair')"
    assert pair == forms.Pair(1, 2)
    assert hash(pair) == hash(forms.Pair(1, 2))
    assert pair != forms.Pair(2)
    assert pair != (1, 2, "pair")
    changed = pair.copied_with({"left": 5}) if hasattr(pair, "copied_with") else replace(pair, left=5)
    assert changed == forms.Pair(5)
    assert pickle.loads(pickle.dumps(pair)) == pair
    assert copy.copy(pair) == pair
    spot = forms.Spot(1, 2)
    assert hash(spot) == hash(spot) == hash(forms.Spot(1, 2))
    assert spot == forms.Spot(1, 2)
    assert field_types(forms.Pair) == {"left": "int", "right": "int", "name": "str"}


def test_each_record_has_its_own_defaults(forms: Any) -> None:
    one, two = forms.Basket(), forms.Basket([4])
    assert (one.things, two.things) == ([0], [4, 1])
    one.by_name["a"] = 1
    assert two.by_name == {}
    assert one != forms.Basket()
    assert forms.is_one_of(7, [])
    assert not forms.is_one_of(1, [2])


def test_statements_keep_their_lines(tool: Callable[[str], ModuleType]) -> None:
    before, after = SAMPLE.splitlines(), tool("records").rewrite(SAMPLE, "sample.py").splitlines()
    for text in ("SIDES = 2", "        return self.left + self.right", "    def __post_init__(self) -> None:"):
        assert before.index(text) == after.index(text)


def test_docstrings_of_modules_are_kept(tool: Callable[[str], ModuleType]) -> None:
    for text in ("X = 1\n", "from msgspec import Struct\n\n\nclass A(Struct):\n    x: int\n"):
        rewritten = tool("records").rewrite(f'"""Tells "why".\n\nAnd how."""\n{text}', "sample.py")
        assert rewritten.splitlines()[-1 if "Struct" not in text else -3] == "__doc__ = 'Tells \"why\".\\n\\nAnd how.'"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("class A(Struct, gc=False):", "struct A has the option gc"),
        ("class A(Base, Struct):", "is not one line with the base Struct alone"),
    ],
)
def test_what_the_rewriting_does_not_know_is_refused(tool: Callable[[str], ModuleType], line: str, message: str) -> None:
    records = tool("records")
    with pytest.raises(records.NotCompilable, match=message):
        records.rewrite(f"from msgspec import Struct\n\n\n{line}\n    x: int\n", "a.py")


def test_every_listed_file_can_be_rewritten(tool: Callable[[str], ModuleType]) -> None:
    for file in tool("build").listed_files():
        compile(tool("records").rewrite((ROOT / file).read_text(encoding="utf-8"), file), file, "exec")


def test_an_edited_file_is_compiled_again(
    tool: Callable[[str], ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = tool("build")
    compiled: list[str] = []

    def extensions(folder: Path, root: Path) -> list[Any]:
        compiled.append((root / "hlo_run" / "core.py").read_text())
        return []

    def compile_into(package: Path, modules: list[Any]) -> None:
        (package / "hlo_run" / "core.so").write_text(compiled[-1])

    for name, value in (("extensions", extensions), ("compile_into", compile_into), ("LIST", tmp_path / "files.txt")):
        monkeypatch.setattr(build, name, value)
    (tmp_path / "files.txt").write_text("core.py\n")
    sources, target = tmp_path / "hlo_run", tmp_path / "out" / "package" / "hlo_run"
    sources.mkdir()

    def built(core: str, other: str) -> bool:
        (sources / "core.py").write_text(core)
        (sources / "other.py").write_text(other)
        is_new = build.build(tmp_path / "out", tmp_path)
        assert {path.name: path.read_text() for path in target.iterdir()} == {"core.py": core, "other.py": other, "core.so": core}
        return is_new

    assert built("a", "b")
    assert not built("a", "c")
    assert built("d", "c")
    # What ended early is not taken for complete.
    monkeypatch.setattr(build, "compile_into", _interrupt)
    with pytest.raises(KeyboardInterrupt):
        built("e", "c")
    monkeypatch.setattr(build, "compile_into", compile_into)
    assert built("e", "c")


def test_a_pure_wheel_needs_no_mypy(tool: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch) -> None:
    backend = tool("backend")
    monkeypatch.setattr(backend.build_meta, "get_requires_for_build_wheel", list[str])
    monkeypatch.delenv("HLO_RUN_PURE", raising=False)
    assert backend.get_requires_for_build_wheel(()) == ([] if backend.why_pure() else [backend.MYPY])
    monkeypatch.setenv("HLO_RUN_PURE", "1")
    assert backend.get_requires_for_build_wheel(()) == []
    assert f'"{backend.MYPY}"' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    # Neither does an editable install, which stays pure Python.
    monkeypatch.setattr(sys, "argv", ["setup.py", "editable_wheel"])
    assert backend.extension_modules() == []


def test_the_version_says_which_form_runs(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.run(["--version"])
    assert capsys.readouterr().out.split(" (")[1].startswith("compiled)" if IS_COMPILED else "pure Python)")


@pytest.mark.skipif(not IS_COMPILED, reason="the core is not compiled; scripts/venv.py --compiled pytest")
@pytest.mark.parametrize(("stage", "pattern"), [("hlo", "*"), ("ptx", "[d-e]*")])
def test_both_forms_write_the_same_texts(tmp_path: Path, stage: str, pattern: str) -> None:
    files = sorted(str(path) for path in (ROOT / "tests" / "data" / "fresh_programs").glob(f"{pattern}.hlo"))
    assert len(files) > 5
    command = [sys.executable, "-m", "hlo_run", f"--stage={stage}", "--cache=off", *files]
    compiled_path = os.environ["PYTHONPATH"]
    running = [
        subprocess.Popen(command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.PIPE)
        for path in (str(ROOT), compiled_path)
    ]
    pure, compiled = (process.communicate()[0] for process in running)
    assert len(pure) > 1000 * len(files)
    assert compiled == pure
