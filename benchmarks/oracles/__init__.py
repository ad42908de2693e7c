"""What formulas and programs are checked against: TVM's own passes, and counting by hand. Used by tests too."""

from benchmarks.oracles.brute_force import count
from benchmarks.oracles.tvm import tvm_features
from felixlike.symbolic.nest import scheduled_nest as tvm_nest

__all__ = ["count", "tvm_features", "tvm_nest"]
