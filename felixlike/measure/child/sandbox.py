"""Take this process's rights away before it talks to a measuring server.

Inputs: the files that it still needs, and the server's port. Output: none; the process can then read these files,
Python and the system's libraries, compute, and talk to that port. TVM's client carries out what a server asks of it,
any global function of TVM included, so a server that is not what it seems runs code here. None of this needs root:

- No new privileges (prctl(2)): programs that change the user do not.
- Landlock (landlock(7)): reading is limited to the files named here, connecting to the server's port, and signals to
  this process. From Linux 5.13 on; connections from 6.7, signals from 6.12.
- seccomp (see `syscalls.py`): no programs, processes, files for writing, or sockets but TCP.
- Limits (setrlimit(2)): files cannot grow, and few are open.
- The environment and all inherited files but the channel are dropped.

What the machine lacks is left out; `missing` says what that is.
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
_VERSION = 1  # LANDLOCK_CREATE_RULESET_VERSION: what follows are of linux/landlock.h
_BENEATH, _PORT = 1, 2  # kinds of rules
_READ_FILE, _READ_FOLDER = 1 << 2, 1 << 3
_CONNECT, _NETWORK = 1 << 1, 3
_SCOPED = 3  # abstract sockets and signals
_FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
"""How many rights there are to files, one bit each, by version; later versions have none more."""
_FOR_NETWORK, _FOR_SCOPES = 4, 6
"""Versions of Landlock from which connections, and signals and abstract sockets, can be limited."""

_MOST_OPEN = 64
"""Open files. A session needs a connection, a channel, and one file at a time."""

_SYSTEM = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/etc/ld.so.cache", "/dev/urandom")
"""Where shared libraries lie that are loaded late, and what C++ seeds random numbers with."""

_C = ctypes.CDLL(None, use_errno=True)


def missing() -> list[str]:
    """What of the sandbox this machine cannot do, and what a hostile server can do for want of it."""
    version = _landlock_version()
    found = []
    if version < 1:
        found.append("Landlock: it can read every file that you can")
    if version < _FOR_NETWORK:
        found.append("Landlock 4 (Linux 6.7): it can connect to every TCP port")
    if not _has_seccomp():
        found.append("seccomp: it can start programs and write files that Landlock does not protect")
    return found


def enter(readable: Iterable[Path], port: int, *, keep: int) -> None:
    """Take this process's rights away, for good.

    Args:
        readable: Files and folders that may still be read, beside Python's and the system's libraries.
        port: The TCP port that may be connected to.
        keep: The descriptor of the channel; all others but standard ones are closed.

    Raises:
        OSError: A part of the sandbox that the machine has did not come up.
    """
    if sys.platform != "linux":
        return
    os.environ.clear()
    _close_others(keep)
    os.chdir("/")
    for kind, most in ((resource.RLIMIT_FSIZE, 0), (resource.RLIMIT_CORE, 0), (resource.RLIMIT_NOFILE, _MOST_OPEN)):
        resource.setrlimit(kind, (most, most))
    _checked(_C.prctl(_PR_SET_NO_NEW_PRIVS, *map(ctypes.c_ulong, (1, 0, 0, 0))), "prctl")
    version = _landlock_version()
    if version >= 1:
        _restrict(version, {*readable, *_libraries()}, port)
    if _has_seccomp():
        _filter()


def _close_others(keep: int) -> None:
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    os.closerange(3, keep)
    os.closerange(keep + 1, max(keep + 1, min(most, 2**20)))


def _libraries() -> Iterator[Path]:
    """Folders that Python and the packages in use load modules from."""
    yield from map(Path, _SYSTEM)
    for name in ("stdlib", "platstdlib", "purelib", "platlib"):
        yield Path(sysconfig.get_path(name))
    for package in ("felixlike", "tvm", "tvm_ffi", "numpy"):
        found = find_spec(package)
        yield from map(Path, (found.submodule_search_locations or ()) if found is not None else ())


def _landlock_version() -> int:
    """0 where there is no Landlock."""
    if sys.platform != "linux":
        return 0
    return max(0, _system_call(_CREATE_RULESET, None, 0, _VERSION))


def _restrict(version: int, readable: Iterable[Path], port: int) -> None:
    """Landlock: everything is refused but what the rules name."""
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
    """Whether filters are known to the kernel, which looks at the program last, and their calls to us."""
    if sys.platform != "linux" or seccomp_filter.program() is None:
        return False
    _C.prctl(_PR_SET_SECCOMP, *map(ctypes.c_ulong, (_SECCOMP_MODE_FILTER, 0, 0, 0)))
    return ctypes.get_errno() != errno.EINVAL


def _filter() -> None:
    """seccomp, last: what comes before is not among the calls that are left."""
    code = seccomp_filter.program()
    assert code is not None
    kept = ctypes.create_string_buffer(code, len(code))
    header = struct.pack("<H6xQ", len(code) // seccomp_filter.STEP_BYTES, ctypes.addressof(kept))  # struct sock_fprog
    pointer = ctypes.cast(ctypes.create_string_buffer(header, len(header)), ctypes.c_void_p)
    zero = ctypes.c_ulong(0)
    done = _C.prctl(_PR_SET_SECCOMP, ctypes.c_ulong(_SECCOMP_MODE_FILTER), pointer, zero, zero)
    _checked(done, "seccomp")


def _system_call(number: int, *arguments: int | bytes | None) -> int:
    given = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    return int(_C.syscall(ctypes.c_long(number), *given))


def _checked(result: int, name: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
    return result
