"""LLVM IR kernels, one per operation and type, that together make LLVM spell most PTX instructions it has for our kernels."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

INTEGERS = ("i8", "i16", "i32", "i64")
FLOATS = ("half", "bfloat", "float", "double")
SHORT = {"half": "f16", "bfloat": "bf16", "float": "f32", "double": "f64"}
SREGS = {"tid": "tid.x", "cta": "ctaid.x", "ntid": "ntid.x"}

LIBDEVICE_UNARY = (
    "acos acosh asin asinh atan atanh cbrt ceil cos cosh erf exp exp2 expm1 fabs floor log log10 log1p log2 rint round rsqrt "
    "sin sinh sqrt tan tanh trunc"
).split()
LIBDEVICE_BINARY = "atan2 copysign fmod pow fmin fmax remainder hypot".split()


@dataclass(frozen=True)
class Survey:
    """A kernel `name(inputs..., output)` that applies `body` (sets %r from %a, %b, %c) to the element of each thread."""

    name: str
    inputs: tuple[str, ...]
    output: str
    body: str
    declarations: tuple[str, ...] = ()

    def text(self) -> str:
        """Return the kernel as LLVM IR."""
        names = "abc"[: len(self.inputs)]
        params = ", ".join([f"ptr noalias align 16 %p{n}" for n in names] + ["ptr noalias align 16 %out"])
        lines = [f"define ptx_kernel void @{self.name}({params}) {{"]
        lines += [f"  %{key} = call i32 @llvm.nvvm.read.ptx.sreg.{sreg}()" for key, sreg in SREGS.items()]
        lines += ["  %m = mul i32 %cta, %ntid", "  %i = add i32 %m, %tid"]
        for name, type_name in zip(names, self.inputs, strict=True):
            lines += _load(name, type_name)
        lines += [f"  {line}" for line in self.body.split("\n")]
        lines += _store(self.output)
        return "\n".join([*lines, "  ret void", "}"])


def _load(name: str, type_name: str) -> list[str]:
    memory = "i8" if type_name == "i1" else type_name
    lines = [f"  %g{name} = getelementptr inbounds {memory}, ptr %p{name}, i32 %i"]
    if type_name == "i1":
        return [*lines, f"  %l{name} = load i8, ptr %g{name}", f"  %{name} = trunc i8 %l{name} to i1"]
    return [*lines, f"  %{name} = load {type_name}, ptr %g{name}"]


def _store(type_name: str) -> list[str]:
    memory = "i8" if type_name == "i1" else type_name
    lines = [f"  %go = getelementptr inbounds {memory}, ptr %out, i32 %i"]
    if type_name == "i1":
        return [*lines, "  %rb = zext i1 %r to i8", "  store i8 %rb, ptr %go"]
    return [*lines, f"  store {type_name} %r, ptr %go"]


def intrinsic(name: str, output: str, *arguments: str, flags: str = "") -> tuple[str, str]:
    """Return (body, declaration) of a call of `name` on %a, %b, ..."""
    passed = ", ".join(f"{argument} %{'abc'[n]}" if _is_type(argument) else argument for n, argument in enumerate(arguments))
    types = ", ".join(argument if _is_type(argument) else argument.split(" ")[0] for argument in arguments)
    return f"%r = call {flags} {output} @{name}({passed})", f"declare {output} @{name}({types})"


def _is_type(argument: str) -> bool:
    return argument.startswith("<") or " " not in argument


def _called(label: str, name: str, output: str, *arguments: str, flags: str = "") -> Survey:
    body, declaration = intrinsic(name, output, *arguments, flags=flags)
    inputs = tuple(argument for argument in arguments if _is_type(argument))
    return Survey(label, inputs, output, body, (declaration,))


def integer_kernels() -> Iterator[Survey]:
    for t in INTEGERS:
        for op in ("add", "sub", "mul", "udiv", "sdiv", "urem", "srem", "shl", "lshr", "ashr", "and", "or", "xor"):
            yield Survey(f"{op}_{t}", (t, t), t, f"%r = {op} {t} %a, %b")
        for predicate in ("eq", "ne", "slt", "sle", "sgt", "sge", "ult", "ule", "ugt", "uge"):
            yield Survey(f"icmp_{predicate}_{t}", (t, t), "i1", f"%r = icmp {predicate} {t} %a, %b")
        yield Survey(f"select_{t}", (t, t, "i1"), t, f"%r = select i1 %c, {t} %a, {t} %b")
        for name in ("smax", "smin", "umax", "umin"):
            yield _called(f"{name}_{t}", f"llvm.{name}.{t}", t, t, t)
        for name in ("ctpop", "bitreverse", *(["bswap"] if t != "i8" else [])):
            yield _called(f"{name}_{t}", f"llvm.{name}.{t}", t, t)
        for name in ("ctlz", "cttz", "abs"):
            yield _called(f"{name}_{t}", f"llvm.{name}.{t}", t, t, "i1 false")
        for name in ("fshl", "fshr"):
            yield _called(f"{name}_{t}", f"llvm.{name}.{t}", t, t, t, t)
        for name in ("sadd", "uadd", "ssub", "usub"):
            yield _called(f"{name}_sat_{t}", f"llvm.{name}.sat.{t}", t, t, t)
        for name in ("sadd", "uadd", "ssub", "usub", "smul", "umul"):
            function = f"llvm.{name}.with.overflow.{t}"
            body = f"%t = call {{{t}, i1}} @{function}({t} %a, {t} %b)\n%r = extractvalue {{{t}, i1}} %t, 1"
            yield Survey(f"{name}_overflow_{t}", (t, t), "i1", body, (f"declare {{{t}, i1}} @{function}({t}, {t})",))
    for op in ("add", "sub", "mul", "shl", "lshr", "ashr"):
        body = f"%x = sext i64 %a to i128\n%y = zext i64 %b to i128\n%z = shl i128 %x, 31\n%w = {op} i128 %z, %y\n"
        yield Survey(f"{op}_i128", ("i64", "i64"), "i64", body + "%h = lshr i128 %w, 47\n%r = trunc i128 %h to i64")
    yield Survey("mulhi_i64", ("i64", "i64"), "i64", _high_product("sext", 64))
    yield Survey("umulhi_i64", ("i64", "i64"), "i64", _high_product("zext", 64))
    yield Survey("mulhi_i32", ("i32", "i32"), "i32", _high_product("sext", 32))
    yield Survey("udiv_by_7", ("i32",), "i32", "%r = udiv i32 %a, 7")
    yield Survey("sdiv_by_1000", ("i64",), "i64", "%r = sdiv i64 %a, 1000")
    yield Survey("urem_by_12_i16", ("i16",), "i16", "%r = urem i16 %a, 12")
    yield Survey("field", ("i32",), "i32", "%s = shl i32 %a, 11\n%r = ashr i32 %s, 22")
    yield Survey("field_u64", ("i64",), "i64", "%s = lshr i64 %a, 13\n%r = and i64 %s, 1023")
    yield Survey(
        "logic3",
        ("i32", "i32", "i32"),
        "i32",
        "%x = and i32 %a, %b\n%n = xor i32 %a, -1\n%y = and i32 %n, %c\n%r = or i32 %x, %y",
    )


def _high_product(extension: str, bits: int) -> str:
    wide = f"i{2 * bits}"
    extended = "\n".join(f"%{w} = {extension} i{bits} %{n} to {wide}" for w, n in (("x", "a"), ("y", "b")))
    return f"{extended}\n%p = mul {wide} %x, %y\n%h = lshr {wide} %p, {bits}\n%r = trunc {wide} %h to i{bits}"


def float_kernels() -> Iterator[Survey]:
    for t in FLOATS:
        s = SHORT[t]
        for op in ("fadd", "fsub", "fmul", "fdiv", "frem"):
            yield Survey(f"{op}_{s}", (t, t), t, f"%r = {op} {t} %a, %b")
        yield Survey(f"fneg_{s}", (t,), t, f"%r = fneg {t} %a")
        for predicate in "oeq one olt ole ogt oge ord ueq une ult ule ugt uge uno".split():
            yield Survey(f"fcmp_{predicate}_{s}", (t, t), "i1", f"%r = fcmp {predicate} {t} %a, %b")
        yield Survey(f"select_{s}", (t, t, "i1"), t, f"%r = select i1 %c, {t} %a, {t} %b")
        for name in ("fabs", "floor", "ceil", "trunc", "rint", "nearbyint", "roundeven", "round", "sqrt"):
            yield _called(f"{name}_{s}", f"llvm.{name}.{s}", t, t)
        for name in ("copysign", "maximum", "minimum", "maxnum", "minnum"):
            yield _called(f"{name}_{s}", f"llvm.{name}.{s}", t, t, t)
        yield _called(f"fma_{s}", f"llvm.fma.{s}", t, t, t, t)
        yield _called(f"fmuladd_{s}", f"llvm.fmuladd.{s}", t, t, t, t)
        yield Survey(f"recip_{s}", (t,), t, f"%r = fdiv {t} 1.0, %a")
        yield Survey(f"contracted_{s}", (t, t, t), t, f"%x = fmul contract {t} %a, %b\n%r = fsub contract {t} %x, %c")
        integer = {"half": "i16", "bfloat": "i16", "float": "i32", "double": "i64"}[t]
        yield Survey(f"bits_{s}", (t,), integer, f"%r = bitcast {t} %a to {integer}")
        yield Survey(f"signbit_{s}", (t,), "i1", f"%x = bitcast {t} %a to {integer}\n%r = icmp slt {integer} %x, 0")
    yield Survey("fast_div_f32", ("float", "float"), "float", "%r = fdiv afn arcp float %a, %b")
    yield Survey("fast_recip_f32", ("float",), "float", "%r = fdiv afn arcp float 1.0, %a")
    yield _called("fast_sqrt_f32", "llvm.sqrt.f32", "float", "float", flags="afn")
    for name in ("tanh", "sin", "cos", "exp2"):
        yield _called(f"fast_{name}_f32", f"llvm.{name}.f32", "float", "float", flags="afn")


def conversion_kernels() -> Iterator[Survey]:
    for f in FLOATS:
        for i in ("i1", *INTEGERS):
            yield Survey(f"sitofp_{i}_{SHORT[f]}", (i,), f, f"%r = sitofp {i} %a to {f}")
            yield Survey(f"uitofp_{i}_{SHORT[f]}", (i,), f, f"%r = uitofp {i} %a to {f}")
            yield Survey(f"fptosi_{SHORT[f]}_{i}", (f,), i, f"%r = fptosi {f} %a to {i}")
            yield Survey(f"fptoui_{SHORT[f]}_{i}", (f,), i, f"%r = fptoui {f} %a to {i}")
        for g in FLOATS:
            if FLOATS.index(g) > max(FLOATS.index(f), 1):
                yield Survey(f"fpext_{SHORT[f]}_{SHORT[g]}", (f,), g, f"%r = fpext {f} %a to {g}")
                yield Survey(f"fptrunc_{SHORT[g]}_{SHORT[f]}", (g,), f, f"%r = fptrunc {g} %a to {f}")
    for low in INTEGERS:
        for high in INTEGERS[INTEGERS.index(low) + 1 :]:
            yield Survey(f"sext_{low}_{high}", (low,), high, f"%r = sext {low} %a to {high}")
            yield Survey(f"zext_{low}_{high}", (low,), high, f"%r = zext {low} %a to {high}")
            yield Survey(f"trunc_{high}_{low}", (high,), low, f"%r = trunc {high} %a to {low}")


def libdevice_kernels() -> Iterator[Survey]:
    for t, suffix in (("float", "f"), ("double", "")):
        for name in LIBDEVICE_UNARY:
            yield _called(f"nv_{name}{suffix}", f"__nv_{name}{suffix}", t, t)
        for name in LIBDEVICE_BINARY:
            yield _called(f"nv_{name}{suffix}", f"__nv_{name}{suffix}", t, t, t)
        yield _called(f"nv_fma{suffix}", f"__nv_fma{suffix}", t, t, t, t)
    for name in ("cos", "exp", "log", "log2", "log10", "sin", "tan"):
        yield _called(f"nv_fast_{name}f", f"__nv_fast_{name}f", "float", "float")


def vector_kernels() -> Iterator[Survey]:
    for t in ("half", "bfloat", "float", "double"):
        for n in (2, 4, 8):
            v = f"<{n} x {t}>"
            for op in ("fadd", "fmul", "fsub"):
                yield Survey(f"{op}_v{n}{SHORT[t]}", (v, v), v, f"%r = {op} {v} %a, %b")
            yield _called(f"fma_v{n}{SHORT[t]}", f"llvm.fma.v{n}{SHORT[t]}", v, v, v, v)
            yield _called(f"maximum_v{n}{SHORT[t]}", f"llvm.maximum.v{n}{SHORT[t]}", v, v, v)
            yield _called(f"minnum_v{n}{SHORT[t]}", f"llvm.minnum.v{n}{SHORT[t]}", v, v, v)
            yield _called(f"fabs_v{n}{SHORT[t]}", f"llvm.fabs.v{n}{SHORT[t]}", v, v)
            yield Survey(f"fneg_v{n}{SHORT[t]}", (v,), v, f"%r = fneg {v} %a")
            compare = f"%x = fcmp olt {v} %a, %b\n%r = select <{n} x i1> %x, {v} %a, {v} %b"
            yield Survey(f"fcmp_v{n}{SHORT[t]}", (v, v), v, compare)
    for n in (2, 4, 8):
        for t in ("half", "bfloat"):
            wide, narrow = f"<{n} x float>", f"<{n} x {t}>"
            yield Survey(f"fptrunc_v{n}_{SHORT[t]}", (wide,), narrow, f"%r = fptrunc {wide} %a to {narrow}")
            yield Survey(f"fpext_v{n}_{SHORT[t]}", (narrow,), wide, f"%r = fpext {narrow} %a to {wide}")
        for t in INTEGERS:
            v = f"<{n} x {t}>"
            for op in ("add", "mul", "xor", "shl"):
                yield Survey(f"{op}_v{n}{t}", (v, v), v, f"%r = {op} {v} %a, %b")
            for name in ("smin", "umax"):
                yield _called(f"{name}_v{n}{t}", f"llvm.{name}.v{n}{t}", v, v, v)
            reverse = ", ".join(f"i32 {n - 1 - k}" for k in range(n))
            yield Survey(f"shuffle_v{n}{t}", (v,), v, f"%r = shufflevector {v} %a, {v} poison, <{n} x i32> <{reverse}>")
            yield Survey(f"extract_v{n}{t}", (v, "i32"), t, f"%k = and i32 %b, {n - 1}\n%r = extractelement {v} %a, i32 %k")


def all_kernels() -> list[Survey]:
    """Return every kernel of the survey."""
    return [
        *integer_kernels(),
        *float_kernels(),
        *conversion_kernels(),
        *libdevice_kernels(),
        *vector_kernels(),
    ]


def _group_text(group: Sequence[Survey]) -> str:
    parameters: list[str] = []
    lines: list[str] = []
    for number, kernel in enumerate(group):
        head, *body, _, _ = re.sub(r"%(\w+)", rf"%\1.{number}", kernel.text()).split("\n")
        parameters.append(head[head.index("(") + 1 : head.rindex(")")])
        lines += body
    return "\n".join([f"define ptx_kernel void @{group[0].name}({', '.join(parameters)}) {{", *lines, "  ret void", "}"])


def module_text(kernels: list[Survey]) -> str:
    """Return one LLVM module with all kernels."""
    return joined_text([[kernel] for kernel in kernels])


def joined_text(groups: Sequence[Sequence[Survey]]) -> str:
    """Return one LLVM module with a kernel per group, which does the work of all its kernels and has the name of the first.

    Its parameters are those of the first kernel, then those of the second, and so on.
    """
    kernels = [kernel for group in groups for kernel in group]
    declarations = {f"declare i32 @llvm.nvvm.read.ptx.sreg.{sreg}()": None for sreg in SREGS.values()}
    declarations.update(dict.fromkeys(line for kernel in kernels for line in kernel.declarations))
    layout = "e-p6:32:32-i64:64-i128:128-i256:256-v16:16-v32:32-n16:32:64"
    head = f'target datalayout = "{layout}"\ntarget triple = "nvptx64-nvidia-cuda"'
    return "\n".join([head, *map(_group_text, groups), *declarations]) + "\n"
