"""Python callbacks of JAX programs: `jax.pure_callback`, `io_callback`, `jax.debug.print`, checks of libraries.

JAX lowers each to a custom call with the number of the function in the program. Here the numbers are unique over programs.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias
from weakref import WeakValueDictionary

from hlo_run.custom_calls import custom_call, is_registered
from hlo_run.hlo.graph import HloModule

Callback: TypeAlias = Callable[..., Any]

_TARGETS = tuple(
    f"xla_ffi{partitioned}_python_{device}_callback" for partitioned in ("", "_partitioned") for device in ("cpu", "gpu")
)
_NUMBER = re.compile(r"(?<=index = )\d+(?= : ui64)")
_CALLBACKS: WeakValueDictionary[int, Callback] = WeakValueDictionary()
_numbers = itertools.count()
_ours: set[str] = set()


def callbacks_of(lowered: Any) -> tuple[Callback, ...]:
    """Return the callbacks of a lowered JAX function from JAX's private attributes; () if this JAX has none."""
    try:
        return tuple(lowered._lowering.compile_args["host_callbacks"])
    except (AttributeError, KeyError, TypeError):
        return ()


def adopt_callbacks(module: HloModule, callbacks: Sequence[Callback]) -> None:
    """Connect the module's custom calls to these functions, of which only weak references are kept."""
    for instruction in module.instructions_of("custom-call") if callbacks else ():
        target = instruction.custom_call_target
        if target not in _TARGETS or not _is_ours(target):
            continue
        config = instruction.backend_config
        found = _NUMBER.search(config)
        if found is None or int(found[0]) >= len(callbacks):
            continue
        number = next(_numbers)
        _CALLBACKS[number] = callbacks[int(found[0])]
        instruction.attrs["backend_config"] = _NUMBER.sub(str(number), config)


def _is_ours(target: str) -> bool:
    """True if `_call` is registered for `target`; registers it unless the user registered another function."""
    if target not in _ours and not is_registered(target):
        custom_call(target)(_call)
        _ours.add(target)
    return target in _ours


def _call(*operands: Any, config: str) -> Any:
    found = _NUMBER.search(config)
    callback = _CALLBACKS.get(int(found[0])) if found is not None else None
    if callback is None:
        raise LookupError(f"the JAX program that {config} belongs to was deleted")
    # JAX's function returns a tuple; a tuple of one element is the result of the call itself.
    results: tuple[Any, ...] = callback(*operands)
    return results[0] if len(results) == 1 else results
