"""Make a scaled dot of a call that stands for one.

    call(x, y, sx, sy), to_apply=f, is_composite=true, frontend_attributes={composite.name="xla.scaled_dot",
        composite.attributes={dimension_numbers = [[[1], [0]], [[], []]]}}
      =>   scaled-dot(x, y, sx, sy), lhs_contracting_dims={1}, rhs_contracting_dims={0}

A framework hands over the product as a call of a function that computes it with simpler instructions. The released pass takes all
types; it leaves several contracting or batch dimensions alone. XLA's `CompositeRewriter`.
"""

from __future__ import annotations

import json
import re
from typing import ClassVar

from msgspec import Struct

from hlo_run.hlo.edit import Editor
from hlo_run.hlo.frontend_attributes import frontend_attribute
from hlo_run.hlo.graph import HloInstruction, HloModule
from hlo_run.pass_support.hlo_pass import PassContext

_NAME, _ATTRIBUTES, _SCALED_DOT = "composite.name", "composite.attributes", "xla.scaled_dot"
# The value of `dimension_numbers` in a dictionary of MLIR; its integers may have a type.
_NUMBERS = re.compile(r"\bdimension_numbers\s*=\s*(?P<lists>\[[][\s\d,:i]*\])")
_TYPE = re.compile(r"\s*:\s*i\d+")


class CompositeRewriter(Struct, frozen=True):
    """The pass; see the module's docstring."""

    name: ClassVar[str] = "composite-rewriter"

    def apply(self, ctx: PassContext, module: HloModule) -> None:
        """Edit `module` in place."""
        del ctx
        for call in module.in_post_order("call"):
            dims = _dimensions(call) if _is_scaled_dot(call) else None
            if dims is not None and call.parent is not None:
                editor = Editor(call, derives=False)
                module.replace_uses(call, editor.add_with("scaled-dot", call.shape, call.operands, dims))
                call.parent.remove_all([call])


def _is_scaled_dot(call: HloInstruction) -> bool:
    """True for a composite of two operands and their scales, which have as many dimensions and divide them."""
    if not call.attrs.get("is_composite") or frontend_attribute(call, _NAME) != _SCALED_DOT or len(call.operands) != 4:
        return False
    return all(_scales(call.operands[n].shape.dims, call.operands[n + 2].shape.dims) for n in (0, 1))


def _scales(dims: tuple[int, ...], scales: tuple[int, ...]) -> bool:
    return len(dims) == len(scales) and all(count and not size % count for size, count in zip(dims, scales, strict=True))


def _dimensions(call: HloInstruction) -> dict[str, tuple[int, ...]] | None:
    """Return the attributes of the scaled dot, or None if it has several contracting or batch dimensions."""
    stated = _NUMBERS.search(frontend_attribute(call, _ATTRIBUTES) or "")
    if stated is None:
        return None
    try:
        contracting, batch = json.loads(_TYPE.sub("", stated["lists"]))
        groups = {
            name: tuple(map(int, dims))
            for kind, pair in (("batch", batch), ("contracting", contracting))
            for name, dims in zip((f"lhs_{kind}_dims", f"rhs_{kind}_dims"), pair, strict=True)
        }
    except (TypeError, ValueError):
        return None
    if any(len(dims) != 1 if "contracting" in name else len(dims) > 1 for name, dims in groups.items()):
        return None
    return {name: dims for name, dims in groups.items() if dims}
