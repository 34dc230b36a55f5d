"""One release of XLA, in the environment of some Python: what it has, and what it makes of a module.

`follow_release.py` compares two of them. The environment has jaxlib and the XLA:GPU plugin; it need not have hlo-run.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from record_xla_pipelines import LOG, MODULES, lines_of_log
from xla_descriptors import read_files

from hlo_run.codegen.llvm.toolkit import PTXAS, find_in_toolkit
from hlo_run.formats import gpu_plugin
from hlo_run.formats.spelling import FIRST_WITH_ALL, older, target_for
from hlo_run.formats.xla_gpu import EMITTERS_ONLY
from hlo_run.target import DEFAULT_TARGET, preset, to_text_proto

_FIND = """
import importlib.metadata, jax_plugins.xla_cuda13 as plugin
print(importlib.metadata.version("jax-cuda13-pjrt"), list(plugin.__path__)[0])
"""
_AS_IS = "--xla_disable_all_hlo_passes"
# A flag that older releases lack.
_LONG_ELEMENTS = "xla_dump_compact_gte"
_DUMPS = "--xla_dump_hlo_pass_re=.*"
_LIMIT_SECONDS = 600.0


@dataclass(frozen=True)
class Field:
    """A field of a message or a value of an enum: its number, and the name of its type."""

    number: int
    type: str = ""


class Release:
    """The release that a Python has. With a folder `cache`, dumps are kept there."""

    def __init__(self, python: str, cache: Path | None = None) -> None:
        self.python = python
        done = subprocess.run([python, "-c", _FIND], capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{python} has no XLA:GPU plugin: {done.stderr.strip().splitlines()[-1]}")
        self.version, folder = done.stdout.splitlines()[-1].split(maxsplit=1)
        self._plugin = Path(folder, "xla_cuda_plugin.so")
        self._cache = cache / self.version if cache is not None else None

    @cached_property
    def protos(self) -> Mapping[str, Mapping[str, Field]]:
        """The fields of every message and the values of every enum, by full name."""
        found: dict[str, dict[str, Field]] = {}
        for file in read_files(self._plugin).values():
            found.update(_messages(file, file.package))
        return found

    @cached_property
    def flags(self) -> Mapping[str, Field]:
        """The fields of DebugOptions."""
        return self.protos["xla.DebugOptions"]

    def spelled(self, text: str) -> str:
        """Return HLO text as this release reads it."""
        return older(text) if self.number < FIRST_WITH_ALL else text

    @property
    def number(self) -> tuple[int, ...]:
        """The version in numbers."""
        return tuple(int(number) for number in re.findall(r"\d+", self.version))

    def pipelines(self) -> list[list[str]]:
        """Return the passes of three small modules, as `pipeline<TAB>pass`."""
        return [lines_of_log(self._run(module, ["--xla_gpu_autotune_level=0"], LOG).stderr) for module in MODULES]

    def dumps(self, file: Path, flags: Sequence[str] = ()) -> Mapping[str, str] | str:
        """Return the texts that the release dumps of a module, without Triton, by name, or why it refuses the module."""
        kept = self._cache / file.parent.name / f"{file.stem}.zip" if self._cache is not None and not flags else None
        if kept is None or not kept.exists():
            found = self._dumps(file, flags)
            if kept is None:
                return found
            kept.parent.mkdir(parents=True, exist_ok=True)
            with zipfile.ZipFile(kept, "w", zipfile.ZIP_DEFLATED) as archive:
                for name, text in ({"refused": found} if isinstance(found, str) else found).items():
                    archive.writestr(name, text)
        with zipfile.ZipFile(kept) as archive:
            found = {name: archive.read(name).decode() for name in archive.namelist()}
        return found.get("refused", found)

    def _dumps(self, file: Path, flags: Sequence[str]) -> dict[str, str] | str:
        text = self.spelled(file.read_text(encoding="utf-8"))
        as_is = [_AS_IS] if "is_scheduled=true" in text.split("\n", 1)[0] else []
        long_elements = [f"--{_LONG_ELEMENTS}=false"] if _LONG_ELEMENTS in self.flags else []
        with tempfile.TemporaryDirectory() as folder:
            given = [*EMITTERS_ONLY, "--xla_gpu_autotune_level=0", *as_is, *long_elements, _DUMPS, *flags]
            done = self._run(text, [*_merged(given), f"--xla_dump_to={folder}"])
            if done.returncode:
                return (done.stderr.strip().splitlines() or ["no message"])[-1]
            return {path.name: path.read_text(encoding="utf-8", errors="replace") for path in sorted(Path(folder).iterdir())}

    def _run(
        self, text: str, flags: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        tool = find_in_toolkit(PTXAS, "")
        where = [f"--xla_gpu_cuda_data_dir={tool.parent.parent}"] if tool is not None else []
        with tempfile.TemporaryDirectory() as folder:
            target = Path(folder, "target.txtpb")
            target.write_text(target_for(to_text_proto(preset(DEFAULT_TARGET)), self.number), encoding="utf-8")
            return subprocess.run(
                [self.python, "-P", gpu_plugin.__file__, str(self._plugin), str(target)],
                input=text,
                env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "2", "XLA_FLAGS": " ".join([*where, *flags])} | dict(environment or {}),
                capture_output=True,
                text=True,
                check=False,
                timeout=_LIMIT_SECONDS,
            )


def _messages(container: Any, scope: str) -> Iterator[tuple[str, dict[str, Field]]]:
    """Yield the messages and enums of a file or message, those inside of others too, with their fields and values."""
    is_file = hasattr(container, "message_type")
    for message in container.message_type if is_file else container.nested_type:
        name = f"{scope}.{message.name}"
        yield name, {field.name: Field(field.number, _type(field)) for field in message.field}
        yield from _messages(message, name)
    for enum in container.enum_type:
        yield f"{scope}.{enum.name}", {value.name: Field(value.number) for value in enum.value}


def _type(field: Any) -> str:
    """Return the name of a field's type, such as `bool` or `repeated xla.ShapeProto`."""
    kind = field.type_name.lstrip(".") or field.Type.Name(field.type).removeprefix("TYPE_").lower()
    return f"repeated {kind}" if field.label == field.LABEL_REPEATED else kind


def _merged(flags: Sequence[str]) -> list[str]:
    """Return the flags with all that disable passes as one, since XLA takes the last."""
    prefix = "--xla_disable_hlo_passes="
    names = [flag.removeprefix(prefix) for flag in flags if flag.startswith(prefix)]
    return [*(flag for flag in flags if not flag.startswith(prefix)), prefix + ",".join(names)]
