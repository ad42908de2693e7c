import os
import subprocess
import sys

import pytest

from felixlike.hardware.probe import usable_cores


@pytest.mark.skipif(usable_cores() < 2, reason="one core is all there is")
def test_threads_that_openmp_binds_do_not_hide_cores() -> None:
    """Importing torch first can bind the main thread to one processor, which must not hide the other cores."""
    processors = sorted(os.sched_getaffinity(0))
    places = ",".join(f"{{{p}}}" for p in processors)
    program = "import torch; from felixlike.hardware.probe import usable_cores; print(usable_cores())"
    environment = {**os.environ, "OMP_PROC_BIND": "true", "OMP_PLACES": places, "OMP_NUM_THREADS": str(len(processors))}
    process = subprocess.run(
        [sys.executable, "-c", program], env=environment, check=True, capture_output=True, text=True, timeout=120
    )
    assert int(process.stdout) == usable_cores()
