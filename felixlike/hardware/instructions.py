"""Select the instruction sets among LLVM's features: a process that uses one its processor lacks is killed."""

import re
from collections.abc import Iterable
from functools import cache

from felixlike import _tvm

_INSTRUCTIONS = re.compile(r"(sse|ssse|avx|fma|f16c|amx|bmi|neon|sve|dotprod|i8mm|bf16|fullfp16)")

PAIRS = "avx512bf16"
"""LLVM's name of AVX512_BF16. `vdpbf16ps` adds the products of two pairs of bfloat16 numbers to a float32 sum, in each
32 bits of a vector: twice the products of a float32 multiply-add, at the same rate (Zen 4 and 5; Cooper Lake, Sapphire
Rapids and later). The latter begin one in two cycles, half as many products as in float32, and have `TILES`."""

TILES = "amx-bf16"
"""LLVM's name of AMX's instruction for bfloat16 numbers. `tdpbf16ps` adds the product of two matrices of up to 16 rows
of 16 pairs to 16 × 16 float32 sums in 16 cycles: 16 times the products of float32 multiply-adds (Sapphire, Emerald and
Granite Rapids)."""


def instruction_sets(features: Iterable[str]) -> frozenset[str]:
    """Return the instruction sets among LLVM's features of a processor, which also include tunings.

    Args:
        features: LLVM's names of features.
    """
    return frozenset(feature for feature in features if _INSTRUCTIONS.match(feature))


@cache
def host_cpu() -> str:
    """Return LLVM's name of a processor that has the host's instruction sets, see `cpu_with`."""
    return cpu_with(_tvm.host_cpu(), _tvm.host_features())


def cpu_with(detected: str, features: Iterable[str]) -> str:
    """Return LLVM's name of a processor that has a machine's instruction sets.

    That is the name that LLVM detected unless the machine has more instruction sets than LLVM knows of that processor.
    A hypervisor may give a newer processor the model number of an older one. The name is then the one with the most
    instruction sets among the processors all of whose sets the machine has. Machines of another architecture than the
    host's keep their name.

    Args:
        detected: LLVM's name of the machine, by its model number.
        features: LLVM's names of features that it detected on the machine.
    """
    present = instruction_sets(features)

    def sets(name: str) -> frozenset[str]:
        return instruction_sets(_tvm.cpu_features(_tvm.Target({"kind": "llvm", "mcpu": name})))

    if not _tvm.knows_cpu(detected, "") or present <= sets(detected):
        return detected
    suitable = [name for name in _tvm.known_cpus() if "_" not in name and sets(name) <= present]
    fullest = max(suitable, key=lambda name: (len(sets(name)), name), default=detected)
    return fullest if sets(detected) < sets(fullest) else detected
