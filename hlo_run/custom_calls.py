"""The registry of functions for custom calls: `@custom_call("name")` registers one, for one platform or for all.

    @hlo_run.custom_call("scale")
    def scale(x: np.ndarray, config: str) -> np.ndarray:
        return x * float(config)

The function gets the operands as numpy arrays in logical dimension order (tuples as Python tuples), must not change them, and
returns the result in the same form. A parameter called `config` gets the text of the call's backend_config without quotes. An
exception in the function becomes a DeviceError that names the call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from msgspec import Struct

from hlo_run.errors import DeviceError, HloRunError, Unsupported, UsageError

FunctionT = TypeVar("FunctionT", bound=Callable[..., object])
PLATFORMS = ("Host", "CUDA", "Interpreter")


class _Registered(Struct, frozen=True):
    function: Callable[..., object]
    takes_config: bool


_REGISTRY: dict[tuple[str, str], _Registered] = {}


def custom_call(target: str, platform: str = "") -> Callable[[FunctionT], FunctionT]:
    """Return a decorator that registers a function for the custom calls of `target`.

    `platform` is Host, CUDA or Interpreter (the reference), in upper or lower case; empty: all of them. A later registration
    replaces an earlier one. Raises UsageError for an empty `target` or an unknown platform.
    """
    names = {name.lower(): name for name in PLATFORMS}
    if platform and platform.lower() not in names:
        raise UsageError(f"unknown platform '{platform}'", hint=f"choose from {', '.join(PLATFORMS)}")
    if not target:
        raise UsageError("a custom call needs a name")

    def register(function: FunctionT) -> FunctionT:
        for name in PLATFORMS if not platform else (names[platform.lower()],):
            _REGISTRY[target, name] = _Registered(function, _takes_config(function))
        return function

    return register


def _takes_config(function: Callable[..., object]) -> bool:
    import inspect  # slow to import, and few modules have custom calls

    try:
        return "config" in inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False


def unregister(target: str) -> None:
    """Forget the functions of `target` on all platforms."""
    for name in PLATFORMS:
        _REGISTRY.pop((target, name), None)


def is_registered(target: str, platform: str = "") -> bool:
    """True if `target` has a function on the platform; without a platform, on any."""
    return any((target, name) in _REGISTRY for name in ((platform,) if platform else PLATFORMS))


def registered_targets() -> list[str]:
    """Return the sorted names that have a function on at least one platform."""
    return sorted({target for target, _ in _REGISTRY})


def how_to_register(target: str) -> str:
    """Return the hint for a custom call that has no function."""
    if target == "CustomSPMDPartitioning":
        return "custom_partitioning of JAX divides by Python code that no module contains; lower the plain function"
    return f'@hlo_run.custom_call("{target}") registers a function; --custom_calls=FILE.py runs a file that registers functions'


def call(target: str, platform: str, operands: Sequence[object], config: str, instruction: str) -> object:
    """Return the result of the function of `target`; raises Unsupported if it has none, DeviceError if the function raises."""
    registered = _REGISTRY.get((target, platform))
    if registered is None:
        raise Unsupported(
            f"No registered implementation for custom call to {target} for platform {platform} (%{instruction})",
            hint=how_to_register(target),
        )
    try:
        if registered.takes_config:
            return registered.function(*operands, config=config)
        return registered.function(*operands)
    except (HloRunError, KeyboardInterrupt):
        raise
    except BaseException as error:  # whatever a user's function raises, SystemExit too: its code is not that of a run
        raise DeviceError(
            f"custom call {target} raised {type(error).__name__}: {error} (%{instruction})", notes=_last_frame(error)
        ) from error


def _last_frame(error: BaseException) -> tuple[str, ...]:
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    if traceback is None:
        return ()
    code = traceback.tb_frame.f_code
    return (f"at {code.co_filename}:{traceback.tb_lineno}, {code.co_name}",)
