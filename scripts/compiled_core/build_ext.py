"""The command of setuptools that compiles extension modules, with a C compiler per core."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from setuptools.command.build_ext import build_ext


class ParallelBuildExt(build_ext):
    """Compiles the files of one extension in parallel. setuptools compiles them one by one, and the core is one extension."""

    def build_extensions(self) -> None:
        """Compile and link all extensions."""
        compile_files = self.compiler.compile

        def compile_all(sources: list[str], **options: Any) -> list[str]:
            if len(sources) == 1:
                return compile_files(sources, **options)
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                return [o for objects in pool.map(lambda source: compile_files([source], **options), sources) for o in objects]

        self.compiler.compile = compile_all
        super().build_extensions()
