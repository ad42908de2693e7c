"""Model MetaSchedule's postprocessors, one file for each that changes the features of a program.

`MODELS` maps the postprocessors' names to the models.
"""

from felixlike.symbolic.replay.postprocessors.compact_allocation import compact_allocation
from felixlike.symbolic.replay.postprocessors.cooperative_fetch import cooperative_fetch
from felixlike.symbolic.replay.postprocessors.gpu_code import extent_of, gpu_constraints, shared_bytes, threads_of
from felixlike.symbolic.replay.postprocessors.model import MODELS, Model, modelled, refusals
from felixlike.symbolic.replay.postprocessors.parallel_vectorize_unroll import Limits, parallel_vectorize_unroll
from felixlike.symbolic.replay.postprocessors.reduction_block import initial_path
from felixlike.symbolic.replay.postprocessors.rewrite_layout import rewrite_layout
from felixlike.symbolic.replay.postprocessors.thread_bounds import thread_bounds
from felixlike.symbolic.replay.postprocessors.tile_bounds import tile_bounds

__all__ = [
    "MODELS",
    "Limits",
    "Model",
    "compact_allocation",
    "cooperative_fetch",
    "extent_of",
    "gpu_constraints",
    "initial_path",
    "modelled",
    "parallel_vectorize_unroll",
    "refusals",
    "rewrite_layout",
    "shared_bytes",
    "thread_bounds",
    "threads_of",
    "tile_bounds",
]
