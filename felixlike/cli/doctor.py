"""Implement `felixlike doctor`: check this machine, and say what is wrong and what to do.

Input: optionally a tracker whose servers are checked too. Outputs: a line per check; exit code 1 if a check found a
problem that prevents felixlike from working.
"""

from __future__ import annotations

import argparse
import os
import platform
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

from felixlike import _tvm
from felixlike._util import supported
from felixlike._util.wording import counted
from felixlike.cli.doctor_gpu import examine_gpu, seen_by_tvm
from felixlike.cli.finding import Finding, findings_text
from felixlike.errors import FelixlikeError, InvalidOption, OutputNotWritable

_OF_THREADS = ("TVM_NUM_THREADS", "OMP_NUM_THREADS", "OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY")
"""Environment variables that set the number of threads and their processors."""
_LEAST_MEMORY = 2 * 2**30
"""Free memory in bytes below which the check reports a problem."""
_LEAST_CORES = 1.0
"""Cores of processor time below which the check reports a problem. With less, calls are stopped in every period."""


def add_parser(commands: Any) -> None:
    """Add the parser of `felixlike doctor`."""
    parser = commands.add_parser("doctor", help="check versions, compiler, cores, threads, memory, GPU")
    parser.add_argument("--tracker", metavar="HOST:PORT", help="also check the servers of this tracker")
    parser.add_argument("--key", help="check only servers with this key")
    parser.add_argument("--target", help="target of the servers, default cpu")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print every finding. Return 1 if one of them is a fatal problem, else 0."""
    from felixlike.cli.servers import examine_servers
    from felixlike.report.layout import stream_width

    for name in ("key", "target"):
        if getattr(options, name) is not None and options.tracker is None:
            raise InvalidOption(f"a {name} requires a tracker", where=f"--{name}", remedy="add --tracker HOST:PORT")
    findings = list(examine())
    if options.tracker is not None and not any(f.problem and f.fatal for f in findings):
        findings += examine_servers(options.tracker, options.key, options.target or "cpu")
    print(findings_text(findings, width=stream_width()))
    return int(any(f.problem and f.fatal for f in findings))


def examine() -> Iterator[Finding]:
    """Run all checks, cheap ones first. TVM is loaded only if the versions of the packages are right."""
    yield _python()
    versions = list(map(_version, supported.PACKAGES))
    yield from versions
    yield _compiler()
    yield _allowance()
    yield _memory()
    yield _temporary_files()
    yield from examine_gpu()
    if not any(f.problem for f in versions):
        yield from _tvm_versions()
        yield from seen_by_tvm()
        yield _cache()


def _python() -> Finding:
    """Check the version of Python."""
    version = platform.python_version()
    remedy = "Create the virtual environment with another version, for example python3.11."
    return Finding("Python", version, supported.python_problem(version), remedy)


def _version(package: str) -> Finding:
    """Check the version of a package."""
    version = supported.installed_version(package)
    remedy = f'Install it: pip install "{supported.requirement(package)}".'
    return Finding(package, version or "not installed", supported.package_problem(package, version), remedy)


_TVM_AGAIN = f'Install TVM again: pip install --force-reinstall "{supported.requirement("apache-tvm")}".'
"""Remedy for a damaged installation of TVM."""

_EGGLOG_AGAIN = f'Install egglog and what it needs: pip install --force-reinstall "{supported.requirement("egglog")}".'
"""Remedy for a damaged installation of egglog."""


def _compiler() -> Finding:
    """Check that a C compiler is installed."""
    from felixlike.hardware import c_compiler

    compiler = c_compiler()
    if compiler is None:
        return Finding(
            "C compiler", "none", "saving a model needs one to link", "Install gcc; tuning works without.", fatal=False
        )
    return Finding("C compiler", compiler)


def _allowance() -> Finding:
    """Check the limits that control groups (set by containers) impose on this process."""
    from felixlike.hardware import cgroups

    limits = cgroups.allowance()
    parts = []
    if limits.cores is not None:
        parts.append(f"{limits.cores:g} cores of processor time")
    if limits.memory_bytes is not None:
        parts.append(f"{limits.memory_bytes / 2**30:.1f} GiB of memory")
    wrong = ""
    if limits.cores is not None and limits.cores < _LEAST_CORES:
        wrong = "with less than one core, calls are throttled in every scheduling period and measured times vary"
    return Finding("container", ", ".join(parts) or "no limits", wrong, "Allow at least one core.", fatal=False)


def _memory() -> Finding:
    """Check the free memory."""
    from felixlike.hardware.probe import free_memory_bytes

    free = free_memory_bytes()
    if free is None:
        return Finding("free memory", "unknown")
    wrong = "" if free >= _LEAST_MEMORY else "measuring processes may be killed for lack of memory"
    return Finding("free memory", f"{free / 2**30:.1f} GiB", wrong, "Close other programs.", fatal=False)


def _temporary_files() -> Finding:
    """Check that there is a folder for temporary files, from which code may run."""
    from felixlike._util import scratch

    try:
        with scratch.temporary("doctor") as folder:
            status, place = os.statvfs(folder), folder.parents[1]
    except OutputNotWritable as error:
        return Finding("temporary files", "none", error.what, "Set TMPDIR to a writable folder with free space.")
    is_noexec = bool(status.f_flag & os.ST_NOEXEC)
    wrong = "its file system is mounted with noexec, so saved models do not load" if is_noexec else ""
    free = f"{status.f_bavail * status.f_frsize / 2**30:.1f} GiB free"
    remedy = "Set TMPDIR to a folder whose file system allows code to run."
    return Finding("temporary files", f"{place}, {free}", wrong, remedy, fatal=False)


def _cache() -> Finding:
    """Check that the cache folder can be used: it is writable, and no other user can write to it."""
    from felixlike._util import cache, private_files

    folder = cache.folder()
    wrong, remedy = "it is not writable", "Make it writable, or set XDG_CACHE_HOME."
    if folder is not None:
        try:
            private_files.make_folder(folder)
            wrong = "" if os.access(folder, os.W_OK | os.X_OK) else wrong
        except private_files.NotPrivate as error:
            wrong, remedy = str(error.strerror), "Remove it; it may be deleted at any time. Or set XDG_CACHE_HOME."
        except OSError:
            pass
    wrong = wrong and f"{wrong}, so every process recomputes formulas and predictions"
    where = "the user's home directory is unknown" if folder is None else str(folder)
    return Finding("cache", where, wrong, remedy, fatal=False)


def _tvm_versions() -> Iterator[Finding]:
    """Check that TVM loads and creates sketches, and show LLVM, the processor and the threads."""
    started = time.perf_counter()
    try:
        from felixlike.hardware import host_device
        from felixlike.hardware.presets import imitated

        _tvm.load()
    except (FelixlikeError, ImportError) as error:
        reason = error.what if isinstance(error, FelixlikeError) else str(error)
        yield Finding("TVM", "does not load", reason, _TVM_AGAIN)
        return
    yield Finding("TVM start-up", f"{time.perf_counter() - started:.1f} s")
    device = host_device()
    yield Finding("LLVM", f"{_tvm.llvm_version()}, generating code for {device.mcpu}")
    vectors = f"{device.vector_bits}-bit vectors"
    caches = f"L1 {device.l1_bytes // 1024} KiB, L2 {device.l2_bytes // 1024} KiB"
    stands_in = f", imitating {preset[0]}" if (preset := imitated()) else ""
    cores = counted(device.cores, "core")
    yield Finding("processor", f"{device.name}{stands_in}: {cores}, {vectors}, {caches}")
    yield _threads()
    yield _guarded("design space", _design_space, _TVM_AGAIN)
    yield _guarded("smooth formulas", _smooth_formulas, _EGGLOG_AGAIN)


def _threads() -> Finding:
    """Check the number of threads per call, their processors, and what limits them."""
    from felixlike.hardware import placement, probe

    cores, everywhere = probe.usable_cores(), probe.all_cores()
    try:
        requested = placement.threads()
    except InvalidOption as error:
        return Finding("threads", "none", str(error))
    try:
        threads = placement.placed()
    except FelixlikeError as error:
        return Finding("threads", f"{requested} per call", str(error), fatal=False)
    settings = [f"{name}={os.environ[name]}" for name in _OF_THREADS if name in os.environ]
    value = f"{len(threads)} per call, on processors {_listed([share.processors for share in threads])}"
    value += f"; {cores} of {everywhere} cores usable" + "".join(f", {setting}" for setting in settings)
    variable = placement.asked_by()
    wrong, remedy = "", f"Unset {variable}, or set TVM_NUM_THREADS={cores}, unless this is intended."
    if len(threads) < requested:
        wrong, remedy = (
            f"only {len(threads)} of {requested} threads started",
            "Check the user's limit on threads: ulimit -u.",
        )
    elif requested < cores:
        wrong = f"{variable} leaves {cores - requested} of the cores idle"
    elif requested > cores:
        wrong = f"{variable} exceeds the number of cores, so threads share cores"
    elif not placement.apart(threads):
        wrong, remedy = (
            "some threads share a core",
            "Another program bound them: check taskset and the container's cpuset.",
        )
    elif cores < everywhere:
        wrong = "some cores are not usable"
        remedy = "Check taskset, OMP_PLACES, and the container's cpuset and processor time."
    return Finding("threads", value, wrong, remedy if wrong else "", fatal=False)


def _listed(places: Sequence[Collection[int]]) -> str:
    """Return the processors of each thread as text ("0 | 1 | 2, 3"), at most eight threads."""
    most = 8
    texts = [", ".join(map(str, sorted(processors))) for processors in places[:most]]
    return " | ".join(texts + ["…"] * (len(places) > most))


def _guarded(name: str, check: Callable[[], str], remedy: str) -> Finding:
    """Run a check. Convert exceptions to a finding."""
    try:
        return Finding(name, check())
    except Exception as error:
        return Finding(name, "failed", f"{type(error).__name__}: {error}", remedy)


def _design_space() -> str:
    """Create MetaSchedule's sketches of a small matrix product, and count the symbolic ones."""
    from felixlike.symbolic import sketches

    te = _tvm.te
    a, b = te.placeholder((16, 16), name="a"), te.placeholder((16, 16), name="b")
    k = te.reduce_axis((0, 16), name="k")
    c = te.compute((16, 16), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="c")
    started = time.perf_counter()
    candidates = sketches(te.create_prim_func([a, b, c]))
    symbolic = sum(s.is_symbolic for s in candidates)
    seconds = time.perf_counter() - started
    return f"{counted(len(candidates), 'sketch', 'sketches')} of a matrix product, {symbolic} symbolic, {seconds:.2f} s"


def _smooth_formulas() -> str:
    """Rewrite a formula by equality saturation, which loads all that egglog needs."""
    from felixlike.smooth import saturate
    from felixlike.symbolic.expr.comparison import maximum
    from felixlike.symbolic.expr.expression import var

    started = time.perf_counter()
    nodes = saturate([maximum(var("tile", 1, 64), 4)]).nodes
    return f"{counted(len(nodes), 'node')} for max(tile, 4), {time.perf_counter() - started:.2f} s"
