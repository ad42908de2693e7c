"""Describe how a model is called: its parameters, the nesting and the sizes of its inputs and outputs."""
