"""A frozen description of a device: what schedules, features and constraints may rely on."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Device:
    """What a device can do.

    kind: "cpu".  cores: usable cores.  vector_bits: widest SIMD register, bits.  l1_bytes, l2_bytes: data cache
    per core, bytes.  l3_bytes: last-level cache, bytes (0: none).  memory_bytes: main memory, bytes.
    mcpu: LLVM's name of the processor.  name: for people."""

    kind: str
    name: str
    mcpu: str
    cores: int
    vector_bits: int
    l1_bytes: int
    l2_bytes: int
    l3_bytes: int
    memory_bytes: int
