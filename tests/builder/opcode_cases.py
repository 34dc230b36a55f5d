"""One call of every builder method, and the expected text of its instruction."""

from __future__ import annotations

import keyword
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from hlo_run import HloBuilder, HloValue
from hlo_run.hlo.graph import HloComputation

COMPUTATIONS = """
add {
  add_x = f32[] parameter(0)
  add_y = f32[] parameter(1)
  ROOT add_r = f32[] add(add_x, add_y)
}
less {
  less_x = f32[] parameter(0)
  less_y = f32[] parameter(1)
  ROOT less_r = pred[] compare(less_x, less_y), direction=LT
}
twice {
  twice_x = f32[2,3] parameter(0)
  ROOT twice_r = f32[2,3] add(twice_x, twice_x)
}
never {
  never_x = f32[2,3] parameter(0)
  ROOT never_r = pred[] constant(false)
}
step {
  step_x = f32[3] parameter(0)
  step_y = f32[3] parameter(1)
  step_s = f32[3] add(step_x, step_y)
  ROOT step_r = (f32[3], f32[3]) tuple(step_s, step_s)
}
"""


def computations(b: HloBuilder) -> dict[str, HloComputation]:
    """Build the computations of the text `COMPUTATIONS`."""
    add, less, twice, never, step = (b.sub_builder(name) for name in ("add", "less", "twice", "never", "step"))
    x, y = add.parameter(0, "f32[]", "add_x"), add.parameter(1, "f32[]", "add_y")
    (x + y).annotate(name="add_r")
    x, y = less.parameter(0, "f32[]", "less_x"), less.parameter(1, "f32[]", "less_y")
    (x < y).annotate(name="less_r")
    x = twice.parameter(0, "f32[2,3]", "twice_x")
    (x + x).annotate(name="twice_r")
    never.parameter(0, "f32[2,3]", "never_x")
    never.constant(False).annotate(name="never_r")
    x, y = step.parameter(0, "f32[3]", "step_x"), step.parameter(1, "f32[3]", "step_y")
    s = (x + y).annotate(name="step_s")
    step.tuple([s, s]).annotate(name="step_r")
    return {builder.name: builder.build_computation() for builder in (add, less, twice, never, step)}


# The parameters (a list of values) are Any, so that `*p` may be any number of arguments.
Build = Callable[[HloBuilder, Any, dict[str, HloComputation]], HloValue]


@dataclass(frozen=True)
class Case:
    """Shapes of the parameters p0, p1, .., the call, and the text after `ROOT r =` (several lines: what comes before it too)."""

    shapes: tuple[str, ...]
    build: Build
    text: str
    xla: bool = True  # False: jaxlib 0.10.2 does not read the bare instruction


def method_name(opcode: str) -> str:
    name = opcode.replace("-", "_")
    return f"{name}_" if keyword.iskeyword(name) else name


F, S, U, C, P = "f32[2,3]", "s32[2,3]", "u32[2,3]", "c64[2,3]", "pred[2,3]"
_SAME = "f32[2,3]"


def _unary(opcode: str, shape: str, result: str) -> Case:
    return Case((shape,), lambda b, p, _: getattr(b, method_name(opcode))(p[0]), f"{result} {opcode}(p0)")


def _binary(opcode: str, shape: str, result: str) -> Case:
    return Case((shape, shape), lambda b, p, _: getattr(b, method_name(opcode))(p[0], p[1]), f"{result} {opcode}(p0, p1)")


_FLOAT_UNARY = """abs ceil floor negate sign round-nearest-afz round-nearest-even acos acosh asin asinh atanh cbrt cosine cosh
    erf exp2 exponential exponential-minus-one log log-plus-one log2 logistic rsqrt sine sinh sqrt tan tanh copy
    opt-barrier""".split()
_FLOAT_BINARY = "add subtract multiply divide remainder power maximum minimum atan2".split()
_INT_BINARY = "and or xor shift-left shift-right-arithmetic shift-right-logical".split()

