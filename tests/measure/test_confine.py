"""The limits of a candidate's process. Each test runs its code in a new process."""

import subprocess
import sys
from pathlib import Path

import pytest


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)


def test_allocations_beyond_the_limit_fail() -> None:
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


def test_a_silenced_process_prints_nothing() -> None:
    completed = run(
        "from felixlike.measure.child.confine import silence; silence(); import os; os.system('echo a; echo b >&2')"
    )
    assert (completed.returncode, completed.stdout, completed.stderr) == (0, "", "")


def test_an_orphan_ends_at_once() -> None:
    assert run("import os; from felixlike.measure.child.confine import confine; confine(os.getpid())").returncode == 1


def test_a_confined_process_has_the_highest_oom_score() -> None:
    code = """
import os
parent = os.getpid()
if os.fork() == 0:
    from felixlike.measure.child.confine import confine
    confine(parent)
    os._exit(open("/proc/self/oom_score_adj").read() != "1000\\n")
print(os.waitstatus_to_exitcode(os.wait()[1]), open("/proc/self/oom_score_adj").read().strip())
"""
    score_file = Path("/proc/self/oom_score_adj")
    if not score_file.exists():
        pytest.skip("Linux has it")
    assert run(code).stdout == f"0 {score_file.read_text()}"
