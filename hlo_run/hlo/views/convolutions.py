"""The view of a convolution, or of a library call with its attributes: labels, window and groups."""

from __future__ import annotations

from typing import NamedTuple

from msgspec import Struct

from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.values.attribute_values import DimLabels, Window, WindowDim


class SpatialDim(NamedTuple):
    """One spatial dimension: its window, and the dimension numbers of the input, the kernel and the output."""

    window: WindowDim
    input: int
    kernel: int
    output: int


class Convolution(Struct, frozen=True):
    """The attributes of a convolution: the roles of dimensions, the window, and the numbers of groups."""

    labels: DimLabels
    window: Window
    feature_groups: int
    batch_groups: int

    @staticmethod
    def of(convolution: HloInstruction) -> Convolution:
        """Return the view of a convolution, or of a custom call with the attributes of one."""
        i = convolution
        return Convolution(i.dim_labels, i.window, i.feature_group_count, i.batch_group_count)

    @property
    def has_groups(self) -> bool:
        """True if features or batches are in groups."""
        return self.feature_groups > 1 or self.batch_groups > 1

    @property
    def spatial(self) -> list[SpatialDim]:
        """The spatial dimensions in the order of the labels."""
        labels = self.labels
        dims = zip(
            self.window.dims, labels.input.spatial_dims, labels.kernel.spatial_dims, labels.output.spatial_dims, strict=True
        )
        return [SpatialDim(*dim) for dim in dims]
