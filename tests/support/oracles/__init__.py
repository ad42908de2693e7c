"""References for formulas and programs: TVM's own passes, and brute-force counting."""

import dataclasses

from felixlike.hardware import described
from felixlike.symbolic.program.nest import scheduled_nest as tvm_nest
from support.oracles.brute_force import count
from support.oracles.tvm import tvm_features

SMALL_CACHES = dataclasses.replace(described("zen4"), register_bytes=64, l1_bytes=256, l2_bytes=1500)
"""A CPU with caches so small that some of the small programs fit and others do not."""

__all__ = ["SMALL_CACHES", "count", "tvm_features", "tvm_nest"]
