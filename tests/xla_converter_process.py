"""The process of `xla_converter.Converter`: it imports jaxlib, and converts each module in a fork."""

from __future__ import annotations

import gc
import importlib
import importlib.util
import io
import os
import pickle
import sys
import tempfile
from typing import Any, NoReturn


def _serve() -> None:
    spec = importlib.util.spec_from_file_location("conversions", sys.argv[1])
    assert spec is not None
    assert spec.loader is not None
    program: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    importlib.import_module("jaxlib._hlo")
    importlib.import_module("jaxlib._jax")
    gc.freeze()  # a fork that collects garbage would copy all memory
    requests = sys.stdin.buffer
    with os.fdopen(os.dup(1), "wb") as answers:
        while True:
            try:
                name, data = pickle.load(requests)
            except EOFError:
                return
            with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as said:
                child = os.fork()
                if child == 0:
                    _convert(program, name, data, output.fileno(), said.fileno())
                code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
                output.seek(0)
                said.seek(0)
                pickle.dump((code, output.read(), said.read()), answers)
            answers.flush()


def _convert(program: Any, name: str, data: bytes, output: int, said: int) -> NoReturn:
    """Do in a fork what `python conversions.py NAME` does."""
    code = 1
    try:
        os.dup2(output, 1)
        os.dup2(said, 2)
        sys.argv = ["conversions.py", name]
        sys.stdin = io.TextIOWrapper(io.BytesIO(data))
        code = program.main()
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:  # as Python ends
        sys.excepthook(*sys.exc_info())  # pyright: ignore[reportArgumentType] - there is an exception
    finally:
        os._exit(code)


if __name__ == "__main__":
    _serve()
