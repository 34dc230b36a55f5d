"""Caches executables in the user's cache directory, by module, flags of compilation, target and compiler.

After a hit the module is not optimised and its kernels are not compiled, so neither xDSL nor llvmlite is imported.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress

import numpy as np

from hlo_run.artifact import Executable
from hlo_run.artifact.file import load, save
from hlo_run.cache import LIMIT_BYTES, FileCache, compiler_digest, digest, open_cache
from hlo_run.custom_calls import registered_targets
from hlo_run.errors import Unsupported, UsageError
from hlo_run.hlo.graph import HloModule
from hlo_run.hlo.print_options import FULL
from hlo_run.hlo.printer import module_to_string
from hlo_run.hlo.values.literal import Literal
from hlo_run.pass_support.hlo_pass import PassContext
from hlo_run.pass_support.replacements import Replacements
from hlo_run.records import replace

# A larger file is not cached, since it would evict many others.
MOST_BYTES = LIMIT_BYTES // 8


def compile_or_load(ctx: PassContext, module: HloModule) -> Executable:
    """Return the Executable of `module` from the cache, or compile it. A compilation optimises `module` in place.

    Raises errors of the HloRunError family.
    """
    cache = open_for(ctx)
    if cache is None:
        return _compile(ctx, module)
    key = key_of(ctx, module)
    data = cache.get(key)
    if data is not None:
        with suppress(UsageError):
            # No compilation puts machine code into the cache. Host keeps its own apart.
            return replace(load(data, key), machine_code=None)
    executable = _compile(ctx, module)
    try:
        # A later run checks the kernels against the module, which it does not optimise.
        data = save(replace(executable, module_text=module_to_string(module, FULL)))
    except Unsupported:
        return executable
    if len(data) <= MOST_BYTES:
        cache.put(key, data)
    return executable


def _compile(ctx: PassContext, module: HloModule) -> Executable:
    from hlo_run.pipeline.compile import compile_module  # imports xDSL and llvmlite

    return compile_module(ctx, module)


def open_for(ctx: PassContext) -> FileCache | None:
    """Return the cache; None if observers, replacements or `--output` need a real compilation, or the cache is off.

    No key knows the code of passes of other packages.
    """
    if ctx.observers or ctx.replacements != Replacements() or ctx.locates or ctx.options.output or ctx.options.insert_passes:
        return None
    return open_cache("executables")


def key_of(ctx: PassContext, module: HloModule) -> str:
    """Return the digest of everything that the executable depends on, with the order of instructions, which decides its names."""
    # Large constants take long as text, so their bytes are hashed.
    text = module_to_string(module, replace(FULL, in_creation_order=True, large_constants=False))
    constants = "".join(_literal_digest(i.literal) for i in module.instructions if i.opcode == "constant")
    order = " ".join(instruction.name for computation in module.computations for instruction in computation.instructions)
    forms = (module.has_header, module.has_entry, module.has_default_entry_layout, module.schedule is None)
    flags = (repr(ctx.target), ctx.options.compilation_key(), repr(registered_targets()))
    return digest(compiler_digest(), *flags, repr(forms), order, text, constants)


def _literal_digest(literal: Literal) -> str:
    """Return a digest of the bytes of a literal's arrays in order; the text of the module has their shapes."""
    made = hashlib.sha256()
    waiting = [literal]
    while waiting:
        top = waiting.pop()
        if isinstance(top, tuple):
            waiting += reversed(top)
        else:
            made.update(np.ascontiguousarray(top).reshape(-1).view(np.uint8).data)
    return made.hexdigest()
