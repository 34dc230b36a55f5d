"""Spells HLO text for the installed jaxlib: the printer writes the spelling of the mirrored release."""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import re

# The first release whose parser reads all that the printer writes.
FIRST_WITH_ALL = (0, 12)

_LINE = r"^(\s*(?:ROOT )?%?[^\s=]+ = [^\n\"]*?\b"
_ORDER = re.compile(_LINE + r"compare\([^\n\"]*), order=(?:TOTAL|PARTIAL)", re.MULTILINE)
_STABLE = re.compile(_LINE + r"topk\([^\n\"]*), is_stable=(?:true|false)", re.MULTILINE)
_NO_DYNAMIC_ROOT = re.compile(_LINE + r"collective-broadcast\([^\n\"]*), has_dynamic_root=false", re.MULTILINE)
_HIERARCHY = re.compile(r'(, origin=\{[^\n\[]*),\["[^"\n]*"\]\}')


def installed_release() -> tuple[int, ...]:
    """Return the version of the installed jaxlib, such as (0, 12, 0, 1); () without one."""
    if importlib.util.find_spec("jaxlib") is None:
        return ()
    return _release_of("jaxlib")


@functools.cache
def _release_of(package: str) -> tuple[int, ...]:
    try:
        version = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ()
    return tuple(int(number) for number in re.findall(r"\d+", version)[:4])


def for_installed(text: str) -> str:
    """Return HLO text in the spelling that the installed jaxlib reads."""
    return older(text) if () < installed_release() < FIRST_WITH_ALL else text


def target_for(text: str, release: tuple[int, ...]) -> str:
    """Return a `gpu_target_config` as a release of XLA:GPU reads it: 0.10.2 has a field of its own for cuDNN's version."""
    is_older = () < release < FIRST_WITH_ALL and "dnn_version_info" not in text
    return f"{text}dnn_version_info {{\n  major: 9\n  minor: 10\n}}\n" if is_older else text


def older(text: str) -> str:
    """Return HLO text in the spelling of jaxlib 0.10.2, where that can say the same."""
    text = _ORDER.sub(lambda found: found[1] + (", type=TOTALORDER" if found[0].endswith("TOTAL") else ""), text)
    text = _NO_DYNAMIC_ROOT.sub(r"\1", _STABLE.sub(r"\1", text))
    return _HIERARCHY.sub(r"\1}", text.replace(', origin={(),[""]}', ", origin={[synthetic_call]}"))
