"""Select the instruction sets among LLVM's features: a process that uses one its processor lacks is killed."""

import re
from collections.abc import Iterable

_INSTRUCTIONS = re.compile(r"(sse|ssse|avx|fma|f16c|amx|bmi|neon|sve|dotprod|i8mm|bf16|fullfp16)")


def instruction_sets(features: Iterable[str]) -> frozenset[str]:
    """Return the instruction sets among LLVM's features of a processor, which also include tunings.

    Args:
        features: LLVM's names of features.
    """
    return frozenset(feature for feature in features if _INSTRUCTIONS.match(feature))
