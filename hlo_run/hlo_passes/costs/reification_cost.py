"""Append an estimate to the `reification_cost` list of a backend_config."""

from __future__ import annotations

import json
import re

from hlo_run.hlo.graph import HloInstruction
from hlo_run.hlo.values.backend_config import read_config
from hlo_run.hlo_passes.subgraphs.library_calls import whole_backend_config

_LIST = re.compile(r'"reification_cost":\[([^\]]*)\]')


def add_reification_cost(
    instruction: HloInstruction, name: str, execution: float, cycles: float = 0, compute: float = 0, memory: float = 0
) -> None:
    """Append the estimate of the model `name`: times in microseconds, cycles of the GPU's clock.

    A backend_config that is no JSON object stays as it is.
    """
    config = _whole(instruction.backend_config)
    if config is None:
        return
    fields = {"end_to_end_cycles": cycles, "exec_time_us": execution, "compute_time_us": compute, "memory_access_time_us": memory}
    numbers = "".join(f'"{field}":{_number(value)},' for field, value in fields.items())
    record = f'{{{numbers}"name":{json.dumps(name)}}}'
    instruction.attrs["backend_config"] = _LIST.sub(
        lambda found: f'"reification_cost":[{found[1]}{"," if found[1] else ""}{record}]', config, count=1
    )
    instruction.touch()


def _whole(config: str) -> str | None:
    """Return a backend_config with all fields that XLA writes, in its order."""
    if _LIST.search(config) is not None:
        return config
    try:
        known = read_config(config)
    except ValueError:
        return None
    return whole_backend_config(known) if known or config.strip() in ("", "{}") else None


def _number(value: float) -> str:
    """Return a number as XLA writes it: 15 digits, or 17 if it has more."""
    short = f"{value:.15g}"
    return short if float(short) == value else f"{value:.17g}"