ELEMENTWISE: list[Case] = [
    *(_unary(opcode, F, F) for opcode in _FLOAT_UNARY),
    *(_unary(opcode, S, S) for opcode in ("not", "popcnt", "count-leading-zeros", "negate", "abs")),
    _unary("abs", C, F),
    _unary("real", C, F),
    _unary("imag", C, F),
    _unary("is-finite", F, P),
    *(_binary(opcode, F, F) for opcode in _FLOAT_BINARY),
    *(_binary(opcode, S, S) for opcode in _INT_BINARY),
    _binary("mulhi", U, U),
    _binary("complex", F, C),
    Case((F,), lambda b, p, _: b.tanh(p[0], result_accuracy="{mode=highest}"), f"{F} tanh(p0), result_accuracy={{mode=highest}}"),
    Case((F, F), lambda b, p, _: b.compare(p[0], p[1], "GE"), f"{P} compare(p0, p1), direction=GE"),
    Case((F, F), lambda b, p, _: b.compare(p[0], p[1], "LT", "TOTALORDER"), f"{P} compare(p0, p1), direction=LT, order=TOTAL"),
    Case((F, F), lambda b, p, _: b.compare(p[0], p[1], "LT", order="TOTAL"), f"{P} compare(p0, p1), direction=LT, order=TOTAL"),
    Case((P, F, F), lambda b, p, _: b.select(*p), f"{F} select(p0, p1, p2)"),
    Case((F, F, F), lambda b, p, _: b.clamp(*p), f"{F} clamp(p0, p1, p2)"),
    Case(("f32[]", F, "f32[]"), lambda b, p, _: b.clamp(*p), f"{F} clamp(p0, p1, p2)"),
    Case((F,), lambda b, p, _: b.convert(p[0], "bf16"), "bf16[2,3] convert(p0)"),
    Case((F,), lambda b, p, _: b.convert(p[0], np.int8), "s8[2,3] convert(p0)"),
    Case((F,), lambda b, p, _: b.bitcast_convert(p[0], "s32"), "s32[2,3] bitcast-convert(p0)"),
    Case((F,), lambda b, p, _: b.bitcast_convert(p[0], "u8"), "u8[2,3,4] bitcast-convert(p0)"),
    Case(("u16[3,2]",), lambda b, p, _: b.bitcast_convert(p[0], "f32"), "f32[3] bitcast-convert(p0)"),
    Case((F, U), lambda b, p, _: b.stochastic_convert(p[0], p[1], "s8"), "s8[2,3] stochastic-convert(p0, p1)"),
    Case((F,), lambda b, p, _: b.reduce_precision(p[0], 5, 7), f"{F} reduce-precision(p0), exponent_bits=5, mantissa_bits=7"),
]

