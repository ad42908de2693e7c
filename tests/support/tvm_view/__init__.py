"""Our features in the layout of TVM's PerStoreFeature: a file a group of entries, on the program lowered at a point."""

from support.tvm_view.assemble import View, explained_view, tvm_view
from support.tvm_view.causes import Cause

__all__ = ["Cause", "View", "explained_view", "tvm_view"]
