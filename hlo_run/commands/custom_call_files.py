"""`--custom_calls=FILES.py`: runs Python files that register functions for custom calls."""

from __future__ import annotations

import os
import runpy
import traceback

from hlo_run.errors import HloRunError, UsageError


def load_custom_calls(files: str) -> None:
    """Run the Python files of a comma-separated list; raises UsageError for a file that is missing or raises."""
    for path in filter(None, (name.strip() for name in files.split(","))):
        if not os.path.exists(path):
            raise UsageError(f"--custom_calls={path}: the file does not exist")
        try:
            runpy.run_path(path)
        except (HloRunError, KeyboardInterrupt):
            raise
        except BaseException as error:  # whatever the user's file raises, SystemExit too: its code is not that of a run
            frame = traceback.extract_tb(error.__traceback__)[-1]
            where = f"at {frame.filename}:{frame.lineno}"
            raise UsageError(f"--custom_calls={path}: {type(error).__name__}: {error}", notes=(where,)) from error