SHAPING: list[Case] = [
    Case((), lambda b, p, _: b.parameter(0, F, "p"), f"{F} parameter(0)"),
    Case((), lambda b, p, _: b.constant(np.array([1.5, -2], np.float32)), "f32[2] constant({1.5, -2})"),
    Case((), lambda b, p, _: b.constant(3), "s32[] constant(3)"),
    Case((), lambda b, p, _: b.constant([[1, 0]], "s4"), "s4[1,2] constant({{1, 0}})"),
    Case((), lambda b, p, _: b.constant((True, np.array([2.0]))), "(pred[], f64[1]) constant((true, {2}))"),
    Case((), lambda b, p, _: b.iota("s32[2,3]", 1), "s32[2,3] iota(), iota_dimension=1"),
    Case(("f32[]",), lambda b, p, _: b.broadcast(p[0], [2, 3]), f"{F} broadcast(p0), dimensions={{}}"),
    Case(("f32[3]",), lambda b, p, _: b.broadcast(p[0], [2, 3], [1]), f"{F} broadcast(p0), dimensions={{1}}"),
    Case((F,), lambda b, p, _: b.reshape(p[0], [3, 2]), "f32[3,2] reshape(p0)"),
    Case(
        (F, "s32[]", "s32[]"),
        lambda b, p, _: b.dynamic_reshape(p[0], p[1:], "f32[<=3,<=2]"),
        "f32[<=3,<=2] dynamic-reshape(p0, p1, p2)",
    ),
    Case((F,), lambda b, p, _: b.bitcast(p[0], "f32[3,2]{0,1}"), "f32[3,2]{0,1} bitcast(p0)"),
    Case((F,), lambda b, p, _: b.transpose(p[0], [1, 0]), "f32[3,2]{0,1} transpose(p0), dimensions={1,0}"),
    Case((F,), lambda b, p, _: b.reverse(p[0], [0, 1]), f"{F} reverse(p0), dimensions={{0,1}}"),
    Case((F,), lambda b, p, _: b.shuffle(p[0], [1], [2]), f"{F} shuffle(p0), dimensions={{1}}, mode=rotate, shifts={{2}}"),
    Case((F, F), lambda b, p, _: b.concatenate(p, 0), "f32[4,3] concatenate(p0, p1), dimensions={0}"),
    Case((F,), lambda b, p, _: b.slice(p[0], [(0, 2), (1, 3)]), "f32[2,2] slice(p0), slice={[0:2], [1:3]}"),
    Case((F,), lambda b, p, _: b.slice(p[0], [(0, 2, 1), (0, 3, 2)]), "f32[2,2] slice(p0), slice={[0:2:1], [0:3:2]}"),
    Case(
        (F, "s32[]", "s32[]"),
        lambda b, p, _: b.dynamic_slice(p[0], p[1:], [1, 2]),
        "f32[1,2] dynamic-slice(p0, p1, p2), dynamic_slice_sizes={1,2}",
    ),
    Case(
        (F, "f32[1,2]", "s32[]", "s32[]"),
        lambda b, p, _: b.dynamic_update_slice(p[0], p[1], p[2:]),
        f"{F} dynamic-update-slice(p0, p1, p2, p3)",
    ),
    Case((F, "f32[]"), lambda b, p, _: b.pad(p[0], p[1], [(1, 0), (-1, 2)]), "f32[3,4] pad(p0, p1), padding=1_0x-1_2"),
    Case((F, "f32[]"), lambda b, p, _: b.pad(p[0], p[1], [(0, 0, 1), (0, 0, 0)]), "f32[3,3] pad(p0, p1), padding=0_0_1x0_0_0"),
    Case(
        ("f32[9,4]", "s32[2,3,1]"),
        lambda b, p, _: b.gather(
            p[0], p[1], offset_dims=[2], collapsed_slice_dims=[0], start_index_map=[0], index_vector_dim=2, slice_sizes=[1, 4]
        ),
        "f32[2,3,4] gather(p0, p1), offset_dims={2}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=2, "
        "slice_sizes={1,4}",
    ),
    Case(
        ("f32[9,4]", "s32[2,3,1]", "f32[2,3,4]"),
        lambda b, p, c: b.scatter(
            p[0],
            p[1],
            p[2],
            c["add"],
            update_window_dims=[2],
            inserted_window_dims=[0],
            scatter_dims_to_operand_dims=[0],
            index_vector_dim=2,
            unique_indices=True,
        ),
        "f32[9,4] scatter(p0, p1, p2), update_window_dims={2}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, "
        "index_vector_dim=2, unique_indices=true, to_apply=add",
    ),
    Case((F,), lambda b, p, _: b.get_dimension_size(p[0], 1), "s32[] get-dimension-size(p0), dimensions={1}"),
    Case(
        (F, "s32[]"),
        lambda b, p, _: b.set_dimension_size(p[0], p[1], 1),
        "f32[2,<=3] set-dimension-size(p0, p1), dimensions={1}",
    ),
]

