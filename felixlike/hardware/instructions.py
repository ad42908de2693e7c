"""Select the instruction sets among LLVM's features: a process that uses one its processor lacks is killed."""

import re
from collections.abc import Iterable

_INSTRUCTIONS = re.compile(r"(sse|ssse|avx|fma|f16c|amx|bmi|neon|sve|dotprod|i8mm|bf16|fullfp16)")

PAIRS = "avx512bf16"
"""LLVM's name of AVX512_BF16. `vdpbf16ps` adds the products of two pairs of bfloat16 numbers to a float32 sum, in each
32 bits of a vector: twice the products of a float32 multiply-add, at the same rate (Zen 4 and 5; Cooper Lake, Sapphire
Rapids and later)."""


def instruction_sets(features: Iterable[str]) -> frozenset[str]:
    """Return the instruction sets among LLVM's features of a processor, which also include tunings.

    Args:
        features: LLVM's names of features.
    """
    return frozenset(feature for feature in features if _INSTRUCTIONS.match(feature))
