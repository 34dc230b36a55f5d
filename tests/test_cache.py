"""The cache directory: what is found, what is damaged, what goes first; and kernels and executables that come from it."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import hlo_run
from hlo_run import cache, cli
from hlo_run.cache import FileCache, choose_cache, digest, open_cache
from hlo_run.options import CompileOptions, FlagOptions, Options, RunOptions, ShowOptions
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.pipeline import compile as compile_module
from hlo_run.pipeline import executable_cache
from hlo_run.pipeline.executable_cache import key_of
from hlo_run.pipeline.kernel_cache import PARTS, KernelCache
from hlo_run.target import preset

MODULE = """HloModule m, is_scheduled=true

ENTRY e {
  p = f32[6,7] parameter(0)
  a = f32[6,7] exponential(p)
  b = f32[6,7] tanh(p)
  ROOT d = f32[6,7] multiply(a, b)
}
"""


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "_chosen", "")
    monkeypatch.delenv("HLO_RUN_CACHE", raising=False)


def test_what_was_put_is_found_until_it_is_damaged(tmp_path: Path) -> None:
    files = FileCache(tmp_path, "kind")
    key = digest("a", "b")
    assert key != digest("a b")
    assert key != digest("ab", "")
    assert files.get(key) is None
    files.put(key, b"\0data")
    assert files.get(key) == b"\0data"
    assert FileCache(tmp_path, "other").get(key) is None
    file = tmp_path / "kind" / key
    file.write_bytes(file.read_bytes()[:-1])
    assert files.get(key) is None


def test_a_directory_that_cannot_be_made_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no directory")
    files = FileCache(tmp_path / "file", "kind")
    files.put("k", b"data")
    assert files.get("k") is None
    FileCache(tmp_path / ("n" * 5000), "kind").clean()


def test_files_that_were_not_asked_for_go_first(tmp_path: Path) -> None:
    files = FileCache(tmp_path, "kind", limit_bytes=5 * (1000 + 64))
    for number in range(6):
        FileCache(tmp_path, f"kind{number % 2}").put(str(number), bytes(1000))
        moment = time.time() - 100 + number
        os.utime(tmp_path / f"kind{number % 2}" / str(number), (moment, moment))
    assert FileCache(tmp_path, "kind0").get("0") is not None, "asked for just now"
    files.clean()
    left = {file.name for file in tmp_path.glob("*/*")}
    assert left == {"0", "3", "4", "5"}


def test_putting_cleans_now_and_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some 64 times while as much as the limit is written, so that the cache stays small and most files cost no walk."""
    small = FileCache(tmp_path / "small", "kind", limit_bytes=20_000)
    for number in range(100):
        small.put(str(number), bytes(1000))
    assert sum(file.stat().st_size for file in tmp_path.glob("*/*/*")) < 25_000
    cleaned: list[FileCache] = []

    def clean(files: FileCache) -> None:
        cleaned.append(files)

    monkeypatch.setattr(FileCache, "clean", clean)
    large = FileCache(tmp_path / "large", "kind", limit_bytes=64 * 1000 * 20)
    for number in range(100):
        large.put(str(number), bytes(1000))
    assert 1 <= len(cleaned) <= 15, "once in 20 files, in the mean"


