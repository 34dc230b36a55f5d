"""Record the signatures of NVIDIA's bindings, for the tests of the CUDA platform's libraries.

    PYTHON scripts/record_bindings.py > tests/data/nvidia_bindings.json
    PYTHON scripts/record_bindings.py cudnn > tests/data/cudnn_frontend.json

PYTHON has nvmath-python and cuda-bindings, or nvidia-cudnn-frontend; no device is needed. For each module that
`hlo_run/backends/cuda/` uses, the record has the functions with their parameters (from the first line of their documentation) and
the enumerations with their numbers.
"""

from __future__ import annotations

import enum
import importlib
import importlib.metadata
import inspect
import json
import re
import sys
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


# The used part of cuDNN's frontend: functions of the module, methods of graphs and tensors.
_CUDNN_FUNCTIONS = ("create_handle", "destroy_handle", "set_stream")
_CUDNN_GRAPH = """tensor conv_fprop conv_dgrad conv_wgrad add mul bias relu leaky_relu elu sigmoid tanh validate
    build_operation_graph create_execution_plans check_support build_plans get_workspace_size execute""".split()
_CUDNN_TENSOR = ("set_output", "set_uid", "set_data_type", "set_dim", "set_stride")


def _parameters(function: Any) -> list[str]:
    """Return the names of a function's parameters, without `self`."""
    return [name for name in inspect.signature(function).parameters if name != "self"]


def _cudnn() -> dict[str, Any]:
    cudnn = importlib.import_module("cudnn")
    compiled = importlib.import_module("cudnn._compiled_module").backend_graph
    graph: dict[str, list[str]] = {}
    for name in _CUDNN_GRAPH:
        found = _parameters(getattr(cudnn.pygraph, name))
        if "args" in found and (lines := (getattr(compiled, name, None).__doc__ or "").splitlines()):
            # Of several overloads the last one has separate padding for each side.
            heads = [line for line in lines if line.startswith(f"{name}(self, ")]
            found = re.findall(r"(\w+): ", heads[-1]) if heads else found
        graph[name] = found
    return {
        "versions": {"nvidia-cudnn-frontend": importlib.metadata.version("nvidia-cudnn-frontend")},
        "functions": {name: _parameters(getattr(cudnn, name)) for name in _CUDNN_FUNCTIONS},
        "pygraph": _parameters(cudnn.pygraph.__init__),
        "graph": graph,
        "tensor": {
            name: _parameters(getattr(importlib.import_module("cudnn.graph_types").Tensor, name)) for name in _CUDNN_TENSOR
        },
        "enums": {name: list(getattr(cudnn, name).__members__) for name in ("data_type", "heur_mode")},
    }


def main() -> None:
    """Print the record."""
    if sys.argv[1:] == ["cudnn"]:
        print(json.dumps(_cudnn(), indent=1, sort_keys=True))
        return
    versions = {name: importlib.metadata.version(name) for name in ("nvmath-python", "cuda-bindings")}
    record = {"versions": versions, **{short: _module(name) for short, name in _MODULES.items()}}
    print(json.dumps(record, indent=1, sort_keys=True))


if __name__ == "__main__":
    main()
