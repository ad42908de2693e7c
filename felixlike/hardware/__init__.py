"""Describe devices, probe the host, and resolve targets."""

from felixlike.hardware.compiler import COMPILERS, c_compiler
from felixlike.hardware.device import Device, check_device
from felixlike.hardware.gpu import gpu_at_hand
from felixlike.hardware.instructions import host_cpu, instruction_sets
from felixlike.hardware.kinds import KINDS, Kind, kind_of
from felixlike.hardware.precision import (
    BFLOAT16,
    FLOAT32,
    PAIRS_PRECISION,
    PRECISIONS,
    Form,
    Precision,
    check_precision,
    has_pair_instruction,
    has_pairs,
    precision_of,
    require_float32,
    with_precision,
    without_precision,
)
from felixlike.hardware.presets import described, gpus, machines, read_description
from felixlike.hardware.probe import host_device
from felixlike.hardware.simulated import (
    SIMULATED,
    SIMULATED_NAMES,
    Simulated,
    is_simulated_device,
    require_real,
    simulated,
)
from felixlike.hardware.target import (
    Target,
    described_target,
    device_name,
    host_target,
    imitated_target,
    quickly_compiled,
    require_runnable,
    resolve_target,
    target_device,
)

__all__ = [
    "BFLOAT16",
    "COMPILERS",
    "FLOAT32",
    "KINDS",
    "PAIRS_PRECISION",
    "PRECISIONS",
    "SIMULATED",
    "SIMULATED_NAMES",
    "Device",
    "Form",
    "Kind",
    "Precision",
    "Simulated",
    "Target",
    "c_compiler",
    "check_device",
    "check_precision",
    "described",
    "described_target",
    "device_name",
    "gpu_at_hand",
    "gpus",
    "has_pair_instruction",
    "has_pairs",
    "host_cpu",
    "host_device",
    "host_target",
    "imitated_target",
    "instruction_sets",
    "is_simulated_device",
    "kind_of",
    "machines",
    "precision_of",
    "quickly_compiled",
    "read_description",
    "require_float32",
    "require_real",
    "require_runnable",
    "resolve_target",
    "simulated",
    "target_device",
    "with_precision",
    "without_precision",
]
