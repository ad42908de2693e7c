"""Instruction sets are selected from LLVM's features."""

from felixlike.hardware import instruction_sets


def test_tuning_features_are_excluded() -> None:
    features = ["sse4.2", "avx512f", "amx-int8", "fast-gather", "64bit", "prefer-256-bit", "neon", "x87", "bmi2"]
    assert instruction_sets(features) == {"sse4.2", "avx512f", "amx-int8", "neon", "bmi2"}
