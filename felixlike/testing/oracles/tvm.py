"""What TVM itself says of a scheduled program: its feature extractor."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from felixlike import tvmlib
from felixlike.spaces import metaschedule
from felixlike.symbolic import Sketch


def tvm_features(sketch: Sketch, schedule: Any) -> npt.NDArray[np.float64]:
    """float64[rows, 164] of TVM's PerStoreFeature."""
    context = metaschedule.tune_context(sketch.task.module, sketch.task.target)
    extractor = tvmlib.ms.feature_extractor.PerStoreFeature()
    (features,) = extractor.extract_from(context, [tvmlib.ms.MeasureCandidate(schedule, [])])
    rows: npt.NDArray[np.float64] = features.numpy()
    return rows
