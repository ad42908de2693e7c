"""Our features in the layout of TVM's PerStoreFeature: a file a group of entries, on the program lowered at a point."""

from felixlike.features.tvm_view.assemble import tvm_view

__all__ = ["tvm_view"]