_DOT = "lhs_contracting_dims={1}, rhs_contracting_dims={0}"
LINALG: list[Case] = [
    Case(
        (F, "f32[]"), lambda b, p, c: b.reduce(p[0], p[1], [1], c["add"]), "f32[2] reduce(p0, p1), dimensions={1}, to_apply=add"
    ),
    Case(
        ("f32[8]", "f32[]"),
        lambda b, p, c: b.reduce_window(p[0], p[1], {"size": [3], "stride": [2], "pad": [(1, 0)]}, c["add"]),
        "f32[4] reduce-window(p0, p1), window={size=3 stride=2 pad=1_0}, to_apply=add",
    ),
    Case(
        ("f32[8]", "f32[4]", "f32[]"),
        lambda b, p, c: b.select_and_scatter(p[0], p[1], p[2], {"size": [2], "stride": [2]}, c["less"], c["add"]),
        "f32[8] select-and-scatter(p0, p1, p2), window={size=2 stride=2}, select=less, scatter=add",
    ),
    Case((F, F), lambda b, p, c: b.map(p, c["add"]), f"{F} map(p0, p1), dimensions={{0,1}}, to_apply=add"),
    Case(
        (F,),
        lambda b, p, c: b.sort(p[0], 1, c["less"], is_stable=True),
        f"{F} sort(p0), dimensions={{1}}, is_stable=true, to_apply=less",
    ),
    Case((F,), lambda b, p, _: b.topk(p[0], 2), "(f32[2,2], s32[2,2]) topk(p0), k=2", xla=False),
    Case(
        (F, "f32[3]"),
        lambda b, p, c: b.scan(p, 0, 1, c["step"]),
        f"({F}, f32[3]) scan(p0, p1), dimensions={{0}}, num_carries=1, to_apply=step",
        xla=False,
    ),
    Case(
        (F, "f32[3,4]"),
        lambda b, p, _: b.dot(p[0], p[1], lhs_contracting_dims=[1], rhs_contracting_dims=[0]),
        f"f32[2,4] dot(p0, p1), {_DOT}",
    ),
    Case(
        ("bf16[5,2,3]", "bf16[5,3,4]"),
        lambda b, p, _: b.dot(
            *p,
            lhs_batch_dims=[0],
            lhs_contracting_dims=[2],
            rhs_batch_dims=[0],
            rhs_contracting_dims=[1],
            element_type="f32",
            operand_precision=["highest", "default"],
        ),
        "f32[5,2,4] dot(p0, p1), lhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_batch_dims={0}, rhs_contracting_dims={1}, "
        "operand_precision={highest,default}",
    ),
    Case(
        ("f32[6,3]", "f32[2,3,4]", "s32[2]"),
        lambda b, p, _: b.ragged_dot(
            *p, lhs_contracting_dims=[1], rhs_contracting_dims=[1], lhs_ragged_dims=[0], rhs_group_dims=[0]
        ),
        "f32[6,4] ragged-dot(p0, p1, p2), lhs_contracting_dims={1}, rhs_contracting_dims={1}, lhs_ragged_dims={0}, "
        "rhs_group_dims={0}",
    ),
    Case(
        ("f32[6,8]", "f32[8,4]", "s32[2]"),
        lambda b, p, _: b.ragged_dot(*p, lhs_contracting_dims=[1], rhs_contracting_dims=[0], lhs_ragged_dims=[1]),
        f"f32[2,6,4] ragged-dot(p0, p1, p2), {_DOT}, lhs_ragged_dims={{1}}, rhs_group_dims={{}}",
    ),
    Case(
        ("f8e4m3fn[4,64]", "f8e4m3fn[64,8]", "f8e8m0fnu[4,2]", "f8e8m0fnu[2,8]"),
        lambda b, p, _: b.scaled_dot(*p, lhs_contracting_dims=[1], rhs_contracting_dims=[0], element_type="f32"),
        f"f32[4,8] scaled-dot(p0, p1, p2, p3), {_DOT}",
        xla=False,
    ),
    Case(
        ("f32[1,8,8,3]", "f32[3,3,3,5]"),
        lambda b, p, _: b.convolution(p[0], p[1], window={"size": [3, 3], "pad": [(1, 1), (1, 1)]}, dim_labels="b01f_01io->b01f"),
        "f32[1,8,8,5] convolution(p0, p1), window={size=3x3 pad=1_1x1_1}, dim_labels=b01f_01io->b01f",
    ),
    Case(("c64[4,8]",), lambda b, p, _: b.fft(p[0], "FFT", [8]), "c64[4,8] fft(p0), fft_type=FFT, fft_length={8}"),
    Case(
        ("f32[4,4]", "f32[4,2]"),
        lambda b, p, _: b.triangular_solve(p[0], p[1], transpose_a="TRANSPOSE"),
        "f32[4,2] triangular-solve(p0, p1), left_side=true, lower=true, transpose_a=TRANSPOSE",
    ),
    Case(("f32[4,4]",), lambda b, p, _: b.cholesky(p[0]), "f32[4,4] cholesky(p0), lower=true"),
    Case(
        (F, "f32[3]", "f32[3]"),
        lambda b, p, _: b.batch_norm_training(*p, epsilon=0.001, feature_index=1),
        f"({F}, f32[3], f32[3]) batch-norm-training(p0, p1, p2), epsilon=0.001, feature_index=1",
    ),
    Case(
        (F, "f32[3]", "f32[3]", "f32[3]", "f32[3]"),
        lambda b, p, _: b.batch_norm_inference(*p, epsilon=0.001, feature_index=1),
        f"{F} batch-norm-inference(p0, p1, p2, p3, p4), epsilon=0.001, feature_index=1",
    ),
    Case(
        (F, "f32[3]", "f32[3]", "f32[3]", F),
        lambda b, p, _: b.batch_norm_grad(*p, epsilon=0.001, feature_index=1),
        f"({F}, f32[3], f32[3]) batch-norm-grad(p0, p1, p2, p3, p4), epsilon=0.001, feature_index=1",
    ),
]

