"""Builder methods of reductions, windows, sorting, products, linear algebra and normalisation."""

from __future__ import annotations

from collections.abc import Sequence

from hlo_run.builder.core import BuilderCore, ComputationLike, HloValue
from hlo_run.builder.shaping import Ints, scalars_of, values_of
from hlo_run.errors import UsageError
from hlo_run.hlo.opcodes.names import Opcode
from hlo_run.hlo.values.shape import Shape

# A Window, a sequence of WindowDim, a mapping such as {"size": [3, 3], "pad": [(1, 1), (1, 1)]}, or text.
WindowLike = object
# One of `default`, `high`, `highest` per operand.
Precision = Sequence[str] | str | None


class LinalgMethods(BuilderCore):
    """Reducers are computations, functions of values, or opcodes such as `"add"`."""

    def reduce(
        self,
        operands: HloValue | Sequence[HloValue],
        init_values: HloValue | Sequence[HloValue],
        dimensions: Ints,
        to_apply: ComputationLike,
    ) -> HloValue:
        """Reduce the operands, several to a tuple; `to_apply` takes all accumulators, then all elements."""
        arrays, inits = values_of(operands), values_of(init_values)
        reducer = self.computation_of(to_apply, scalars_of([*inits, *arrays]), "reducer")
        return self.instruction("reduce", [*arrays, *inits], dimensions=dimensions, called={"to_apply": [reducer]})

    def reduce_window(
        self,
        operands: HloValue | Sequence[HloValue],
        init_values: HloValue | Sequence[HloValue],
        window: WindowLike,
        to_apply: ComputationLike,
    ) -> HloValue:
        """Reduce the elements under each position of a window.

        `window` has one size per dimension of the operand. A dimension of the result has the number of window positions.
        `init_values` are scalars, one per operand. `to_apply` takes the accumulator, then the element. Several operands reduce
        to a tuple, whose shape is not inferred: they raise ParseError here, and need `instruction` with a shape.
        """
        arrays, inits = values_of(operands), values_of(init_values)
        reducer = self.computation_of(to_apply, scalars_of([*inits, *arrays]), "reducer")
        return self.instruction("reduce-window", [*arrays, *inits], window=window, called={"to_apply": [reducer]})

    def select_and_scatter(
        self,
        operand: HloValue,
        source: HloValue,
        init_value: HloValue,
        window: WindowLike,
        select: ComputationLike,
        scatter: ComputationLike,
    ) -> HloValue:
        """Reduce each source element into the place that `select` picks: it maps (selected, candidate) to true to keep."""
        scalars = scalars_of([operand, operand])
        called = {
            "select": [self.computation_of(select, scalars, "select")],
            "scatter": [self.computation_of(scatter, scalars_of([source, init_value]), "scatter")],
        }
        return self.instruction("select-and-scatter", [operand, source, init_value], window=window, called=called)

    def map(self, operands: HloValue | Sequence[HloValue], to_apply: ComputationLike, dimensions: Ints | None = None) -> HloValue:
        """Apply a computation of scalars to every element; `dimensions` must be all dimensions, the default."""
        arrays = values_of(operands)
        dims = dimensions if dimensions is not None else range(arrays[0].shape.rank)
        body = self.computation_of(to_apply, scalars_of(arrays), "mapped")
        return self.instruction("map", arrays, dimensions=dims, called={"to_apply": [body]})

    def sort(
        self,
        operands: HloValue | Sequence[HloValue],
        dimension: int,
        to_apply: ComputationLike,
        is_stable: bool = False,
    ) -> HloValue:
        """`to_apply` returns true if the first of two elements comes first; it takes a pair of elements per operand."""
        arrays = values_of(operands)
        pairs = [shape for shape in scalars_of(arrays) for _ in range(2)]
        comparator = self.computation_of(to_apply, pairs, "compare")
        return self.instruction(
            "sort", arrays, dimensions=[dimension], is_stable=is_stable or None, called={"to_apply": [comparator]}
        )

    def topk(self, operand: HloValue, k: int, largest: bool = True, is_stable: bool = True) -> HloValue:
        """Return (values, s32 indices) of the k largest or smallest elements along the last dimension."""
        return self.instruction(
            "topk", [operand], k=k, largest=None if largest else False, is_stable=None if is_stable else False
        )

    def scan(
        self,
        operands: Sequence[HloValue],
        dimension: int,
        num_carries: int,
        to_apply: ComputationLike,
        is_reverse: bool = False,
        is_associative: bool = False,
    ) -> HloValue:
        """Scan a dimension: `operands` are inputs, then `num_carries` initial carries; `to_apply` has them in this order."""
        values = list(operands)
        inputs, carries = values[: len(values) - num_carries], values[len(values) - num_carries :]
        shapes = [_without(value, dimension) for value in inputs] + [value.shape for value in carries]
        return self.instruction(
            "scan",
            values,
            dimensions=[dimension],
            num_carries=num_carries,
            is_reverse=is_reverse or None,
            is_associative=is_associative or None,
            called={"to_apply": [self.computation_of(to_apply, shapes, "scan_body")]},
        )

    def dot(
        self,
        lhs: HloValue,
        rhs: HloValue,
        *,
        lhs_contracting_dims: Ints | None = None,
        rhs_contracting_dims: Ints | None = None,
        lhs_batch_dims: Ints = (),
        rhs_batch_dims: Ints = (),
        element_type: str | None = None,
        operand_precision: Precision = None,
        algorithm: str | None = None,
    ) -> HloValue:
        """Multiply matrices or vectors. Without dimensions, the product contracts the last dimension with the first.

        `element_type` is that of the result; the default is inferred from the operands. Raises UsageError above rank 2 without
        dimensions.
        """
        if lhs_contracting_dims is None and rhs_contracting_dims is None:
            if not 1 <= lhs.shape.rank <= 2 or not 1 <= rhs.shape.rank <= 2 or lhs_batch_dims or rhs_batch_dims:
                raise UsageError("dot without contracting dimensions multiplies matrices and vectors")
            lhs_contracting_dims, rhs_contracting_dims = (lhs.shape.rank - 1,), (0,)
        return self._dot(
            "dot",
            [lhs, rhs],
            element_type,
            lhs_batch_dims=lhs_batch_dims or None,
            lhs_contracting_dims=lhs_contracting_dims,
            rhs_batch_dims=rhs_batch_dims or None,
            rhs_contracting_dims=rhs_contracting_dims,
            operand_precision=operand_precision,
            algorithm=algorithm,
        )

    def ragged_dot(
        self,
        lhs: HloValue,
        rhs: HloValue,
        group_sizes: HloValue,
        *,
        lhs_contracting_dims: Ints,
        rhs_contracting_dims: Ints,
        lhs_ragged_dims: Ints,
        rhs_group_dims: Ints = (),
        lhs_batch_dims: Ints = (),
        rhs_batch_dims: Ints = (),
        element_type: str | None = None,
        operand_precision: Precision = None,
    ) -> HloValue:
        """Multiply matrices in groups along one dimension of `lhs`, whose sizes are in `group_sizes` ([.., groups], integers).

        The kind of the one dimension in `lhs_ragged_dims` selects the form (g groups, b batch, m and n free, k contracting):

        - free: [b, m, k] x [g, b, k, n] -> [b, m, n]. Each row uses the matrix of its group, by dimension `rhs_group_dims`.
          Rows after the last group are 0.
        - contracting: [b, m, k] x [b, k, n] -> [g, b, m, n]. Each group sums its range of k.
        - batch: [b, m, k] x [b, k, n] -> [b, m, n]. Batches after the last group are 0.

        `element_type` is that of the result; the default is inferred from the operands.
        """
        return self._dot(
            "ragged-dot",
            [lhs, rhs, group_sizes],
            element_type,
            lhs_batch_dims=lhs_batch_dims or None,
            lhs_contracting_dims=lhs_contracting_dims,
            rhs_batch_dims=rhs_batch_dims or None,
            rhs_contracting_dims=rhs_contracting_dims,
            lhs_ragged_dims=lhs_ragged_dims,
            rhs_group_dims=rhs_group_dims,
            operand_precision=operand_precision,
        )

    def scaled_dot(
        self,
        lhs: HloValue,
        rhs: HloValue,
        lhs_scale: HloValue,
        rhs_scale: HloValue,
        *,
        lhs_contracting_dims: Ints,
        rhs_contracting_dims: Ints,
        lhs_batch_dims: Ints = (),
        rhs_batch_dims: Ints = (),
        element_type: str | None = None,
        operand_precision: Precision = None,
    ) -> HloValue:
        """Multiply operands that have a scale per block."""
        return self._dot(
            "scaled-dot",
            [lhs, rhs, lhs_scale, rhs_scale],
            element_type,
            lhs_batch_dims=lhs_batch_dims or None,
            lhs_contracting_dims=lhs_contracting_dims,
            rhs_batch_dims=rhs_batch_dims or None,
            rhs_contracting_dims=rhs_contracting_dims,
            operand_precision=operand_precision,
        )

    def convolution(
        self,
        lhs: HloValue,
        rhs: HloValue,
        *,
        window: WindowLike,
        dim_labels: str,
        feature_group_count: int = 1,
        batch_group_count: int = 1,
        element_type: str | None = None,
        operand_precision: Precision = None,
        convolution_kind: str | None = None,
        algorithm: str | None = None,
        sparsity_config: str | None = None,
    ) -> HloValue:
        """Return a convolution. `dim_labels` is text like `b01f_01io->b01f`; `window` has the kernel's spatial sizes."""
        return self._dot(
            "convolution",
            [lhs, rhs],
            element_type,
            window=window,
            dim_labels=dim_labels,
            feature_group_count=None if feature_group_count == 1 else feature_group_count,
            batch_group_count=None if batch_group_count == 1 else batch_group_count,
            convolution_kind=convolution_kind,
            operand_precision=operand_precision,
            algorithm=algorithm,
            sparsity_config=sparsity_config,
        )

    def _dot(self, opcode: Opcode, operands: list[HloValue], element_type: str | None, **attributes: object) -> HloValue:
        return self._instruction(opcode, operands, attributes, result_type=element_type)

    def fft(self, operand: HloValue, fft_type: str, fft_length: Ints) -> HloValue:
        """Return the transform; `fft_type` is FFT, IFFT, RFFT or IRFFT; `fft_length` has the innermost dimensions' sizes."""
        return self.instruction("fft", [operand], fft_type=fft_type, fft_length=fft_length)

    def triangular_solve(
        self,
        a: HloValue,
        b: HloValue,
        left_side: bool = True,
        lower: bool = True,
        unit_diagonal: bool = False,
        transpose_a: str = "NO_TRANSPOSE",
    ) -> HloValue:
        """Solve op(a) x = b, or x op(a) = b; `transpose_a` is NO_TRANSPOSE, TRANSPOSE or ADJOINT."""
        return self.instruction(
            "triangular-solve",
            [a, b],
            left_side=left_side or None,
            lower=lower or None,
            unit_diagonal=unit_diagonal or None,
            transpose_a=transpose_a,
        )

    def cholesky(self, a: HloValue, lower: bool = True) -> HloValue:
        """Return the Cholesky factor of positive definite matrices [.., n, n] of floats or complex numbers, in the same shape.

        It is the lower triangle l of a = l l^H, or with `lower` False the upper triangle u of a = u^H u. Only that triangle of
        `a` is read. A matrix that is not positive definite gives NaN.
        """
        return self.instruction("cholesky", [a], lower=lower or None)

    def batch_norm_training(
        self, operand: HloValue, scale: HloValue, offset: HloValue, epsilon: float, feature_index: int
    ) -> HloValue:
        """Normalise a batch: return (output, batch mean, batch variance)."""
        operands = [operand, scale, offset]
        return self.instruction("batch-norm-training", operands, epsilon=epsilon, feature_index=feature_index)

    def batch_norm_inference(
        self,
        operand: HloValue,
        scale: HloValue,
        offset: HloValue,
        mean: HloValue,
        variance: HloValue,
        epsilon: float,
        feature_index: int,
    ) -> HloValue:
        """Return (operand - mean) / sqrt(variance + epsilon) * scale + offset, in the operand's shape.

        `scale`, `offset`, `mean` and `variance` are vectors with one element per index of dimension `feature_index`.
        """
        operands = [operand, scale, offset, mean, variance]
        return self.instruction("batch-norm-inference", operands, epsilon=epsilon, feature_index=feature_index)

    def batch_norm_grad(
        self,
        operand: HloValue,
        scale: HloValue,
        mean: HloValue,
        variance: HloValue,
        grad_output: HloValue,
        epsilon: float,
        feature_index: int,
    ) -> HloValue:
        """Return the gradients of (operand, scale, offset)."""
        operands = [operand, scale, mean, variance, grad_output]
        return self.instruction("batch-norm-grad", operands, epsilon=epsilon, feature_index=feature_index)


def _without(value: HloValue, dimension: int) -> Shape:
    """Return the shape of a scan's slice: the array without the scanned dimension."""
    shape = value.shape
    return Shape.array(shape.element_type, (*shape.dims[:dimension], *shape.dims[dimension + 1 :]))
