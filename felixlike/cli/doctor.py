"""`felixlike doctor`: what this machine has, what is wrong, and what to do about it.

In: nothing, or a tracker whose servers are to be tried. Out: a line for each check; exit code 1 if any found a problem
that keeps felixlike from working.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from importlib import metadata
from typing import Any

from felixlike.cli.finding import Finding
from felixlike.errors import FelixlikeError, InvalidOption

_NEEDED = {"apache-tvm": "0.27.0", "apache-tvm-ffi": "0.1.14", "torch": "2.13", "egglog": "13."}
"""What versions must begin with. apache-tvm-ffi 0.1.15 makes MetaSchedule's default rules segfault."""
_LEAST_MEMORY = 2 * 2**30


def add_parser(commands: Any) -> None:
    """Describe the command."""
    parser = commands.add_parser("doctor", help="check versions, compiler, cores, memory, GPU")
    parser.add_argument("--tracker", metavar="HOST:PORT", help="try the servers of this tracker, too")
    parser.add_argument("--key", help="only those under this key")
    parser.add_argument("--target", default="cpu", help="what the servers must be")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print every finding; 1 if one of them is a fatal problem."""
    from felixlike.cli.servers import examine_servers

    if options.key is not None and options.tracker is None:
        raise InvalidOption("there is a key but no tracker", where="--key", remedy="give --tracker HOST:PORT, too")
    findings = list(examine())
    if options.tracker is not None and not any(f.problem and f.fatal for f in findings):
        findings += examine_servers(options.tracker, options.key, options.target)
    width = max(len(f.name) for f in findings)
    for finding in findings:
        mark = "ok" if not finding.problem else "PROBLEM" if finding.fatal else "note"
        print(f"{mark:8}{finding.name:{width}}  {finding.value}")
        if finding.problem:
            print(f"{'':8}{'':{width}}  {finding.problem}. {finding.remedy}".rstrip())
    return int(any(f.problem and f.fatal for f in findings))


def examine() -> Iterator[Finding]:
    """All checks, cheap ones first; TVM is only loaded if its versions are right."""
    yield _python()
    versions = [_version(package, prefix) for package, prefix in _NEEDED.items()]
    yield from versions
    yield _compiler()
    yield _memory()
    yield _cache()
    yield _gpu()
    if not any(f.problem for f in versions):
        yield from _tvm()


def _python() -> Finding:
    found = platform.python_version()
    wrong = "" if sys.version_info[:2] == (3, 11) else "felixlike is made for Python 3.11"
    return Finding("Python", found, wrong, "Make the virtual environment with python3.11.")


def _version(package: str, prefix: str) -> Finding:
    try:
        found = metadata.version(package)
    except metadata.PackageNotFoundError:
        return Finding(package, "not installed", f"{package} {prefix}* is needed", _install())
    wrong = "" if found.startswith(prefix) else f"{prefix}* is needed"
    return Finding(package, found, wrong, _install())


def _install() -> str:
    return "Install with the constraints file: pip install -c constraints.txt felixlike."


def _compiler() -> Finding:
    from felixlike.hardware import c_compiler

    found = c_compiler()
    if found is None:
        return Finding(
            "C compiler", "none", "saving a model needs one to link", "Install gcc; tuning works without.", fatal=False
        )
    return Finding("C compiler", found)


def _memory() -> Finding:
    try:
        free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    except (ValueError, OSError):
        return Finding("free memory", "unknown")
    wrong = "" if free >= _LEAST_MEMORY else "measuring processes may be ended for lack of memory"
    return Finding("free memory", f"{free / 2**30:.1f} GiB", wrong, "Close other programs.", fatal=False)


def _cache() -> Finding:
    from felixlike.smooth import cache

    folder = cache.folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        writable = os.access(folder, os.W_OK)
    except OSError:
        writable = False
    wrong = "" if writable else "it cannot be written, so formulas are smoothed anew in every run"
    return Finding("cache", str(folder), wrong, "Make it writable, or set XDG_CACHE_HOME.", fatal=False)


def _gpu() -> Finding:
    tool = shutil.which("nvidia-smi")
    return Finding("GPU", f"driver found ({tool})" if tool else "none found; the CPU is the target")


def _tvm() -> Iterator[Finding]:
    started = time.perf_counter()
    try:
        from felixlike import tvmlib
        from felixlike.hardware import host_device
    except (FelixlikeError, ImportError) as error:
        yield Finding("TVM", "does not load", str(error), _install())
        return
    yield Finding("TVM start-up", f"{time.perf_counter() - started:.1f} s")
    device = host_device()
    yield Finding("LLVM", f"{tvmlib.llvm_version()}, generating code for {device.mcpu}")
    vectors = f"{device.vector_bits}-bit vectors"
    caches = f"L1 {device.l1_bytes // 1024} KiB, L2 {device.l2_bytes // 1024} KiB"
    yield Finding("processor", f"{device.name}: {device.cores} cores, {vectors}, {caches}")
    yield _guarded("design space", _design_space)


def _guarded(name: str, check: Callable[[], str]) -> Finding:
    try:
        return Finding(name, check())
    except Exception as error:
        return Finding(name, "failed", f"{type(error).__name__}: {error}", _install())


def _design_space() -> str:
    """MetaSchedule makes sketches of a small product, and they are understood."""
    from felixlike import tvmlib
    from felixlike.symbolic import sketches

    te = tvmlib.te
    a, b = te.placeholder((16, 16), name="a"), te.placeholder((16, 16), name="b")
    k = te.reduce_axis((0, 16), name="k")
    c = te.compute((16, 16), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="c")
    started = time.perf_counter()
    found = sketches(te.create_prim_func([a, b, c]))
    understood = sum(s.understood for s in found)
    return f"{len(found)} sketches of a product, {understood} understood, {time.perf_counter() - started:.2f} s"
