"""Memory for the variables of a PTX module."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from hlo_run.backends.host.emulator.memory import NUMBER_SHIFT, Region
from hlo_run.backends.host.ptx.syntax import Relocation, Variable
from hlo_run.errors import DeviceError


def variable_regions(variables: Mapping[int, Variable]) -> dict[int, Region]:
    """Return new memory for a module's global and constant variables. Without initialiser they are zero, as PTX requires."""
    numbers = {variable.name: number for number, variable in variables.items()}
    regions: dict[int, Region] = {}
    for number, variable in variables.items():
        data = np.zeros(-(-variable.size_bytes // 16) * 16, np.uint8)
        if variable.initializer is not None:
            data[: len(variable.initializer)] = np.frombuffer(variable.initializer, np.uint8)
        for relocation in variable.relocations:
            _relocate(data, relocation, numbers)
        writable = variable.space == "global"
        regions[number] = Region(f"variable {variable.name}", variable.space, data, 0, variable.size_bytes, writable=writable)
    return regions


def _relocate(data: NDArray[np.uint8], relocation: Relocation, numbers: Mapping[str, int]) -> None:
    number = numbers.get(relocation.symbol)
    if number is None:
        raise DeviceError(f"the PTX takes the address of '{relocation.symbol}', but does not define it")
    address = (number << NUMBER_SHIFT) + relocation.addend
    data[relocation.offset : relocation.offset + 8] = np.frombuffer(address.to_bytes(8, "little"), np.uint8)
