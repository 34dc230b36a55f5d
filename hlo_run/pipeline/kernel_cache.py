"""Caches kernels in the user's cache directory, by fusion, arguments, flags of compilation, target and compiler."""

from __future__ import annotations

import json

from hlo_run.artifact import Kernel
from hlo_run.cache import FileCache, compiler_digest, digest, open_cache
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.pass_support.replacements import Replacements
from hlo_run.runtime.kernel_requests import KernelRequest

# The parts of the package that a kernel's PTX depends on.
PARTS = tuple(
    """analysis artifact codegen containment dialects hlo hlo_passes indexing ops options pass_support pipeline records runtime
    sharding""".split()
)


class KernelCache:
    """The cached kernels of one compilation."""

    def __init__(self, cache: FileCache, ctx: PassContext) -> None:
        self._cache = cache
        self.base = digest(compiler_digest(*PARTS), repr(ctx.target), ctx.options.compilation_key())

    @classmethod
    def open(cls, ctx: PassContext) -> KernelCache | None:
        """Return the cache of a compilation; None if observers or replacements need real kernels, or the cache is off.

        With limits of LLVM's passes or of rewrites, a kernel depends on the kernels before it, so none is kept.
        """
        if ctx.options.llvm_opt_bisect_limit >= 0 or ctx.options.kernel_fuel:
            return None
        if ctx.observers or ctx.replacements != Replacements() or ctx.locates:
            return None
        cache = open_cache("kernels")
        return None if cache is None else cls(cache, ctx)

    def get(self, request: KernelRequest) -> Kernel | None:
        """Return the kernel of a request; None if it is not in the cache."""
        data = self._cache.get(self._key(request))
        if data is None:
            return None
        fields = json.loads(data)
        return Kernel(fields["name"], fields["ptx"], tuple(fields["grid"]), tuple(fields["block"]), fields["shared_bytes"])

    def put(self, request: KernelRequest, kernel: Kernel) -> None:
        """Write a kernel to the cache."""
        fields = {
            "name": kernel.name,
            "ptx": kernel.ptx,
            "grid": kernel.grid,
            "block": kernel.block,
            "shared_bytes": kernel.shared_bytes,
        }
        self._cache.put(self._key(request), json.dumps(fields).encode())

    def _key(self, request: KernelRequest) -> str:
        return digest(self.base, request.kernel, repr(request.fusion.fusion_kind), request.key)
