"""Writes the pictures that scripts draw, or checks that they are current."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path


def write_or_check(about: str | None, path: Path, picture: Callable[[], str]) -> int:
    """Write the picture to `path`, or with --check compare it with the file. Return the exit code. `about` is the help."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if the picture is not current")
    if not parser.parse_args().check:
        path.write_text(picture(), encoding="utf-8")
        return 0
    return int(not path.exists() or path.read_text(encoding="utf-8") != picture())
