"""The compiled core of wheels (docs/compiled_core.md). Everything else about the package is in pyproject.toml."""

import sys
from pathlib import Path

from setuptools import setup

sys.path.insert(0, str(Path(__file__).resolve().parent / "scripts"))

from compiled_core.backend import extension_modules
from compiled_core.build_ext import ParallelBuildExt

setup(ext_modules=extension_modules(), cmdclass={"build_ext": ParallelBuildExt})
