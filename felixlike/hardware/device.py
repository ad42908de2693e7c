"""A frozen description of a device: what schedules, features and constraints may rely on."""

from dataclasses import dataclass

from felixlike.errors import InvalidDevice
from felixlike.hardware.vectors import VectorUnit


@dataclass(frozen=True, slots=True)
class Device:
    """What a device can do.

    kind: "cpu" or "cuda".  cores: usable cores; multiprocessors of a GPU.  vector_bits: widest SIMD register; widest
    load of a GPU's thread, bits.  register_bytes: of all vector registers of a core; of a GPU's thread, bytes.
    l1_bytes: data cache per core, bytes.  l2_bytes: data cache per core; of a whole GPU, bytes.  l3_bytes: last-level
    cache, bytes (0: none).  memory_bytes: main memory, bytes.  mcpu: LLVM's name of the processor; a GPU's
    architecture.  name: for people.  triple: LLVM's name of a CPU's architecture and system; empty: this machine's.
    clock_hz: of a core.  memory_bandwidth: of the whole device from and to main memory, bytes a second.  precision:
    what a GPU may compute products of float32 numbers in, by its name (`precision.py`)."""

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
    clock_hz: float = 2.5e9
    memory_bandwidth: float = 20e9
    precision: str = "float32"

    @property
    def unit(self) -> VectorUnit:
        """The vector registers of a CPU's core."""
        return VectorUnit(self.vector_bits, self.register_bytes * 8 // self.vector_bits)

    @property
    def flops(self) -> float:
        """Floating-point operations a second, of single precision: two multiply-adds a cycle for each lane of a CPU's
        core, one for each lane of a multiprocessor."""
        lanes = 2 * self.vector_bits // 32 if self.kind == "cpu" else _GPU_LANES.get(self.mcpu, _LANES)
        return 2.0 * lanes * self.clock_hz * self.cores

    @property
    def near_bandwidth(self) -> float:
        """Bytes a second between registers and the L1 caches, or shared memory, of all cores: two vectors a cycle; 128
        bytes a multiprocessor."""
        width = 2 * self.vector_bits // 8 if self.kind == "cpu" else _LANES
        return float(width * self.clock_hz * self.cores)

    @property
    def core_registers(self) -> int:
        """Of a core, vectors; of a multiprocessor, words of 32 bits."""
        return self.unit.registers if self.kind == "cpu" else _GPU_REGISTERS

    @property
    def tile_bytes(self) -> int:
        """What a tile's operands may fill: half of a core's L2 cache, or shared memory that every block may have."""
        return self.l2_bytes // 2 if self.kind == "cpu" else _GPU_SHARED

    @property
    def active_blocks(self) -> int:
        """Blocks at work on a core at once: one thread, or FTuner's ζ of a multiprocessor."""
        return 1 if self.kind == "cpu" else 2


def check_device(device: Device) -> None:
    """Raise InvalidDevice for a description with values that no device has."""
    least = {"cores": 1, "vector_bits": 32, "register_bytes": 16, "l1_bytes": 1, "l2_bytes": 1, "l3_bytes": 0}
    for name, value in {**least, "memory_bytes": 1, "clock_hz": 1e6, "memory_bandwidth": 1e6}.items():
        given = getattr(device, name)
        if isinstance(given, bool) or not isinstance(given, int | float) or not value <= given < float("inf"):
            raise InvalidDevice(
                f"{name} is {given!r}", where=device.name or "device", remedy=f"give a number of at least {value:g}"
            )
    if device.kind not in ("cpu", "cuda"):
        raise InvalidDevice(f"kind is {device.kind!r}", where=device.name or "device", remedy='give "cpu" or "cuda"')
    if device.vector_bits & (device.vector_bits - 1):
        raise InvalidDevice(
            f"vector_bits is {device.vector_bits}", where=device.name or "device", remedy="give a power of two"
        )
    if device.register_bytes * 8 < 4 * device.vector_bits and device.kind == "cpu":
        raise InvalidDevice(
            f"register_bytes is {device.register_bytes}, less than four vectors of {device.vector_bits} bits",
            where=device.name or "device",
            remedy="give the bytes of all vector registers of a core",
        )


_LANES = 128
"""Multiply-adds, and bytes from shared memory, of a multiprocessor in a cycle."""

_GPU_LANES = {"sm_80": 64}
"""Multiply-adds of those that do others."""

_GPU_REGISTERS = 65536
"""Words of a multiprocessor, since Kepler."""

_GPU_SHARED = 48 * 2**10
"""Bytes of shared memory that every block may have, since Fermi."""