_PAIR = f"({F}, f32[])"
CONTROL: list[Case] = [
    Case((F, "f32[]"), lambda b, p, _: b.tuple(p), f"{_PAIR} tuple(p0, p1)"),
    Case((_PAIR,), lambda b, p, _: b.get_tuple_element(p[0], 1), "f32[] get-tuple-element(p0), index=1"),
    Case(
        (F,),
        lambda b, p, _: b.domain(p[0], '{kind="sharding", entry={maximal device=0}, exit={}}'),
        f'{F} domain(p0), domain={{kind="sharding", entry={{maximal device=0}}, exit={{}}}}',
        xla=False,
    ),
    Case((F,), lambda b, p, c: b.call(p, c["twice"]), f"{F} call(p0), to_apply=twice"),
    Case((F,), lambda b, p, c: b.fusion(p, c["twice"], kind="kInput"), f"{F} fusion(p0), kind=kInput, calls=twice"),
    Case((F,), lambda b, p, c: b.while_(p[0], c["never"], c["twice"]), f"{F} while(p0), condition=never, body=twice"),
    Case(
        ("pred[]", F, F),
        lambda b, p, c: b.conditional(p[0], [c["twice"], c["twice"]], p[1:]),
        f"{F} conditional(p0, p1, p2), true_computation=twice, false_computation=twice",
    ),
    Case(
        ("s32[]", F, F, F),
        lambda b, p, c: b.conditional(p[0], [c["twice"]] * 3, p[1:]),
        f"{F} conditional(p0, p1, p2, p3), branch_computations={{twice, twice, twice}}",
    ),
    Case(
        (F, "s32[4]"),
        lambda b, p, c: b.custom_call(
            "my.target",
            p,
            F,
            custom_call_has_side_effect=True,
            operand_layout_constraints=["f32[2,3]{0,1}", "s32[4]{0}"],
            output_to_operand_aliasing={(): (0, ())},
            api_version="API_VERSION_STATUS_RETURNING",
        ),
        f'{F} custom-call(p0, p1), custom_call_target="my.target", operand_layout_constraints={{f32[2,3]{{0,1}}, s32[4]{{0}}}}, '
        "custom_call_has_side_effect=true, output_to_operand_aliasing={{}: (0, {})}, "
        "api_version=API_VERSION_STATUS_RETURNING",
    ),
    Case(
        (F,),
        lambda b, p, c: b.custom_call("t", p, F, called_computations=[c["twice"], c["never"]]),
        f'{F} custom-call(p0), custom_call_target="t", called_computations={{twice, never}}',
    ),
    Case(
        (F,),
        lambda b, p, _: b.custom_call("t", p, F, literal=np.array([1, 2], np.float32), schedule="SCHEDULE_LATEST"),
        f'{F} custom-call(p0), custom_call_target="t", literal=f32[2]{{0}} {{1, 2}}, schedule=SCHEDULE_LATEST',
    ),
    Case(("f32[]", "f32[]"), lambda b, p, _: b.rng("rng_uniform", p[0], p[1], F), f"{F} rng(p0, p1), distribution=rng_uniform"),
    Case(
        ("u64[2]",),
        lambda b, p, _: b.rng_bit_generator(p[0], "u32[4]", "rng_philox"),
        "(u64[2], u32[4]) rng-bit-generator(p0), algorithm=rng_philox",
    ),
    Case((), lambda b, p, _: b.rng_get_and_update_state(9), "u64[2] rng-get-and-update-state(), delta=9"),
    Case(("token[]", "token[]"), lambda b, p, _: b.after_all(p), "token[] after-all(p0, p1)"),
    Case((F, "token[]"), lambda b, p, _: b.add_dependency(*p), f"{F} add-dependency(p0, p1)"),
    Case(("token[]",), lambda b, p, _: b.infeed(p[0], F, "cfg"), f'({F}, token[]) infeed(p0), infeed_config="cfg"'),
    Case((F, "token[]"), lambda b, p, _: b.outfeed(*p), f"token[] outfeed(p0, p1), outfeed_shape={F}{{1,0}}"),
    Case(
        (F, "token[]"),
        lambda b, p, _: b.send(*p, channel_id=3, is_host_transfer=True),
        f"({F}, u32[], token[]) send(p0, p1), channel_id=3, is_host_transfer=true",
    ),
    Case(
        (F, "token[]"),
        lambda b, p, _: b.send_done(b.send(*p, channel_id=3).annotate(name="s"), channel_id=3),
        f"token[] send-done(s), channel_id=3\n s = ({F}, u32[], token[]) send(p0, p1), channel_id=3",
    ),
    Case(
        ("token[]",),
        lambda b, p, _: b.recv(p[0], F, channel_id=4),
        f"({F}, u32[], token[]) recv(p0), channel_id=4",
    ),
    Case(
        ("token[]",),
        lambda b, p, _: b.recv_done(b.recv(p[0], F, channel_id=4).annotate(name="s"), channel_id=4),
        f"({F}, token[]) recv-done(s), channel_id=4\n s = ({F}, u32[], token[]) recv(p0), channel_id=4",
    ),
    Case(
        (F,),
        lambda b, p, _: b.copy_start(p[0], "f32[2,3]{1,0:S(5)}"),
        f"(f32[2,3]{{1,0:S(5)}}, {F}, u32[]) copy-start(p0)",
    ),
    Case(
        (F,),
        lambda b, p, _: b.copy_done(b.copy_start(p[0]).annotate(name="s")),
        f"{F} copy-done(s)\n s = ({F}, {F}, u32[]) copy-start(p0)",
    ),
    Case((F,), lambda b, p, c: b.async_start(p, c["twice"]), f"(({F}), {F}) async-start(p0), calls=twice", xla=False),
    Case(
        (F,),
        lambda b, p, c: b.async_update(b.async_start(p, c["twice"]).annotate(name="s")),
        f"(({F}), {F}) async-update(s)\n s = (({F}), {F}) async-start(p0), calls=twice",
        xla=False,
    ),
    Case(
        (F,),
        lambda b, p, c: b.async_done(b.async_start(p, c["twice"]).annotate(name="s")),
        f"{F} async-done(s)\n s = (({F}), {F}) async-start(p0), calls=twice",
    ),
]

