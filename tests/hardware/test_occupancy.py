"""The number of resident blocks agrees with NVIDIA's occupancy calculator."""

import pytest

from felixlike.hardware.occupancy import Kernel, blocks_at_once, occupancy


@pytest.mark.parametrize(
    ("registers", "shared", "threads", "arch", "blocks"),
    [
        (32, 0, 256, "sm_90", 8),  # 2048 threads
        (64, 0, 256, "sm_90", 4),  # registers
        (255, 0, 256, "sm_80", 1),
        (255, 0, 1024, "sm_90", 0),  # too many registers for a launch
        (33, 0, 32, "sm_90", 32),  # block slots
        (32, 49152, 128, "sm_90", 4),  # 228 KiB of shared memory, 49 per block
        (32, 49152, 128, "sm_80", 3),  # 164 KiB
        (32, 0, 1536, "sm_86", 1),  # 48 warps
        (32, 49152, 128, "sm_70", 2),  # 96 KiB, none of it reserved
        (32, 0, 32, "sm_75", 16),  # block slots
        (40, 1024, 96, "sm_90a", 17),  # 1280 registers per warp, 51 warps
    ],
)
def test_resident_blocks(registers: int, shared: int, threads: int, arch: str, blocks: int) -> None:
    kernel = Kernel("main", registers, 0, shared, threads)
    assert blocks_at_once(kernel, arch) == blocks


def test_occupancy_is_the_ratio_of_resident_warps() -> None:
    assert occupancy(Kernel("main", 64, 0, 0, 256), "sm_90") == 0.5
    assert occupancy(Kernel("main", 32, 0, 0, 100), "sm_80") == 1.0
    assert occupancy(Kernel("main", 128, 0, 0, 64), "sm_unknown") == 0.25


def test_kernels_survive_a_json_round_trip() -> None:
    kernel = Kernel("main", 64, 8, 16, 256)
    assert Kernel.of(kernel.told()) == kernel
    with pytest.raises(KeyError):
        Kernel.of({"name": "main"})
