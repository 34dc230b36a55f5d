"""Executables that were compiled before, in the user's cache: by the module, the flags of compilation, target and compiler.

A module that is found is neither optimised nor are its kernels compiled, and neither xDSL nor llvmlite is imported.
"""

from __future__ import annotations

from dataclasses import replace

from hlo_run.artifact import Executable
from hlo_run.artifact.file import load, save
from hlo_run.cache import LIMIT_BYTES, FileCache, compiler_digest, digest, open_cache
from hlo_run.custom_calls import registered_targets
from hlo_run.errors import UsageError
from hlo_run.hlo.graph import HloModule
from hlo_run.hlo.print_options import FULL
from hlo_run.hlo.printer import module_to_string
from hlo_run.hlo_passes.hlo_pass import PassContext
from hlo_run.hlo_passes.replacements import Replacements
from hlo_run.options import FIELDS, Options

# Flags of the section Compile that say where results go and who makes them, not what they are.
_NO_MATTER = frozenset(("cache", "compile_processes", "output", "output_machine_code"))
# A file that would push out many others stays away.
MOST_BYTES = LIMIT_BYTES // 8


def compile_or_load(ctx: PassContext, module: HloModule) -> Executable:
    """Return the Executable of `module`; unless it comes from the cache, `module` is optimised in place.

    Raises errors of the HloRunError family.
    """
    cache = open_for(ctx)
    if cache is None:
        return _compile(ctx, module)
    key = key_of(ctx, module)
    data = cache.get(key)
    if data is not None:
        try:
            return load(data, key)
        except UsageError:
            pass
    executable = _compile(ctx, module)
    data = save(executable)
    if len(data) <= MOST_BYTES:
        cache.put(key, data)
        cache.clean()
    return executable


def _compile(ctx: PassContext, module: HloModule) -> Executable:
    from hlo_run.pipeline.compile import compile_module  # imports xDSL and llvmlite

    return compile_module(ctx, module)


def open_for(ctx: PassContext) -> FileCache | None:
    """Return the cache; None where a compilation must take place to be seen or changed on the way."""
    options = ctx.options
    if ctx.observers or ctx.replacements != Replacements() or options.print_locations or options.host_check or options.output:
        return None
    return open_cache("executables")


def key_of(ctx: PassContext, module: HloModule) -> str:
    """Return the digest of all that the executable depends on; the order of instructions decides about names in it."""
    text = module_to_string(module, replace(FULL, in_creation_order=True))
    order = " ".join(instruction.name for computation in module.computations for instruction in computation.instructions)
    forms = (module.has_header, module.has_entry, module.has_default_entry_layout, module.schedule is None)
    return digest(
        compiler_digest(), repr(ctx.target), flags_text(ctx.options), repr(registered_targets()), repr(forms), order, text
    )


def flags_text(options: Options) -> str:
    """Return the flags that decide what a compilation makes, with their values."""
    names = [name for name, field in FIELDS.items() if field.metadata["section"] == "Compile" and name not in _NO_MATTER]
    return repr([(name, getattr(options, name)) for name in names])


def shown_text(options: Options) -> str:
    """Return the flags that decide how a stage is printed, with their values."""
    return repr([(name, getattr(options, name)) for name, field in FIELDS.items() if field.metadata["section"] == "Show"])
