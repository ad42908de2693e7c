"""Our features in the layout of TVM's PerStoreFeature."""

from felixlike.features.tvm_view.assemble import tvm_view

__all__ = ["tvm_view"]
