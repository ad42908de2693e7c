"""What is done to scheduled functions before TVM compiles them."""

from felixlike.lowering.vector_math import FUNCTIONS, vectorise_math

__all__ = ["FUNCTIONS", "vectorise_math"]
