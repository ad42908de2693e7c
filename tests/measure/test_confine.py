"""What happens to a process inside its limits; each in a process of its own."""

import subprocess
import sys
from pathlib import Path

import pytest


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)


def test_memory_beyond_the_limit_is_refused() -> None:
    code = """
from felixlike.measure.child.confine import limit_memory
limit_memory(2**27)
kept = bytearray(2**26)
try:
    bytearray(2**28)
except MemoryError:
    print("refused")
"""
    assert run(code).stdout == "refused\n"


def test_a_silenced_process_says_nothing() -> None:
    done = run(
        "from felixlike.measure.child.confine import silence; silence(); import os; os.system('echo a; echo b >&2')"
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_an_orphan_ends_at_once() -> None:
    assert run("import os; from felixlike.measure.child.confine import confine; confine(os.getpid())").returncode == 1


def test_it_is_ended_first_where_memory_runs_out() -> None:
    code = """
import os
parent = os.getpid()
if os.fork() == 0:
    from felixlike.measure.child.confine import confine
    confine(parent)
    os._exit(open("/proc/self/oom_score_adj").read() != "1000\\n")
print(os.waitstatus_to_exitcode(os.wait()[1]), open("/proc/self/oom_score_adj").read().strip())
"""
    own = Path("/proc/self/oom_score_adj")
    if not own.exists():
        pytest.skip("Linux has it")
    assert run(code).stdout == f"0 {own.read_text()}"
