"""Dynamic sizes on GPUs: uKernels that are thread blocks.

Start at `tile.py`; `emit.py` makes the code, `search.py` chooses, `rest.py` has what is no contraction."""
