"""What formulas and programs are checked against: TVM's own passes, and counting by hand. Used by tests too."""

import dataclasses

from felixlike.hardware import described
from felixlike.symbolic.program.nest import scheduled_nest as tvm_nest
from support.oracles.brute_force import count
from support.oracles.tvm import tvm_features

SMALL_CACHES = dataclasses.replace(described("zen4"), register_bytes=64, l1_bytes=256, l2_bytes=1500)
"""A CPU with caches so small that little programs do and do not fit into them."""

__all__ = ["SMALL_CACHES", "count", "tvm_features", "tvm_nest"]
