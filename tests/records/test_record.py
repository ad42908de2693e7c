import time
from importlib import metadata

import numpy as np

from felixlike import _tvm
from felixlike._version import __version__
from felixlike.frontend.task import make_task
from felixlike.hardware import host_device, resolve_target
from felixlike.measure.measurement import Measurement, Status
from felixlike.records import make_record


def test_a_record_has_its_origin() -> None:
    x = _tvm.te.placeholder((16,), name="X")
    task = make_task(_tvm.te.create_prim_func([x, _tvm.topi.nn.relu(x)]), resolve_target("cpu"), name="relu")
    before = time.time()
    record = make_record(task, "sketch", np.array([4, 16]), Measurement(Status.OK, 1e-3), seed=5)
    assert record.task == task.key
    assert record.point == (4, 16)
    assert all(type(value) is int for value in record.point)
    assert record.device == host_device().name
    assert record.target == str(task.target)
    assert record.tvm == metadata.version("apache-tvm")
    assert record.felixlike == __version__
    assert record.seed == 5
    assert before <= record.time <= time.time()
