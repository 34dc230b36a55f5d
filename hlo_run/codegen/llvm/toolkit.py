"""Finds ptxas and libdevice in the user's directory, the NVIDIA wheel, or a CUDA toolkit."""

from __future__ import annotations

import functools
import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path

LIBDEVICE = "nvvm/libdevice/libdevice.10.bc"
PTXAS = "bin/ptxas.exe" if os.name == "nt" else "bin/ptxas"
_USUAL_PLACE = "/usr/local/cuda"


@functools.cache
def find_in_toolkit(relative_path: str, cuda_data_dir: str = "") -> Path | None:
    """Return the first file `relative_path` (`LIBDEVICE` or `PTXAS`) in the toolkit directories; None if it is not found.

    The order is `--xla_gpu_cuda_data_dir`, the wheel `nvidia-cuda-nvcc-cu12`, `CUDA_HOME`, `/usr/local/cuda`.
    """
    for directory in _toolkit_directories(cuda_data_dir):
        file = directory / relative_path
        if file.is_file():
            return file
    return None


def _toolkit_directories(cuda_data_dir: str) -> Iterator[Path]:
    if cuda_data_dir:
        yield Path(cuda_data_dir)
    yield from _wheel_directories()
    home = os.environ.get("CUDA_HOME", "")
    if home:
        yield Path(home)
    yield Path(_USUAL_PLACE)


def _wheel_directories() -> Iterator[Path]:
    # `nvidia` is a namespace package to which each NVIDIA wheel adds a directory.
    spec = importlib.util.find_spec("nvidia")
    for location in (spec.submodule_search_locations or []) if spec else []:
        yield Path(location) / "cuda_nvcc"
