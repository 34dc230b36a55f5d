"""The types of numpy's arrays and of their elements, where only a run knows the element type."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]
NumpyType: TypeAlias = np.dtype[Any]
