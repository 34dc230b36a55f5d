"""Checks that NVPTX supports the intrinsics of a kernel: on others LLVM ends the whole process, without an exception."""

from __future__ import annotations

import re

from hlo_run.errors import InternalError

_FLOAT = r"(?:f16|bf16|f32|f64)"
_INTEGER = r"i(?:1|8|16|32|64)"
_EITHER = rf"(?:v\d+)?(?:{_FLOAT}|{_INTEGER})"
# Each was tested on sm_70 to sm_120, for every type named here.
_ALLOWED = (
    rf"(?:fabs|floor|ceil|trunc|rint|nearbyint|roundeven|round|sqrt|copysign|fma|fmuladd)\.(?:v\d+)?{_FLOAT}",
    rf"(?:maximum|minimum|maxnum|minnum|maximumnum|minimumnum)\.(?:v\d+)?{_FLOAT}",
    rf"(?:ctlz|cttz|ctpop|abs|bitreverse|bswap|smax|smin|umax|umin|fshl|fshr)\.(?:v\d+)?{_INTEGER}",
    r"(?:ctlz|ctpop|abs|smax|smin|umax|umin)\.i[24]",
    rf"(?:sadd|uadd|ssub|usub)\.sat\.(?:v\d+)?{_INTEGER}",
    rf"(?:sadd|uadd|ssub|usub|smul|umul)\.with\.overflow\.{_INTEGER}",
    rf"vector\.reduce\.\w+\.v\d+{_EITHER}",
    r"(?:memcpy|memmove|memset)\.[\w.]+",
    r"(?:lifetime\.(?:start|end)\.[\w.]+|assume|experimental\.noalias\.scope\.decl)",
    r"dbg\.(?:value|declare|label)",
    r"trap",
    r"nvvm\.read\.ptx\.sreg\.(?:tid|ntid|ctaid|nctaid)\.[xyz]",
    r"nvvm\.read\.ptx\.sreg\.(?:warpsize|laneid)",
    r"nvvm\.(?:barrier0|barrier\.sync|barrier\.cta\.sync\.aligned\.all|bar\.warp\.sync)",
    r"nvvm\.shfl\.sync\.(?:down|up|bfly|idx)\.(?:i32|f32)",
)
_ACCELERATED = r"nvvm\.(?:ff\.to\.e2m1x2\.rn\.satfinite|e2m1x2\.to\.f16x2\.rn)"
# The first GPU that supports each intrinsic; a kernel for an older GPU must not call it.
_ALLOWED_FROM_SM = (
    (90, r"nvvm\.griddepcontrol\.(?:wait|launch\.dependents)"),
    (89, r"nvvm\.(?:ff|f16x2)\.to\.e[45]m[23]x2\.rn(?:\.relu)?"),
    (89, r"nvvm\.e[45]m[23]x2\.to\.f16x2\.rn(?:\.relu)?"),
    (100, _ACCELERATED),
)
# With `afn` these become an approximate instruction. Without it LLVM needs a libm function and aborts.
_ALLOWED_IF_APPROXIMATE = re.compile(r"llvm\.(?:tanh|sin|cos|exp2|log2)\.f32")
_CALL = re.compile(r"\bcall\b(?P<flags>[^@\n]*)@(?P<name>llvm\.[\w.]+)\(")
_ACCELERATED_CALL = re.compile(rf"\bcall\b[^@\n]*@llvm\.{_ACCELERATED}\(")


def is_accelerated(ir_text: str) -> bool:
    """True if the LLVM IR text calls an intrinsic of the variant `sm_NNa` only. Such PTX runs on no other GPU."""
    return _ACCELERATED_CALL.search(ir_text) is not None


def check_intrinsics(ir_text: str, sm: int) -> None:
    """Raise InternalError if a call in the LLVM IR text would make LLVM abort when it compiles for `sm`."""
    for match in sorted(set(_CALL.findall(ir_text))):
        flags, name = match
        if _is_allowed(name, sm) or (_ALLOWED_IF_APPROXIMATE.fullmatch(name) and re.search(r"\b(?:afn|fast)\b", flags)):
            continue
        raise InternalError(
            f"the kernel calls {name}, which LLVM cannot compile to PTX for sm_{sm}",
            notes=("LLVM would end the process; the lowering must use libdevice or other instructions here",),
        )


def _is_allowed(name: str, sm: int) -> bool:
    patterns = [*_ALLOWED, *(pattern for first_sm, pattern in _ALLOWED_FROM_SM if sm >= first_sm)]
    return any(re.fullmatch(rf"llvm\.{pattern}", name) for pattern in patterns)
