"""Which of LLVM's feature names are instruction sets: code that uses one that a processor lacks is killed there."""

import re
from collections.abc import Iterable

_INSTRUCTIONS = re.compile(r"(sse|ssse|avx|fma|f16c|amx|bmi|neon|sve|dotprod|i8mm|bf16|fullfp16)")


def instruction_sets(features: Iterable[str]) -> frozenset[str]:
    """The instruction sets among LLVM's features of a processor, which also name tunings."""
    return frozenset(feature for feature in features if _INSTRUCTIONS.match(feature))
