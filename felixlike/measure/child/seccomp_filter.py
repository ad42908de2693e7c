"""A seccomp filter for a process that computes, reads files and talks over one TCP connection, and nothing else.

Input: the machine. Output: a BPF program that Linux runs at every system call (seccomp(2), and seccomp_filter.rst in
the kernel's Documentation/userspace-api). Calls that are not listed fail with EPERM. So there is no new process or
program, no signal to others, no file opened for writing, no socket but TCP, and no change of permissions or names.
"""

from __future__ import annotations

import os
import platform
import socket
import struct
import sys
from dataclasses import dataclass

_ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
"""The column of `_CALLS`, and the kernel's name of the ABI (AUDIT_ARCH_… of linux/audit.h), by platform.machine()."""

_X32 = 0x40000000
"""Numbers from which calls on x86-64 are those of another ABI (__X32_SYSCALL_BIT of asm/unistd.h)."""

_CALLS: dict[str, tuple[int | None, int | None]] = {
    "access": (21, None),
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
"""What may be called, with its number on x86-64 (arch/x86/entry/syscalls/syscall_64.tbl) and on 64-bit ARM
(include/uapi/asm-generic/unistd.h); None where the machine has no such call."""


@dataclass(frozen=True, slots=True)
class _Condition:
    """One of the values must be the argument's, of which only the bits of the mask count.  word: half of an argument;
    2 i is the lower half of argument i."""

    word: int
    values: tuple[int, ...]
    mask: int = 0xFFFFFFFF


_FAST_OPEN = 0x20000000
"""MSG_FASTOPEN of linux/socket.h: sends and connects at once, which Landlock's rule for connections did not see at
first."""

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


def _conditions() -> dict[str, tuple[_Condition, ...]]:
    """What the arguments of some calls must be."""
    return {
        "open": (_Condition(2, (0,), _WRITING),),
        "openat": (_Condition(4, (0,), _WRITING),),
        "socket": (_Condition(0, (socket.AF_INET, socket.AF_INET6)), _Condition(2, (socket.SOCK_STREAM,), 0xF)),
        "sendto": (_Condition(6, (0,), _FAST_OPEN),),
        "sendmsg": (_Condition(4, (0,), _FAST_OPEN),),
        "tgkill": (_Condition(0, (os.getpid(),)),),  # abort() ends the process itself so
        "prlimit64": (_Condition(4, (0,)), _Condition(5, (0,))),  # asks for limits, sets none
        "ioctl": (_Condition(2, (0x5401, 0x541B, 0x5421, 0x5450, 0x5451)),),  # TCGETS FIONREAD FIONBIO FIONCLEX FIOCLEX
    }


STEP_BYTES = 8
"""Of an instruction (struct sock_filter)."""

_LOAD, _AND, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x06
"""Classes of BPF instructions (linux/bpf_common.h): a word of the call's data, and masks and comparisons with it."""

_ALLOW, _KILL, _REFUSE = 0x7FFF0000, 0x80000000, 0x00050000 | 1
"""SECCOMP_RET_ALLOW, _KILL_PROCESS, and _ERRNO with EPERM (linux/seccomp.h)."""

_NUMBER, _ABI, _ARGUMENTS = 0, 4, 16
"""Bytes at which the call's data has these (struct seccomp_data)."""


def program() -> bytes | None:
    """The filter for this process on this machine; None where the machine's numbers are not known."""
    found = _ARCHITECTURES.get(platform.machine())
    if sys.platform != "linux" or found is None or struct.calcsize("P") != 8 or sys.byteorder != "little":
        return None
    column, abi = found
    code = [_step(_LOAD, _ABI), _step(_EQUAL, abi, 1, 0), _step(_RETURN, _KILL), _step(_LOAD, _NUMBER)]
    code += [_step(_AT_LEAST, _X32, 0, 1), _step(_RETURN, _REFUSE)]
    conditions = _conditions()
    for name, numbers in _CALLS.items():
        number = numbers[column]
        if number is not None:
            block = [step for each in conditions.get(name, ()) for step in _checked(each)] + [_step(_RETURN, _ALLOW)]
            code += [_step(_EQUAL, number, 0, len(block)), *block]
    return b"".join([*code, _step(_RETURN, _REFUSE)])


def _checked(condition: _Condition) -> list[bytes]:
    """Refuse the call, or go on behind the last of these instructions."""
    count = len(condition.values)
    tests = [_step(_EQUAL, value, count - place, 0) for place, value in enumerate(condition.values)]
    load = _step(_LOAD, _ARGUMENTS + 4 * condition.word)
    return [load, _step(_AND, condition.mask), *tests, _step(_RETURN, _REFUSE)]


def _step(code: int, value: int, yes: int = 0, no: int = 0) -> bytes:
    """An instruction (struct sock_filter).  yes, no: how many instructions a comparison skips."""
    return struct.pack("<HBBI", code, yes, no, value & 0xFFFFFFFF)
