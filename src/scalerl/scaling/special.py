"""The scipy and numpy functions in use whose types would otherwise be unknown."""

from collections.abc import Callable

import numpy as np
import scipy.special as _special  # pyright: ignore[reportMissingTypeStubs]
from numpy.typing import ArrayLike, NDArray

_One = Callable[[ArrayLike], NDArray[np.float64]]
_Two = Callable[[ArrayLike, ArrayLike], NDArray[np.float64]]

expit: _One = _special.expit
"""1 / (1 + exp(-z))"""
ndtr: _One = _special.ndtr
"""Standard normal distribution function."""
log_ndtr: _One = _special.log_ndtr
ndtri: _One = _special.ndtri
"""Standard normal quantile."""
gammaincinv: _Two = _special.gammaincinv
"""Inverse of the regularised lower incomplete gamma function in its second argument."""

# numpy's own, whose stubs leave the result unknown for plain floats
linspace: Callable[[float, float, int], NDArray[np.float64]] = np.linspace
clip: Callable[[ArrayLike, ArrayLike, ArrayLike], NDArray[np.float64]] = np.clip
solve_linear: _Two = np.linalg.solve  # pyright: ignore[reportAssignmentType]
