"""Record how the functions of NVIDIA's bindings are called, for the tests of the CUDA platform's libraries.

    PYTHON scripts/record_bindings.py > tests/data/nvidia_bindings.json

PYTHON has nvmath-python and cuda-bindings; no device is needed. Of each module that `hlo_run/backends/cuda/` uses: the functions
with the names of their parameters (the first line of their documentation says them), the enumerations with their numbers.
"""

from __future__ import annotations

import enum
import importlib
import importlib.metadata
import json
import re
from typing import Any

_MODULES = {
    "cublasLt": "nvmath.bindings.cublasLt",
    "cublas": "nvmath.bindings.cublas",
    "cufft": "nvmath.bindings.cufft",
    "cusolverDn": "nvmath.bindings.cusolverDn",
    "nvmath": "nvmath",
    "driver": "cuda.bindings.driver",
}
_SIGNATURE = re.compile(r"\w+\((.*?)\)(?: -> .*)?$")
_USED = re.compile(
    r"matmul|matrix_layout|get_matmul|get_matrix|^create$|^destroy$|^set_stream$|trsm|^[sd]scal$|^csscal$|^zdscal$|potrf|make_plan_many64"
    r"|set_work_area|set_auto_allocation|^xt_exec$|^cuStream(Begin|End)Capture$|^cuGraph(Instantiate|Launch|Destroy|ExecDestroy)$"
    r"|^cuGetErrorString$"
)
_ENUMS = """Epilogue MatmulDescAttribute MatrixLayoutAttribute MatmulPreferenceAttribute ComputeType Operation FillMode SideMode
    DiagType Type CudaDataType""".split()


def _module(name: str) -> dict[str, Any]:
    module = importlib.import_module(name)
    functions: dict[str, list[str]] = {}
    for key in sorted(vars(module)):
        first = (getattr(module, key).__doc__ or "").strip().split("\n")[0]
        found = _SIGNATURE.match(first)
        if _USED.search(key) and callable(getattr(module, key)) and found is not None:
            functions[key] = [part.strip() for part in found[1].split(",") if part.strip()]
    enums = {
        key: {member.name: int(member) for member in getattr(module, key)}
        for key in _ENUMS
        if isinstance(getattr(module, key, None), enum.EnumMeta)
    }
    return {"functions": functions, "enums": enums}


def main() -> None:
    """Print the record."""
    versions = {name: importlib.metadata.version(name) for name in ("nvmath-python", "cuda-bindings")}
    record = {"versions": versions, **{short: _module(name) for short, name in _MODULES.items()}}
    print(json.dumps(record, indent=1, sort_keys=True))


if __name__ == "__main__":
    main()
