"""Choose how a library computes each of its calls: without measurements, the default algorithm.

    c = (f32[64,32], s8[33554432]) custom-call(a, b), custom_call_target="__cublas$lt$matmul", backend_config={..}
      =>   c = (f32[64,32], s8[4194304]) custom-call(a, b), .., backend_config={.., "selected_algorithm":"0"}

A product of cuBLASLt gets the first algorithm that needs at most 4 MiB of scratch memory; a convolution of cuDNN gets what the
library chooses. A block-level fusion of a product gets the tile that a flag names, or the first one that suits it. Calls within
fusions stay as they are. XLA's `ConfigAssigner` (formerly `Autotuner`) without a device.
"""

from __future__ import annotations

from typing import ClassVar, cast

from msgspec import Struct

from hlo_run.analysis.block_level.config import TRITON_GEMM, fusion_record, triton_gemm_config
from hlo_run.analysis.block_level.product_tiles import first_tile, given_tile
from hlo_run.analysis.fusion_owner import fusion_owner
from hlo_run.hlo.async_ops import is_async_wrapper
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.hlo.values.backend_config import config_of
from hlo_run.hlo.values.shape import Shape
from hlo_run.hlo_passes.subgraphs.gemm_record import gemm_record, is_call, update_record
from hlo_run.hlo_passes.subgraphs.library_calls import to_json
from hlo_run.pass_support.hlo_pass import PassContext

_WORKSPACE_BYTES = 4 << 20
_PRODUCT = "gemm_backend_config"
_CONVOLUTION = "cudnn_conv_backend_config"
# Fields of the proto with greater numbers than that of the algorithm.
_AFTER_ALGORITHM = ("reordered_int8_nchw_vect", "leakyrelu_alpha", "serialized_graph")
_LIBRARYS_CHOICE: dict[str, object] = {
    "algo_id": "-1",
    "math_type": "DEFAULT_MATH",
    "tuning_knobs": {},
    "is_cudnn_frontend": False,
}


class ConfigAssigner(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "config-assigner"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit in place."""
        for fusion in module.instructions_of("fusion"):
            if fusion_owner(fusion) == TRITON_GEMM and triton_gemm_config(fusion) is None:
                _choose_tile(fusion, ctx)
        for call in module.instructions_of("custom-call"):
            if call.parent is not None and call.parent.is_fusion:
                continue
            if is_call(call) and "selected_algorithm" not in gemm_record(call) and gemm_record(call):
                _choose_product(call)
            elif _CONVOLUTION in (config := config_of(call.backend_config)):
                _choose_convolution(call, config)


def _choose_tile(fusion: HloInstruction, ctx: PassContext) -> None:
    dot = next((i for i in fusion.fused_computation.instructions if i.opcode in ("dot", "scaled-dot")), None)
    if dot is not None:
        options = ctx.options
        given = given_tile(options.xla_gpu_override_gemm_autotuner, options.xla_gpu_gemm_autotuner_override_file)
        record = fusion_record(TRITON_GEMM, given or first_tile(dot, ctx.target))
        fusion.attrs["backend_config"] = to_json(config_of(fusion.backend_config) | {"fusion_backend_config": record})
        fusion.touch()


def _choose_product(call: HloInstruction) -> None:
    parts = call.shape.tuple_shapes
    update_record(call, autotune_workspace_size=str(_WORKSPACE_BYTES), selected_algorithm="0")
    config = config_of(call.backend_config)
    # in the order of the proto's fields, as XLA writes it
    call.attrs["backend_config"] = to_json(config | {_PRODUCT: {"selected_algorithm": "0"} | gemm_record(call)})
    is_wrapped = call.parent is not None and is_async_wrapper(call.parent)  # its shape is that of the start, too
    if parts and not is_wrapped and parts[-1].element_type == "s8" and parts[-1].size_bytes > _WORKSPACE_BYTES:
        call.shape = Shape.make_tuple((*parts[:-1], Shape.array("s8", (_WORKSPACE_BYTES,))))
    call.touch()


def _choose_convolution(call: HloInstruction, config: dict[str, object]) -> None:
    chosen = cast("dict[str, object]", config[_CONVOLUTION])
    if "algorithm" not in chosen:
        last = {name: value for name, value in chosen.items() if name in _AFTER_ALGORITHM}
        chosen = {name: value for name, value in chosen.items() if name not in last}
        call.attrs["backend_config"] = to_json(config | {_CONVOLUTION: chosen | {"algorithm": _LIBRARYS_CHOICE} | last})
        call.touch()
