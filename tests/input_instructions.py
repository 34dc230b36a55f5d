"""Random modules of one instruction whose operands, results and attributes may not fit: of custom calls, and of any opcode."""

from __future__ import annotations

import random

from hlo_run.hlo.opcodes.table import OPCODES

_TARGETS = """__cublas$gemm __cublas$lt$matmul __cublas$lt$matmul$f8 __cudnn$convForward __cudnn$convForwardGraph
    __cudnn$convBackwardFilter
    __cudnn$convBackwardInput __cudnn$convBiasActivationForward __cublas$triangularSolve __gpu$TopK TopK PadToStatic
    SliceToDynamic Eigh GetRngSeed LuDecomposition Qr ProductOfElementaryHouseholderReflectors __cub$DeviceRadixSort
    xla.gpu.ext.cub_sort_keys Sharding SPMDFullToShardShape SPMDShardToFullShape MoveToHost MoveToDevice AllocateBuffer
    CreateBuffer NopReturnToken annotate_device_placement LayoutConstraint AssumeGatherIndicesInBound
    cusolver_getrf_ffi cusolver_syevd_ffi cusolver_geqrf_ffi cusolver_orgqr_ffi cusolver_gesvd_ffi cusolver_potrf_ffi
    lapack_sgetrf_ffi lapack_sgesdd_ffi lapack_sgeqrf_ffi lapack_sgeev_ffi lapack_sgehrd_ffi lapack_strsm_ffi
    cu_lu_pivots_to_permutation cusparse_gtsv2_ffi cpu_csr_sparse_dense_ffi unknown""".split()
_SHAPES = """f32[] f32[4] f32[4,8] f32[8,8] f32[8,4] f32[2,8,8] f32[2,8] s32[] s32[4] s32[8] s8[0] s8[4,4] f32[0,3] f32[0]
    f16[4,4] bf16[4] f64[8,8] c64[4,4] c64[4] pred[3] pred[4] pred[] f32[<=4] f32[<=4,8] u8[128] u64[] token[] s4[6] f8e5m2[4,4]
    f32[1,4,4,2] f32[3,3,2,2] f32[1,1] f32[4]{0:S(5)} f32[8,4]{0,1} (f32[4],s32[]) ()""".split()
_DOT = '"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"],"rhs_contracting_dimensions":["0"]}'
_CONFIGS = (
    "",
    f', backend_config={{"gemm_backend_config":{{"alpha_real":1,"beta":0,{_DOT}}}}}',
    f', backend_config={{"gemm_backend_config":{{"alpha_real":1,"beta":1,{_DOT},"epilogue":"BIAS"}}}}',
    ', backend_config={"gemm_backend_config":{"beta":"x","dot_dimension_numbers":[]}}',
    ', backend_config={"cudnn_conv_backend_config":{"conv_result_scale":1,"activation_mode":"kRelu"}}',
    ", dim_labels=b01f_01io->b01f",
    ", window={size=1x1}, dim_labels=b01f_01io->b01f",
    ", window={size=3x3 pad=1_1x1_1 stride=2x2}, dim_labels=b01f_01io->b01f, feature_group_count=2",
    ", api_version=API_VERSION_TYPED_FFI",
    ', backend_config="{left_side = true, lower = true}", api_version=API_VERSION_TYPED_FFI',
    ', backend_config="1,1,5,0.1"',
    ', backend_config="{\\"left_side\\":true,\\"lower\\":true}"',
    ", output_to_operand_aliasing={{}: (0, {})}",
    ", custom_call_has_side_effect=true",
    ", sharding={replicated}",
)
_ATTRIBUTES = """dimensions={0} dimensions={1} dimensions={0,1} dimensions={1,0} dimensions={} to_apply=add2 to_apply=gt
    to_apply=id to_apply=pair direction=LT index=0 index=1 index=7 padding=0_1 padding=0_1x1_0_1 padding=-1_0x0_-9 slice={[0:2]}
    slice={[0:4:2],[1:2]} iota_dimension=0 iota_dimension=1 dynamic_slice_sizes={2} dynamic_slice_sizes={2,3}
    lhs_contracting_dims={0} rhs_contracting_dims={0} lhs_contracting_dims={1} rhs_contracting_dims={1} lhs_batch_dims={0}
    rhs_batch_dims={0} window={size=2} window={size=2x2} window={size=3x1,stride=2x1} window={size=1x1,pad=1_1x0_0}
    dim_labels=bf_io->bf dim_labels=b01f_01io->b01f feature_group_count=2 batch_group_count=2 fft_type=FFT fft_type=RFFT
    fft_type=IRFFT fft_length={8} fft_length={4,8} exponent_bits=5 mantissa_bits=10 distribution=rng_uniform
    distribution=rng_normal algorithm=rng_three_fry algorithm=rng_philox delta=1 replica_groups={} replica_groups={{0}}
    replica_groups={{0,1}} source_target_pairs={{0,0}} source_target_pairs={{0,1}} channel_id=1 lower=true left_side=true
    transpose_a=NO_TRANSPOSE epsilon=0.1 feature_index=1 feature_index=0 offset_dims={1} collapsed_slice_dims={0}
    start_index_map={0} index_vector_dim=1 index_vector_dim=0 slice_sizes={1,8} slice_sizes={1} update_window_dims={1}
    inserted_window_dims={0} scatter_dims_to_operand_dims={0} condition=gt body=id true_computation=id false_computation=id
    branch_computations={id,id} calls=id kind=kLoop kind=kInput k=2 largest=true is_stable=true select=gt scatter=add2
    outfeed_shape=f32[4] infeed_config="x" use_global_device_ids=true async_execution_thread="main" constrain_layout=false
    sharding={replicated} sharding={devices=[2]0,1} metadata={op_name="a"} frontend_attributes={a="b"}""".split()
