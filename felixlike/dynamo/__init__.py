"""Implement the torch.compile backend "felixlike".

Input: a graph captured by TorchDynamo. Output: a callable. The first call of a graph compiles the schedules with the
best predictions, or the best ones in the user's store. A process of low priority then tunes the graph, and its result
replaces the first one. Operators that TVM lacks or that draw random numbers are run by PyTorch inside of the graph.
PyTorch runs a whole graph that cannot be compiled, or that needs gradients, with one warning that names the reason
(docs/torch-compile.md). Each option is also an environment variable (FELIXLIKE_SECONDS, …):

    torch.compile(model, backend="felixlike", options={"seconds": 120, "background": False})
"""

from felixlike._util import supported
from felixlike.dynamo.backend import felixlike
from felixlike.dynamo.options import Options, read_options
from felixlike.errors import NotCompiledWarning

supported.check()

__all__ = ["NotCompiledWarning", "Options", "felixlike", "read_options"]
