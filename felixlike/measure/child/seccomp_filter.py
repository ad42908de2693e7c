"""Create a seccomp filter for a process that only computes, reads files and communicates over TCP.

The output is a BPF program for this machine, which Linux runs at every system call (seccomp(2), and seccomp_filter.rst
in the kernel's Documentation/userspace-api). Calls that are not listed fail with EPERM. Therefore the process cannot
start processes or programs, signal others, open files for writing, create sockets but TCP, or change permissions or
names.
"""

from __future__ import annotations

import os
import platform
import socket
import struct
import sys
from dataclasses import dataclass

_ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
"""Column of `_CALLS` and the kernel's number of the ABI (AUDIT_ARCH_… of linux/audit.h), by platform.machine()."""

_X32 = 0x40000000
"""First number of the system calls of another ABI on x86-64 (__X32_SYSCALL_BIT of asm/unistd.h)."""

_CALLS: dict[str, tuple[int | None, int | None]] = {
    "access": (21, None),
    "arch_prctl": (158, None),
    "brk": (12, 214),
    "clock_getres": (229, 114),
    "clock_gettime": (228, 113),
    "clock_nanosleep": (230, 115),
    "close": (3, 57),
    "connect": (42, 203),
    "dup": (32, 23),
    "dup3": (292, 24),
    "epoll_create1": (291, 20),
    "epoll_ctl": (233, 21),
    "epoll_pwait": (281, 22),
    "epoll_wait": (232, None),
    "exit": (60, 93),
    "exit_group": (231, 94),
    "faccessat": (269, 48),
    "faccessat2": (439, 439),
    "fcntl": (72, 25),
    "fstat": (5, 80),
    "futex": (202, 98),
    "getcpu": (309, 168),
    "getcwd": (79, 17),
    "getdents64": (217, 61),
    "getegid": (108, 177),
    "geteuid": (107, 175),
    "getgid": (104, 176),
    "getpeername": (52, 205),
    "getpid": (39, 172),
    "getppid": (110, 173),
    "getrandom": (318, 278),
    "getrlimit": (97, 163),
    "getrusage": (98, 165),
    "getsockname": (51, 204),
    "getsockopt": (55, 209),
    "gettid": (186, 178),
    "gettimeofday": (96, 169),
    "getuid": (102, 174),
    "ioctl": (16, 29),
    "lseek": (8, 62),
    "lstat": (6, None),
    "madvise": (28, 233),
    "membarrier": (324, 283),
    "mmap": (9, 222),
    "mprotect": (10, 226),
    "mremap": (25, 216),
    "munmap": (11, 215),
    "nanosleep": (35, 101),
    "newfstatat": (262, 79),
    "open": (2, None),
    "openat": (257, 56),
    "poll": (7, None),
    "ppoll": (271, 73),
    "pread64": (17, 67),
    "prlimit64": (302, 261),
    "pselect6": (270, 72),
    "read": (0, 63),
    "readlink": (89, None),
    "readlinkat": (267, 78),
    "readv": (19, 65),
    "recvfrom": (45, 207),
    "recvmsg": (47, 212),
    "restart_syscall": (219, 128),
    "rseq": (334, 293),
    "rt_sigaction": (13, 134),
    "rt_sigprocmask": (14, 135),
    "rt_sigreturn": (15, 139),
    "sched_getaffinity": (204, 123),
    "sched_yield": (24, 124),
    "select": (23, None),
    "sendmsg": (46, 211),
    "sendto": (44, 206),
    "set_robust_list": (273, 99),
    "setsockopt": (54, 208),
    "shutdown": (48, 210),
    "sigaltstack": (131, 132),
    "socket": (41, 198),
    "stat": (4, None),
    "statx": (332, 291),
    "sysinfo": (99, 179),
    "tgkill": (234, 131),
    "time": (201, None),
    "uname": (63, 160),
    "write": (1, 64),
    "writev": (20, 66),
}
"""Allowed system calls with their numbers on x86-64 (arch/x86/entry/syscalls/syscall_64.tbl) and on 64-bit ARM
(include/uapi/asm-generic/unistd.h); None if the machine has no such call."""


