"""The float64 reference: a task's unscheduled function with every float type replaced by float64.

In: an IRModule. Out: one whose loops are the same and whose buffers, constants and operators are double precision.
"""

import json
from typing import Any

from felixlike import tvmlib

_NARROW = frozenset(["float16", "bfloat16", "float32"])


def double_precision(module: Any) -> Any:
    """The same IRModule in float64.

    Works on TVM's JSON graph, where a type is a node of its own that buffers, constants and operators refer to.
    Constants keep the value they were written with, so float32's smallest number stays a harmless start of a maximum.
    A function that depends on the width (reinterpret between float32 and int32) does not compile after this."""
    graph = json.loads(tvmlib.ir.save_json(module))
    for node in graph["nodes"]:
        if node["type"] == "ir.PrimType" and node["data"]["dtype"] in _NARROW:
            node["data"]["dtype"] = "float64"
    return tvmlib.ir.load_json(json.dumps(graph))