_G = "replica_groups={{0,1}}"
COLLECTIVES: list[Case] = [
    Case((), lambda b, p, _: b.replica_id(), "u32[] replica-id()"),
    Case((), lambda b, p, _: b.partition_id(), "u32[] partition-id()"),
    Case(
        (F,),
        lambda b, p, c: b.all_reduce(p, c["add"], [[0, 1]], channel_id=1, use_global_device_ids=True),
        f"{F} all-reduce(p0), channel_id=1, {_G}, use_global_device_ids=true, to_apply=add",
    ),
    Case((F,), lambda b, p, c: b.all_reduce_start(p, c["add"]), f"{F} all-reduce-start(p0), replica_groups={{}}, to_apply=add"),
    Case(
        (F,),
        lambda b, p, c: b.all_reduce_done(b.all_reduce_start(p, c["add"]).annotate(name="s")),
        f"{F} all-reduce-done(s)\n s = {F} all-reduce-start(p0), replica_groups={{}}, to_apply=add",
    ),
    Case(
        (F,),
        lambda b, p, c: b.reduce_scatter(p, 0, c["add"], [[0, 1]]),
        f"f32[1,3] reduce-scatter(p0), {_G}, dimensions={{0}}, to_apply=add",
    ),
    Case((F,), lambda b, p, _: b.all_gather(p, 1, [[0, 1]]), f"f32[2,6] all-gather(p0), {_G}, dimensions={{1}}"),
    Case(
        (F,),
        lambda b, p, _: b.all_gather(p, 1, "[1,4]<=[4]", shard_count=4),
        "f32[2,12] all-gather(p0), replica_groups=[1,4]<=[4], dimensions={1}",
    ),
    Case(
        (F,), lambda b, p, _: b.all_gather_start(p, 1, [[0, 1]]), f"({F}, f32[2,6]) all-gather-start(p0), {_G}, dimensions={{1}}"
    ),
    Case(
        (F,),
        lambda b, p, _: b.all_gather_done(b.all_gather_start(p, 1, [[0, 1]]).annotate(name="s")),
        f"f32[2,6] all-gather-done(s)\n s = ({F}, f32[2,6]) all-gather-start(p0), {_G}, dimensions={{1}}",
    ),
    Case((F,), lambda b, p, _: b.all_to_all(p, 0, [[0, 1]]), f"{F} all-to-all(p0), {_G}, dimensions={{0}}"),
    Case((F, F), lambda b, p, _: b.all_to_all(p, replica_groups=[[0, 1]]), f"({F}, {F}) all-to-all(p0, p1), {_G}"),
    Case(
        ("f32[4]", "f32[4]", "s32[2]", "s32[2]", "s32[2]", "s32[2]"),
        lambda b, p, _: b.ragged_all_to_all(*p, replica_groups=[[0, 1]]),
        f"f32[4] ragged-all-to-all(p0, p1, p2, p3, p4, p5), {_G}",
    ),
    Case(
        (F,),
        lambda b, p, c: b.collective_reduce(p, c["add"], [[0, 1]]),
        f"{F} collective-reduce(p0), {_G}, to_apply=add",
    ),
    Case(
        (F, "s32[1]"),
        lambda b, p, c: b.collective_reduce(p, c["add"], has_dynamic_root=True),
        f"{F} collective-reduce(p0, p1), replica_groups={{}}, has_dynamic_root=true, to_apply=add",
    ),
    Case(
        (F,),
        lambda b, p, _: b.collective_broadcast(p, [[0, 1]]),
        f"{F} collective-broadcast(p0), {_G}",
    ),
    Case(
        (F,),
        lambda b, p, _: b.collective_permute(p, [(0, 1), (1, 0)], channel_id=2),
        f"{F} collective-permute(p0), channel_id=2, source_target_pairs={{{{0,1}},{{1,0}}}}",
    ),
    Case(
        (F,),
        lambda b, p, _: b.collective_permute_start(p, [(0, 1)]),
        f"({F}, {F}) collective-permute-start(p0), source_target_pairs={{{{0,1}}}}",
    ),
    Case(
        (F,),
        lambda b, p, _: b.collective_permute_done(b.collective_permute_start(p, [(0, 1)]).annotate(name="s")),
        f"{F} collective-permute-done(s)\n s = ({F}, {F}) collective-permute-start(p0), source_target_pairs={{{{0,1}}}}",
    ),
]

CASES = [*ELEMENTWISE, *SHAPING, *LINALG, *CONTROL, *COLLECTIVES]
