"""Restrict this process before it connects to a measuring server.

The input is the files that it still needs, and the server's port. Afterwards the process can read only these files,
Python and the system's libraries, compute, and connect to that port. TVM's client executes any global function of TVM
that a server requests, so a malicious server could run code here. None of these restrictions needs root:

- No new privileges (prctl(2)): setuid programs do not change the user.
- Landlock (landlock(7)): reading is limited to the files named here, connecting to the server's port, and signals to
  this process. From Linux 5.13 on; connections from 6.7, signals from 6.12.
- seccomp (see `seccomp_filter.py`): no programs, processes, files for writing, or sockets but TCP.
- Limits (setrlimit(2)): files cannot grow, and at most 64 are open.
- The environment and all inherited files but the channel and the standard ones are dropped.

Features that the machine lacks are skipped; `missing` lists them.
"""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import struct
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path

from felixlike.measure.child import seccomp_filter

_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, _PR_SET_NO_NEW_PRIVS = 22, 2, 38  # linux/prctl.h, linux/seccomp.h
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # on every architecture: asm-generic/unistd.h
_VERSION = 1  # LANDLOCK_CREATE_RULESET_VERSION; this and the following constants are from linux/landlock.h
_BENEATH, _PORT = 1, 2  # kinds of rules
_READ_FILE, _READ_FOLDER = 1 << 2, 1 << 3
_CONNECT, _NETWORK = 1 << 1, 3
_SCOPED = 3  # abstract sockets and signals
_FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
"""Number of file access rights, one bit each, by Landlock's version; later versions have as many as 5."""
_FOR_NETWORK, _FOR_SCOPES = 4, 6
"""First versions of Landlock that restrict connections, and signals and abstract sockets."""

_MOST_OPEN = 64
"""Largest number of open files; chosen by hand. A session needs a connection, a channel, and one file at a time."""

_SYSTEM = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/etc/ld.so.cache", "/dev/urandom")
"""Locations of shared libraries that are loaded late, and the device from which C++ seeds random numbers."""

_C = ctypes.CDLL(None, use_errno=True)


def missing() -> list[str]:
    """Return the features that this machine lacks, each with what a hostile server can do without it."""
    version = _landlock_version()
    lacking = []
    if version < 1:
        lacking.append("Landlock: it can read every file that you can")
    if version < _FOR_NETWORK:
        lacking.append("Landlock 4 (Linux 6.7): it can connect to every TCP port")
    if not _has_seccomp():
        lacking.append("seccomp: it can start programs and write files that Landlock does not protect")
    return lacking


def enter(readable: Iterable[Path], port: int, *, keep: int) -> None:
    """Restrict this process permanently.

    Args:
        readable: Files and folders that may still be read, besides Python's and the system's libraries.
        port: The TCP port to which the process may connect.
        keep: The descriptor of the channel; all others but standard ones are closed.

    Raises:
        OSError: A feature that the machine has could not be enabled.
    """
    if sys.platform != "linux":
        return
    os.environ.clear()
    _close_others(keep)
    os.chdir("/")
    for kind, limit in ((resource.RLIMIT_FSIZE, 0), (resource.RLIMIT_CORE, 0), (resource.RLIMIT_NOFILE, _MOST_OPEN)):
        resource.setrlimit(kind, (limit, limit))
    _checked(_C.prctl(_PR_SET_NO_NEW_PRIVS, *map(ctypes.c_ulong, (1, 0, 0, 0))), "prctl")
    version = _landlock_version()
    if version >= 1:
        _restrict(version, {*readable, *_libraries()}, port)
    if _has_seccomp():
        _filter()


def _close_others(keep: int) -> None:
    """Close all descriptors except the standard ones and `keep`."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    os.closerange(3, keep)
    os.closerange(keep + 1, max(keep + 1, min(most, 2**20)))


def _libraries() -> Iterator[Path]:
    """Yield the folders from which Python and the packages in use load modules and libraries."""
    yield from map(Path, _SYSTEM)
    for name in ("stdlib", "platstdlib", "purelib", "platlib"):
        yield Path(sysconfig.get_path(name))
    for package in ("felixlike", "tvm", "tvm_ffi", "numpy"):
        spec = find_spec(package)
        yield from map(Path, (spec.submodule_search_locations or ()) if spec is not None else ())


def _landlock_version() -> int:
    """Return the version of Landlock; 0 without it."""
    if sys.platform != "linux":
        return 0
    return max(0, _system_call(_CREATE_RULESET, None, 0, _VERSION))


def _restrict(version: int, readable: Iterable[Path], port: int) -> None:
    """Enable Landlock: deny everything except reading these paths and connecting to the port."""
    rights = (1 << _FILE_RIGHTS[min(version, max(_FILE_RIGHTS))]) - 1
    network = _NETWORK if version >= _FOR_NETWORK else 0
    handled = struct.pack("<QQQ", rights, network, _SCOPED)
    size = 24 if version >= _FOR_SCOPES else 16 if version >= _FOR_NETWORK else 8
    ruleset = _checked(_system_call(_CREATE_RULESET, handled, size, 0), "landlock_create_ruleset")
    try:
        for path in readable:
            _allow_reading(ruleset, path)
        if network:
            rule = struct.pack("<QQ", _CONNECT, port)
            _checked(_system_call(_ADD_RULE, ruleset, _PORT, rule, 0), "landlock_add_rule")
        _checked(_system_call(_RESTRICT_SELF, ruleset, 0), "landlock_restrict_self")
    finally:
        os.close(ruleset)


def _allow_reading(ruleset: int, path: Path) -> None:
    """Add a rule that allows reading a path, if it exists."""
    try:
        number = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        rule = struct.pack("<Qi", _READ_FILE | (_READ_FOLDER if path.is_dir() else 0), number)
        _checked(_system_call(_ADD_RULE, ruleset, _BENEATH, rule, 0), "landlock_add_rule")
    finally:
        os.close(number)


def _has_seccomp() -> bool:
    """Return whether the kernel has seccomp filters and this machine's system calls are known.

    The kernel checks the address of the program last, so a null pointer tests for the feature."""
    if sys.platform != "linux" or seccomp_filter.program() is None:
        return False
    _C.prctl(_PR_SET_SECCOMP, *map(ctypes.c_ulong, (_SECCOMP_MODE_FILTER, 0, 0, 0)))
    return ctypes.get_errno() != errno.EINVAL


def _filter() -> None:
    """Install the seccomp filter. This comes last, since the filter denies the system calls of the other steps."""
    code = seccomp_filter.program()
    assert code is not None
    code_buffer = ctypes.create_string_buffer(code, len(code))
    header = struct.pack(
        "<H6xQ", len(code) // seccomp_filter.STEP_BYTES, ctypes.addressof(code_buffer)
    )  # struct sock_fprog
    pointer = ctypes.cast(ctypes.create_string_buffer(header, len(header)), ctypes.c_void_p)
    zero = ctypes.c_ulong(0)
    result = _C.prctl(_PR_SET_SECCOMP, ctypes.c_ulong(_SECCOMP_MODE_FILTER), pointer, zero, zero)
    _checked(result, "seccomp")


def _system_call(number: int, *arguments: int | bytes | None) -> int:
    """Call a system call by its number."""
    converted = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    return int(_C.syscall(ctypes.c_long(number), *converted))


def _checked(result: int, name: str) -> int:
    """Return a system call's result; raise OSError if it is negative."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
    return result