_COMPUTATIONS = """add2 { a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b) }
gt { a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = pred[] compare(a, b), direction=GT }
id { ROOT a = f32[4] parameter(0) }
pair { a = f32[] parameter(0)
  b = s32[] parameter(1)
  c = f32[] parameter(2)
  d = s32[] parameter(3)
  s = f32[] add(a, c)
  t = s32[] add(b, d)
  ROOT r = (f32[], s32[]) tuple(s, t) }
"""


def custom_call_module(rng: random.Random) -> str:
    """Return the text of a module with a custom call of a known target and arbitrary shapes and attributes."""
    operands, result = _operands(rng), _result(rng)
    if operands and rng.random() < 0.4:
        result = operands[0] if rng.random() < 0.5 else f"({operands[0]}, {rng.choice(_SHAPES)})"
    called = ", called_computations={gt}" if rng.random() < 0.3 else ""
    target = f'custom_call_target="{rng.choice(_TARGETS)}"'
    return _module(operands, result, "custom-call", f", {target}{called}{rng.choice(_CONFIGS)}")


def instruction_module(rng: random.Random) -> str:
    """Return the text of a module with an instruction of any opcode. Its operands and attributes often fit its opcode."""
    opcode = OPCODES[rng.choice(sorted(OPCODES))]
    operands = _operands(rng)
    if opcode.arity is not None and rng.random() < 0.9:
        operands = [rng.choice(_SHAPES) for _ in range(opcode.arity)]
    if len(operands) > 1 and rng.random() < 0.7:
        others = (operands[0], operands[0], *_INDEX, "f32[]", "f32[2,2]")
        operands[1:] = [rng.choice(others) for _ in operands[1:]]
    result = rng.choice(operands) if operands and rng.random() < 0.5 else _result(rng)
    names = [name for name in opcode.attributes if name in opcode.required or rng.random() < 0.3]
    attributes = [rng.choice(_VALUES[name]) for name in names if name in _VALUES]
    if rng.random() < 0.2:
        attributes.append(rng.choice(_ATTRIBUTES))
    infers = "can_infer_shape" in opcode.traits and rng.random() < 0.8
    return _module(operands, "" if infers else result, opcode.name, "".join(f", {one}" for one in attributes))


_VALUES: dict[str, list[str]] = {}
for _one in _ATTRIBUTES:
    _VALUES.setdefault(_one.partition("=")[0], []).append(_one)
_INDEX = ("s32[]", "s32[1]", "s32[4,1]", "s32[2]")


def _operands(rng: random.Random) -> list[str]:
    return [rng.choice(_SHAPES) for _ in range(rng.choice((0, 1, 1, 1, 2, 2, 2, 3, 3, 4, 5)))]


def _result(rng: random.Random) -> str:
    count = rng.randint(0, 5)
    return rng.choice(_SHAPES) if count < 3 else f"({', '.join(rng.choice(_SHAPES) for _ in range(count - 2))})"


def _module(operands: list[str], result: str, opcode: str, rest: str) -> str:
    lines = [f"  p{number} = {shape} parameter({number})" for number, shape in enumerate(operands)]
    names = ", ".join(f"p{number}" for number in range(len(operands)))
    lines.append(f"  ROOT d = {result} {opcode}({names}){rest}")
    return "HloModule m\n" + _COMPUTATIONS + "ENTRY e {\n" + "\n".join(lines) + "\n}\n"
