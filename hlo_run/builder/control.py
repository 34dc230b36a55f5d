"""Builder methods of tuples, calls, control flow, tokens, random numbers, custom calls and transfers to the host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hlo_run.builder.core import BuilderCore, ComputationLike, HloValue
from hlo_run.builder.linalg import Precision, WindowLike
from hlo_run.builder.values import ShapeLike, shape_of
from hlo_run.errors import UsageError
from hlo_run.hlo.graph import HloComputation
from hlo_run.hlo.values.shape import Shape

_TOKEN = Shape("token")
# {output index: (operand, operand index)}
Aliasing = Mapping[Sequence[int], int | tuple[int, Sequence[int]]] | str | None


class ControlMethods(BuilderCore):
    """A computation argument is a finished one or a function of values; several returned values make a tuple."""

    def tuple(self, elements: Sequence[HloValue]) -> HloValue:
        """Return the tuple of the elements. Without elements it is the empty tuple."""
        return self.instruction("tuple", elements)

    def get_tuple_element(self, operand: HloValue, index: int) -> HloValue:
        """Return element `index` of a tuple, as `operand[index]`."""
        return self.instruction("get-tuple-element", [operand], index=index)

    def opt_barrier(self, operand: HloValue) -> HloValue:
        """Return the operand behind an optimization barrier, across which no pass moves code."""
        return self.instruction("opt-barrier", [operand])

    def domain(self, operand: HloValue, domain: str) -> HloValue:
        """Return the operand inside a domain; `domain` is text like `{kind="sharding", entry={..}, exit={..}}`."""
        return self.instruction("domain", [operand], domain=domain)

    def call(self, operands: Sequence[HloValue], to_apply: ComputationLike, is_composite: bool = False) -> HloValue:
        """Return the result of `to_apply`, with the shape of its root. Each operand has the shape of its parameter.

        `is_composite` marks a StableHLO composite.
        """
        body = self.computation_of(to_apply, _shapes(operands), "called_computation")
        return self.instruction("call", operands, called={"to_apply": [body]}, is_composite=is_composite or None)

    def fusion(
        self,
        operands: Sequence[HloValue],
        calls: ComputationLike,
        kind: str = "kLoop",
        output_to_operand_aliasing: Aliasing = None,
    ) -> HloValue:
        """Return the result of a fusion; `kind` is kLoop, kInput, kOutput or kCustom."""
        body = self.computation_of(calls, _shapes(operands), "fused_computation")
        aliasing = output_to_operand_aliasing
        return self.instruction("fusion", operands, kind=kind, output_to_operand_aliasing=aliasing, called={"calls": [body]})

    def while_(self, init: HloValue, condition: ComputationLike, body: ComputationLike) -> HloValue:
        """Apply `body` to the state while `condition` of it is true."""
        called = {
            "condition": [self.computation_of(condition, [init.shape], "condition")],
            "body": [self.computation_of(body, [init.shape], "body")],
        }
        return self.instruction("while", [init], called=called)

    def conditional(self, selector: HloValue, branches: Sequence[ComputationLike], operands: Sequence[HloValue]) -> HloValue:
        """Apply branch `selector` (s32; out of range: the last) to its operand; a pred selects (true branch, false branch).

        Raises UsageError unless there is one operand per branch.
        """
        if len(branches) != len(operands):
            raise UsageError(f"conditional has {len(branches)} branches, but {len(operands)} operands")
        bodies = [
            self.computation_of(branch, [operand.shape], f"branch_{number}")
            for number, (branch, operand) in enumerate(zip(branches, operands, strict=True))
        ]
        called: dict[str, Sequence[HloComputation]] = {"branch_computations": bodies}
        if selector.shape.element_type == "pred" and len(bodies) == 2:
            called = {"true_computation": bodies[:1], "false_computation": bodies[1:]}
        return self.instruction("conditional", [selector, *operands], called=called)

    def custom_call(
        self,
        target: str,
        operands: Sequence[HloValue],
        shape: ShapeLike,
        *,
        api_version: str | None = None,
        custom_call_has_side_effect: bool = False,
        operand_layout_constraints: Sequence[ShapeLike] | str | None = None,
        output_to_operand_aliasing: Aliasing = None,
        called_computations: Sequence[HloComputation] = (),
        to_apply: HloComputation | None = None,
        literal: object = None,
        window: WindowLike = None,
        dim_labels: str | None = None,
        feature_group_count: int | None = None,
        batch_group_count: int | None = None,
        padding_type: str | None = None,
        operand_precision: Precision = None,
        schedule: str | None = None,
    ) -> HloValue:
        """Call a library's function; `api_version` is API_VERSION_ORIGINAL, .._STATUS_RETURNING, .._UNIFIED or .._TYPED_FFI."""
        called: dict[str, Sequence[HloComputation]] = {"called_computations": called_computations} if called_computations else {}
        if to_apply is not None:
            called["to_apply"] = [to_apply]
        return self.instruction(
            "custom-call",
            operands,
            shape,
            called=called,
            custom_call_target=target,
            api_version=api_version,
            custom_call_has_side_effect=custom_call_has_side_effect or None,
            operand_layout_constraints=operand_layout_constraints,
            output_to_operand_aliasing=output_to_operand_aliasing,
            literal=literal,
            window=window,
            dim_labels=dim_labels,
            feature_group_count=feature_group_count,
            batch_group_count=batch_group_count,
            padding_type=padding_type,
            operand_precision=operand_precision,
            schedule=schedule,
        )

    def rng(self, distribution: str, a: HloValue, b: HloValue, shape: ShapeLike) -> HloValue:
        """Draw `rng_uniform` numbers in [a, b), or `rng_normal` numbers of mean a and standard deviation b."""
        return self.instruction("rng", [a, b], shape, distribution=distribution)

    def rng_bit_generator(self, state: HloValue, shape: ShapeLike, algorithm: str = "rng_default") -> HloValue:
        """Return (next state, random bits of `shape`); `algorithm` is rng_default, rng_three_fry or rng_philox."""
        both = Shape.make_tuple((state.shape, shape_of(shape)))
        return self.instruction("rng-bit-generator", [state], both, algorithm=algorithm)

    def rng_get_and_update_state(self, delta: int, shape: ShapeLike = "u64[2]") -> HloValue:
        """Return this instruction's 128-bit counter as u64[2], low word first, and add `delta` to it.

        `shape` must be u64[2].
        """
        return self.instruction("rng-get-and-update-state", [], shape, delta=delta)

    def after_all(self, tokens: Sequence[HloValue] = ()) -> HloValue:
        """Return a token that depends on all of these; without arguments, a new token."""
        return self.instruction("after-all", tokens)

    def add_dependency(self, operand: HloValue, token: HloValue) -> HloValue:
        """Return `operand`, which its users get only after `token` is ready. `token` must be a token."""
        return self.instruction("add-dependency", [operand, token])

    def infeed(self, token: HloValue, shape: ShapeLike, infeed_config: str | None = None) -> HloValue:
        """Return (array or tuple of `shape` from the host, token)."""
        both = Shape.make_tuple((shape_of(shape), _TOKEN))
        return self.instruction("infeed", [token], both, infeed_config=infeed_config)

    def outfeed(
        self, operand: HloValue, token: HloValue, outfeed_shape: ShapeLike | None = None, outfeed_config: str | None = None
    ) -> HloValue:
        """Append the operand to the host's queue, and return a token."""
        fed = outfeed_shape if outfeed_shape is not None else operand.shape
        return self.instruction("outfeed", [operand, token], _TOKEN, outfeed_shape=fed, outfeed_config=outfeed_config)

    def send(self, operand: HloValue, token: HloValue, channel_id: int | None = None, is_host_transfer: bool = False) -> HloValue:
        """Begin to send the operand, and return (operand, u32 context, token)."""
        shape = Shape.make_tuple((operand.shape, Shape.array("u32", ()), _TOKEN))
        return self.instruction("send", [operand, token], shape, channel_id=channel_id, is_host_transfer=is_host_transfer or None)

    def send_done(self, send: HloValue, channel_id: int | None = None, is_host_transfer: bool = False) -> HloValue:
        """Wait until a message is sent, and return a token."""
        return self.instruction("send-done", [send], _TOKEN, channel_id=channel_id, is_host_transfer=is_host_transfer or None)

    def recv(self, token: HloValue, shape: ShapeLike, channel_id: int | None = None, is_host_transfer: bool = False) -> HloValue:
        """Begin to receive a message, and return (array of `shape`, u32 context, token)."""
        received = Shape.make_tuple((shape_of(shape), Shape.array("u32", ()), _TOKEN))
        return self.instruction("recv", [token], received, channel_id=channel_id, is_host_transfer=is_host_transfer or None)

    def recv_done(self, recv: HloValue, channel_id: int | None = None, is_host_transfer: bool = False) -> HloValue:
        """Wait for a message and return (received array, token). Raises UsageError if `recv` is not a result of `recv`."""
        if len(recv.shape.tuple_shapes) != 3:
            raise UsageError(f"recv_done needs a recv, not {recv.shape.to_string(layout=False)}")
        shape = Shape.make_tuple((recv.shape.tuple_shapes[0], _TOKEN))
        return self.instruction("recv-done", [recv], shape, channel_id=channel_id, is_host_transfer=is_host_transfer or None)

    def copy_start(
        self, operand: HloValue, shape: ShapeLike | None = None, cross_program_prefetch_index: int | None = None
    ) -> HloValue:
        """Start a copy to the layout (memory space) of `shape`; return (destination, source, u32 context)."""
        target = shape_of(shape) if shape is not None else operand.shape
        both = Shape.make_tuple((target, operand.shape, Shape.array("u32", ())))
        return self.instruction("copy-start", [operand], both, cross_program_prefetch_index=cross_program_prefetch_index)

    def copy_done(self, start: HloValue) -> HloValue:
        """Wait for a copy and return its destination, element 0 of `start`, a result of `copy_start`."""
        return self.instruction("copy-done", [start], start.shape.tuple_shapes[0] if start.shape.is_tuple else None)

    def async_start(
        self,
        operands: Sequence[HloValue],
        calls: ComputationLike,
        async_execution_thread: str | None = None,
        output_to_operand_aliasing: Aliasing = None,
        context: Sequence[ShapeLike] = (),
    ) -> HloValue:
        """Start a computation; return ((operands), result, context..)."""
        shapes = _shapes(operands)
        body = self.computation_of(calls, shapes, "async_computation")
        if async_execution_thread is not None:
            body.execution_thread = async_execution_thread
        shape = Shape.make_tuple((Shape.make_tuple(tuple(shapes)), body.root.shape, *map(shape_of, context)))
        return self.instruction(
            "async-start",
            operands,
            shape,
            called={"calls": [body]},
            async_execution_thread=async_execution_thread,
            output_to_operand_aliasing=output_to_operand_aliasing,
        )

    def async_update(self, start: HloValue) -> HloValue:
        """Return `start`, as a later point of its async chain. `start` is a result of `async_start` or `async_update`."""
        return self.instruction("async-update", [start], start.shape)

    def async_done(self, start: HloValue) -> HloValue:
        """Wait for a computation and return its result, element 1 of `start`.

        Raises UsageError if `start` is not a tuple of at least 2 elements.
        """
        if len(start.shape.tuple_shapes) < 2:
            raise UsageError(f"async_done needs an async start, not {start.shape.to_string(layout=False)}")
        return self.instruction("async-done", [start], start.shape.tuple_shapes[1])


def _shapes(values: Sequence[HloValue]) -> list[Shape]:
    return [value.shape for value in values]
