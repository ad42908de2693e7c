"""TVM's feature extractor, applied to a scheduled program."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from felixlike.spaces import metaschedule
from felixlike.symbolic import Sketch


def tvm_features(sketch: Sketch, schedule: Any) -> npt.NDArray[np.float64]:
    """Return TVM's PerStoreFeature, float64[rows, 164]."""
    (rows,) = metaschedule.store_features(sketch.task.module, sketch.task.target, [schedule])
    return rows
