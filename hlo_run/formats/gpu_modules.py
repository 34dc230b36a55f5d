"""Tells modules of MLIR's gpu dialect from other MLIR."""

from __future__ import annotations

import os
import re

from hlo_run.errors import UsageError
from hlo_run.options.text_files import read_text

_GPU_OP = re.compile(
    r"^[^/\n]*\bgpu\.(?:launch|module|func|kernel_module|container_module|thread_id|block_id|all_reduce)", re.MULTILINE
)
_OF_XLA = re.compile(r"^[^/\n]*\b(?:stablehlo|mhlo|vhlo|xla_gpu|chlo)\.", re.MULTILINE)
_DUMP = re.compile(r"// (?:row: |-----// IR Dump)")


def is_gpu_module(file: str, input_format: str = "") -> bool:
    """Tell whether a file is a module of the gpu dialect: MLIR with kernels or launches that is neither HLO nor a dump.

    False for a file that cannot be read.
    """
    if not file.endswith(".mlir") or input_format not in ("", "mlir") or not os.path.isfile(file):
        return False
    try:
        text = read_text(file, "MLIR")
    except UsageError:
        return False
    return _GPU_OP.search(text) is not None and _OF_XLA.search(text) is None and not _DUMP.match(text)
