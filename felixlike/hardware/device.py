"""A frozen description of a device: what schedules, features and constraints may rely on."""

from dataclasses import dataclass

from felixlike.hardware.vectors import VectorUnit


@dataclass(frozen=True, slots=True)
class Device:
    """What a device can do.

    kind: "cpu" or "cuda".  cores: usable cores; multiprocessors of a GPU.  vector_bits: widest SIMD register; widest
    load of a GPU's thread, bits.  register_bytes: of all vector registers of a core; of a GPU's thread, bytes.
    l1_bytes: data cache per core, bytes.  l2_bytes: data cache per core; of a whole GPU, bytes.  l3_bytes: last-level
    cache, bytes (0: none).  memory_bytes: main memory, bytes.  mcpu: LLVM's name of the processor; a GPU's
    architecture.  name: for people.  triple: LLVM's name of a CPU's architecture and system; empty: this machine's."""

    kind: str
    name: str
    mcpu: str
    cores: int
    vector_bits: int
    register_bytes: int
    l1_bytes: int
    l2_bytes: int
    l3_bytes: int
    memory_bytes: int
    triple: str = ""

    @property
    def unit(self) -> VectorUnit:
        """The vector registers of a CPU's core."""
        return VectorUnit(self.vector_bits, self.register_bytes * 8 // self.vector_bits)