def test_where_it_is(tmp_path: Path, chosen: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert open_cache("k") == FileCache(tmp_path / "hlo-run", "k")
    monkeypatch.setenv("HLO_RUN_CACHE", str(tmp_path / "mine"))
    assert open_cache("k") == FileCache(tmp_path / "mine", "k")
    choose_cache("off")
    assert open_cache("k") is None
    choose_cache(str(tmp_path / "other"))
    assert open_cache("k") == FileCache(tmp_path / "other", "k")


def test_no_home_no_cache(chosen: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home(_: type[Path]) -> Path:
        raise RuntimeError("no home")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", classmethod(no_home))
    assert open_cache("k") is None


# Other tests have no caches.
_CACHES = KernelCache.open, executable_cache.open_for


@dataclasses.dataclass
class _Command:
    """Runs the module with a cache of its own."""

    folder: Path
    compiled: list[int]

    def __call__(self, *flags: str) -> list[int]:
        """Return how many kernels each compilation of a run has compiled."""
        file = self.folder / "m.hlo"
        file.write_text(MODULE)
        self.compiled.clear()
        assert cli.run(["--platform=Host", f"--cache={self.folder / 'cache'}", *flags, str(file)]) == 0
        return list(self.compiled)


@pytest.fixture
def command(tmp_path: Path, chosen: None, monkeypatch: pytest.MonkeyPatch) -> _Command:
    first, command = compile_module._compile_missing, _Command(tmp_path, [])  # pyright: ignore[reportPrivateUsage]

    def counted(ctx: PassContext, requests: Any) -> Any:
        command.compiled.append(len(requests))
        return first(ctx, requests)

    monkeypatch.setattr(compile_module, "_compile_missing", counted)
    monkeypatch.setattr(KernelCache, "open", _CACHES[0])
    monkeypatch.setattr(executable_cache, "open_for", _CACHES[1])
    return command


def test_a_second_run_compiles_nothing(command: _Command) -> None:
    assert command() == [3]
    assert command() == [], "the whole executable is found"
    _damage(command.folder, "executables")
    assert command() == [0], "each of the kernels is found"
    _damage(command.folder, "executables", "kernels")
    assert command() == [3]


def _damage(folder: Path, *kinds: str) -> None:
    for file in [file for kind in kinds for file in (folder / "cache" / kind).iterdir()]:
        file.write_bytes(b"damaged")


def test_other_targets_and_levels_have_other_kernels(command: _Command) -> None:
    assert command() == [3]
    assert command("--target=v100") == [3]
    assert command("--xla_backend_optimization_level=1") == [3]
    assert command("--disable_kernel_passes=cse") == [3]
    assert command("--cache=off") == [3]
    assert command() == []


def _other_value(field: dataclasses.Field[Any]) -> object:
    """Return a value that a field of options does not have by default."""
    match field.default:
        case bool(value):
            return not value
        case int(value) | float(value):
            return value + 1
        case _:
            return next((choice for choice in field.metadata["choices"] if choice != field.default), "other")


_FIELDS = dataclasses.fields(CompileOptions)


@pytest.mark.parametrize("field", _FIELDS, ids=[field.name for field in _FIELDS])
def test_every_option_of_compilation_is_in_both_keys_or_says_why_not(field: dataclasses.Field[Any], tmp_path: Path) -> None:
    module, cache = hlo_run.parse(MODULE), FileCache(tmp_path, "kernels")
    values: dict[str, Any] = {field.name: _other_value(field)}
    contexts = [PassContext(preset("h100"), options) for options in (CompileOptions(), CompileOptions(**values))]
    executables = [key_of(ctx, module) for ctx in contexts]
    kernels = [KernelCache(cache, ctx).base for ctx in contexts]
    stays = bool(field.metadata["no_effect"])
    assert (executables[0] == executables[1], kernels[0] == kernels[1]) == (stays, stays)


def test_passes_see_the_options_of_compilation_only() -> None:
    """The record that a command line hands to passes has no other fields, so no other option can change what they make."""
    assert type(Options(seed=7, v=3).compile) is CompileOptions
    records = (CompileOptions, RunOptions, ShowOptions, FlagOptions)
    names = [name for record in records for name in vars(record) if not name.startswith("_")]
    assert len(set(names)) == len(names), "a record must not hide what another one has"


def test_a_kernel_depends_on_the_sources_that_make_it() -> None:
    code = (
        "import sys, hlo_run.pipeline.kernels\n"
        "names = [name for name, module in sys.modules.items() if hasattr(module, '__path__')]\n"
        "print(*{name.split('.')[1] for name in names if name.startswith('hlo_run.')})\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) <= set(PARTS)


def test_another_module_another_executable() -> None:
    """Names do not matter to what is computed, yet kernels are called by them."""
    ctx = PassContext(preset("h100"), Options())
    texts = [MODULE, MODULE.replace("tanh", "cosine"), MODULE.replace(" b)", " renamed)").replace("  b =", "  renamed =")]
    keys = [key_of(ctx, hlo_run.parse(text)) for text in (*texts, MODULE)]
    assert len(set(keys)) == 3
    assert keys[0] == keys[3]
    assert key_of(PassContext(preset("v100"), Options()), hlo_run.parse(MODULE)) != keys[0]
    assert key_of(PassContext(preset("h100"), Options(xla_fuel="algsimp=1")), hlo_run.parse(MODULE)) != keys[0]
    assert key_of(PassContext(preset("h100"), Options(seed=7, compile_processes=3)), hlo_run.parse(MODULE)) == keys[0]


def test_who_watches_sees_everything(command: _Command) -> None:
    assert command() == [3]
    assert command("--v=1") == [3]
    assert command(f"--xla_dump_to={command.folder / 'dump'}") == [3]


def test_a_new_directory_is_private(tmp_path: Path) -> None:
    FileCache(tmp_path / "new" / "cache", "kernels").put(digest("k"), b"data")
    for folder in (tmp_path / "new" / "cache", tmp_path / "new" / "cache" / "kernels"):
        assert folder.stat().st_mode & 0o777 == 0o700


def test_a_directory_that_others_can_write_to_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for mode, is_used in ((0o777, False), (0o775, True), (0o700, True)):
        folder = tmp_path / f"{mode:o}"
        folder.mkdir()
        folder.chmod(mode)
        monkeypatch.setenv(cache.VARIABLE, str(folder))
        assert (choose_cache("") == "") == is_used
        assert (open_cache("kernels") is not None) == is_used


def test_a_directory_of_another_user_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path))
    monkeypatch.setattr(cache, "_SUPERUSER", -1)
    monkeypatch.setattr(cache.os, "geteuid", lambda: tmp_path.stat().st_uid + 1)
    assert "belongs to another user" in choose_cache("")
    assert open_cache("kernels") is None


def test_the_default_directory_is_taken_from_the_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(cache.VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "hlo-run").mkdir()
    (tmp_path / "hlo-run").chmod(0o777)
    assert choose_cache("") == ""
    assert (tmp_path / "hlo-run").stat().st_mode & 0o777 == 0o755