@dataclass(frozen=True, slots=True)
class _Condition:
    """Condition that half of an argument, masked, is one of the values; word 2 i is the lower half of argument i."""

    word: int
    values: tuple[int, ...]
    mask: int = 0xFFFFFFFF


_ARCH_REQ_XCOMP_PERM, _XTILEDATA = 0x1023, 18
"""The request to use tile registers (arch/x86/include/uapi/asm/prctl.h and asm/fpu/types.h), and their number."""

_FAST_OPEN = 0x20000000
"""MSG_FASTOPEN of linux/socket.h, which connects while sending; early versions of Landlock did not check it."""

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
"""Flags of files that are opened for writing."""


def _conditions() -> dict[str, tuple[_Condition, ...]]:
    """Return the conditions on the arguments of some system calls."""
    return {
        "arch_prctl": (_Condition(0, (_ARCH_REQ_XCOMP_PERM,)), _Condition(2, (_XTILEDATA,))),
        "open": (_Condition(2, (0,), _WRITING),),
        "openat": (_Condition(4, (0,), _WRITING),),
        "socket": (_Condition(0, (socket.AF_INET, socket.AF_INET6)), _Condition(2, (socket.SOCK_STREAM,), 0xF)),
        "sendto": (_Condition(6, (0,), _FAST_OPEN),),
        "sendmsg": (_Condition(4, (0,), _FAST_OPEN),),
        "tgkill": (_Condition(0, (os.getpid(),)),),  # used by abort() for the process itself
        "prlimit64": (_Condition(4, (0,)), _Condition(5, (0,))),  # may read limits, not set them
        "ioctl": (_Condition(2, (0x5401, 0x541B, 0x5421, 0x5450, 0x5451)),),  # TCGETS FIONREAD FIONBIO FIONCLEX FIOCLEX
    }


STEP_BYTES = 8
"""Size of an instruction, bytes (struct sock_filter)."""

_LOAD, _AND, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x06
"""BPF instructions (linux/bpf_common.h): load a word of the call's data, mask it, compare it, return."""

_ALLOW, _KILL, _REFUSE = 0x7FFF0000, 0x80000000, 0x00050000 | 1
"""SECCOMP_RET_ALLOW, _KILL_PROCESS, and _ERRNO with EPERM (linux/seccomp.h)."""

_NUMBER, _ABI, _ARGUMENTS = 0, 4, 16
"""Offsets in the call's data, bytes (struct seccomp_data)."""


def program() -> bytes | None:
    """Return the filter for this process; None if the machine's system calls are not known."""
    architecture = _ARCHITECTURES.get(platform.machine())
    if sys.platform != "linux" or architecture is None or struct.calcsize("P") != 8 or sys.byteorder != "little":
        return None
    column, abi = architecture
    code = [_step(_LOAD, _ABI), _step(_EQUAL, abi, 1, 0), _step(_RETURN, _KILL), _step(_LOAD, _NUMBER)]
    code += [_step(_AT_LEAST, _X32, 0, 1), _step(_RETURN, _REFUSE)]
    conditions = _conditions()
    for name, numbers in _CALLS.items():
        number = numbers[column]
        if number is not None:
            block = [step for condition in conditions.get(name, ()) for step in _checked(condition)] + [
                _step(_RETURN, _ALLOW)
            ]
            code += [_step(_EQUAL, number, 0, len(block)), *block]
    return b"".join([*code, _step(_RETURN, _REFUSE)])


def _checked(condition: _Condition) -> list[bytes]:
    """Return instructions that refuse the call, or continue after the last of them if the condition holds."""
    count = len(condition.values)
    tests = [_step(_EQUAL, value, count - place, 0) for place, value in enumerate(condition.values)]
    load = _step(_LOAD, _ARGUMENTS + 4 * condition.word)
    return [load, _step(_AND, condition.mask), *tests, _step(_RETURN, _REFUSE)]


def _step(code: int, value: int, yes: int = 0, no: int = 0) -> bytes:
    """Return an instruction (struct sock_filter); a comparison skips `yes` or `no` instructions."""
    return struct.pack("<HBBI", code, yes, no, value & 0xFFFFFFFF)
