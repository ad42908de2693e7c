"""felixlike's features in the layout of TVM's PerStoreFeature, computed from the program lowered at a point.

Each file computes one group of entries."""

from support.tvm_view.assemble import View, explained_view, tvm_view
from support.tvm_view.causes import Cause

__all__ = ["Cause", "View", "explained_view", "tvm_view"]
