"""The backend of torch.compile: torch.compile(model, backend="felixlike").

In: a graph that TorchDynamo captured. Out: a callable. The first call of a graph compiles its predicted best schedules,
or the best ones that the user's store has; a process of low priority then tunes it for a while, and its result takes
over. A graph that cannot be compiled right runs as PyTorch runs it, with one warning that says why: it draws random
numbers, changes its inputs or state, or needs an operator that is not known. Training graphs always run so. Options,
each also an environment variable (FELIXLIKE_SECONDS, …):

    torch.compile(model, backend="felixlike", options={"seconds": 120, "background": False})
"""

from felixlike.dynamo.backend import felixlike
from felixlike.dynamo.options import Options, read_options
from felixlike.errors import NotCompiledWarning

__all__ = ["NotCompiledWarning", "Options", "felixlike", "read_options"]
