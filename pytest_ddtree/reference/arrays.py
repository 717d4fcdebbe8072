"""Array types used by the whole reference server."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

F32: TypeAlias = npt.NDArray[np.float32]
F64: TypeAlias = npt.NDArray[np.float64]
I64: TypeAlias = npt.NDArray[np.int64]
C64: TypeAlias = npt.NDArray[np.complex64]
