"""What happens to a process inside its limits; each in a process of its own."""

import subprocess
import sys


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)


def test_memory_beyond_the_limit_is_refused() -> None:
    code = """
from felixlike.measure.confine import limit_memory
limit_memory(2**27)
kept = bytearray(2**26)
try:
    bytearray(2**28)
except MemoryError:
    print("refused")
"""
    assert run(code).stdout == "refused\n"


def test_a_silenced_process_says_nothing() -> None:
    done = run("from felixlike.measure.confine import silence; silence(); import os; os.system('echo a; echo b >&2')")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_an_orphan_ends_at_once() -> None:
    assert run("import os; from felixlike.measure.confine import confine; confine(os.getpid())").returncode == 1


def test_a_narrowed_affinity_is_undone() -> None:
    code = """
import os
from felixlike.measure.confine import use_all_cores
cores = os.sched_getaffinity(0)
os.sched_setaffinity(0, [min(cores)])
use_all_cores(1)
assert len(os.sched_getaffinity(0)) == 1
use_all_cores(len(cores))
assert len(os.sched_getaffinity(0)) >= len(cores)
"""
    assert run(code).stderr == ""


def test_the_calling_thread_leaves_the_processors_of_bound_threads() -> None:
    code = """
import os, threading
from felixlike.measure.confine import keep_apart
processors = sorted(os.sched_getaffinity(0))
if len(processors) < 2:
    print("apart")
    raise SystemExit
bound, done = threading.Event(), threading.Event()
def work():
    os.sched_setaffinity(0, processors[:1])
    bound.set()
    done.wait()
threading.Thread(target=work).start()
bound.wait()
keep_apart()
print("apart" if os.sched_getaffinity(0) == set(processors[1:]) else os.sched_getaffinity(0))
done.set()
"""
    assert run(code).stdout == "apart\n"
