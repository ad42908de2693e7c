"""Describe a device: the properties that schedules, features and constraints depend on."""

from dataclasses import dataclass

from felixlike.errors import InvalidDevice
from felixlike.hardware.vectors import VectorUnit


@dataclass(frozen=True, slots=True)
class Device:
    """A frozen description of a CPU or GPU.

    Attributes:
        kind: "cpu" or "cuda".
        name: Name for people.
        mcpu: LLVM's name of the processor, or a GPU's architecture.
        cores: Usable cores, or multiprocessors of a GPU.
        vector_bits: Bits of the widest SIMD register, or of the widest load of a GPU's thread.
        register_bytes: Bytes of all vector registers of a core, or of a GPU's thread.
        l1_bytes: Data cache of a core in bytes.
        l2_bytes: Data cache of a core, or of a whole GPU, in bytes.
        l3_bytes: Last-level cache in bytes, 0 for none.
        memory_bytes: Main memory in bytes.
        triple: LLVM's name of a CPU's architecture and system, empty for the host's.
        clock_hz: Clock of a core in Hz.
        memory_bandwidth: Bandwidth of the whole device from and to main memory, in bytes per second.
        precision: Name of the precision that products of float32 numbers may be computed in (`precision.py`).
        multiplies_pairs: Whether a CPU may round factors to bfloat16 to multiply pairs of them: the precision allows
            it, and `has_pairs`.
        has_pairs: Whether schedules for a CPU may use the instruction for pairs (`instructions.PAIRS`).
        multiplies_tiles: Whether a CPU may round factors to bfloat16 to multiply matrices of them.
        has_tiles: Whether schedules for a CPU may use the instruction for matrices (`instructions.TILES`).
    """

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
    multiplies_pairs: bool = False
    has_pairs: bool = False
    multiplies_tiles: bool = False
    has_tiles: bool = False

    @property
    def multiplies_halves(self) -> bool:
        """Return whether schedules for a CPU may multiply tensors that are bfloat16 without converting them."""
        return self.has_pairs or self.has_tiles

    def rounds_factors(self, *, given: bool) -> bool:
        """Return whether products of float32 tensors may be computed in bfloat16.

        given: whether the model rounds their factors itself.
        """
        return self.multiplies_pairs or self.multiplies_tiles or (given and self.multiplies_halves)

    @property
    def unit(self) -> VectorUnit:
        """Return the vector unit of a CPU's core."""
        return VectorUnit(self.vector_bits, self.register_bytes * 8 // self.vector_bits)

    @property
    def flops(self) -> float:
        """Return the floating-point operations per second in single precision.

        A CPU's core begins two multiply-adds a cycle for each lane, a GPU's multiprocessor one for each lane.
        """
        lanes = 2 * self.vector_bits // 32 if self.kind == "cpu" else _GPU_LANES.get(self.mcpu, _LANES)
        return 2.0 * lanes * self.clock_hz * self.cores

    @property
    def near_bandwidth(self) -> float:
        """Return the bytes per second between registers and the L1 caches, or shared memory, of all cores.

        It is two vectors a cycle for a CPU's core and 128 bytes a cycle for a multiprocessor.
        """
        width = 2 * self.vector_bits // 8 if self.kind == "cpu" else _LANES
        return float(width * self.clock_hz * self.cores)

    @property
    def core_registers(self) -> int:
        """Return the vector registers of a core, or the registers of a multiprocessor in words of 32 bits."""
        return self.unit.registers if self.kind == "cpu" else _GPU_REGISTERS

    @property
    def tile_bytes(self) -> int:
        """Return the bytes that a tile's operands may fill.

        This is half of a core's L2 cache, or the shared memory that is available to every block.
        """
        return self.l2_bytes // 2 if self.kind == "cpu" else _GPU_SHARED

    @property
    def active_blocks(self) -> int:
        """Return the blocks that are active on a core at once: 1 thread on a CPU, FTuner's ζ on a multiprocessor."""
        return 1 if self.kind == "cpu" else 2


def check_device(device: Device) -> None:
    """Check that the values of a description are possible.

    Args:
        device: The description.

    Raises:
        InvalidDevice: If a value is not possible.
    """
    least = {"cores": 1, "vector_bits": 32, "register_bytes": 16, "l1_bytes": 1, "l2_bytes": 1, "l3_bytes": 0}
    for name, value in {**least, "memory_bytes": 1, "clock_hz": 1e6, "memory_bandwidth": 1e6}.items():
        actual = getattr(device, name)
        if isinstance(actual, bool) or not isinstance(actual, int | float) or not value <= actual < float("inf"):
            raise InvalidDevice(
                f"expected {name} to be a number ≥ {value:g}, got {actual!r}",
                where=device.name or "device",
                remedy=_REMEDY,
            )
    if device.kind not in ("cpu", "cuda"):
        raise InvalidDevice(
            f"unknown kind {device.kind!r}", where=device.name or "device", remedy='use "cpu" or "cuda"'
        )
    if device.vector_bits & (device.vector_bits - 1):
        raise InvalidDevice(
            f"expected vector_bits to be a power of two, got {device.vector_bits}",
            where=device.name or "device",
            remedy=_REMEDY,
        )
    if device.register_bytes * 8 < 4 * device.vector_bits and device.kind == "cpu":
        raise InvalidDevice(
            f"register_bytes is {device.register_bytes}, less than four vectors of {device.vector_bits} bits",
            where=device.name or "device",
            remedy="give the bytes of all vector registers of a core",
        )


_REMEDY = "correct the hardware description"

_LANES = 128
"""Multiply-adds of a multiprocessor, and bytes that it reads from shared memory, in a cycle."""

_GPU_LANES = {"sm_70": 64, "sm_72": 64, "sm_75": 64, "sm_80": 64}
"""Multiply-adds of a multiprocessor in a cycle, for architectures that differ from `_LANES`."""

_GPU_REGISTERS = 65536
"""Registers of a multiprocessor in words of 32 bits, since Kepler."""

_GPU_SHARED = 48 * 2**10
"""Bytes of shared memory that are available to every block, since Fermi."""
