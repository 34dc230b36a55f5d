"""Finds what XLA dumped beside a file, and recognises dumps of other releases than hlo-run mirrors."""

from __future__ import annotations

import re
from pathlib import Path

from hlo_run.errors import UsageError
from hlo_run.hlo.values.backend_config import sorted_config
from hlo_run.options.text_files import read_text
from hlo_run.version import XLA_RELEASE

_CONFIG = ".config.pbtxt"
# A field of the message `debug_options`, or the first line of one that is a message.
_FIELD = re.compile(r"^  (xla_\w+)(?:: | \{)", re.MULTILINE)
# The last line of the file, which earlier releases lack.
_LAST = "partition_size: "
# Only XLA:GPU's dumps after scheduling have it.
_FINGERPRINT = 'fingerprint_before_lhs="'
_OLD_ORDER = ", type=TOTALORDER"
_BACKEND_CONFIG = re.compile(r", backend_config=(\{.+\})$", re.MULTILINE)


def dump_beside(file: str, ending: str) -> Path | None:
    """Return the path of `module_0001.NAME` with this ending, if the file is one of the dumps of this module."""
    path = Path(file)
    if "module_" not in path.name or path.name.endswith(ending):
        return None
    for beside in sorted(path.parent.glob(f"module_*{ending}")):
        dumped = beside.name.removesuffix(ending)
        # The names of dumps may begin with a time.
        if path.name.startswith(f"{dumped}.") or f".{dumped}." in path.name:
            return beside
    return None


def release_note(file: str, text: str) -> str:
    """Say in one line that a file is a dump of another release; "" for other files, and for dumps that show no release.

    The configuration that XLA dumps beside a module tells by its flags. Without it the `text` of an optimised module does:
    older releases write the keys of backend configs in another order, and `type=TOTALORDER`.
    """
    age = _age_of_config(file) or ("an earlier" if _is_earlier(text) else "")
    return f"{file} was dumped by {age} release of XLA than that of jaxlib {XLA_RELEASE}, which hlo-run mirrors" if age else ""


def _age_of_config(file: str) -> str:
    beside = dump_beside(file, _CONFIG)
    if beside is None:
        return ""
    try:
        text = read_text(str(beside), "config.pbtxt")
    except UsageError:
        return ""  # only a note is lost
    from hlo_run.options.debug_options import debug_options  # the table is read for dumps with a configuration only

    known = debug_options()
    found = set(_FIELD.findall(text))
    if found - known.keys():
        return "a later"
    return "an earlier" if _LAST not in text or any(known[name].is_dropped for name in found) else ""


def _is_earlier(text: str) -> bool:
    if _FINGERPRINT not in text.partition("\n")[0]:
        return False
    configs = (found[1] for found in _BACKEND_CONFIG.finditer(text))
    return _OLD_ORDER in text or any(config != sorted_config(config) for config in configs)
