"""Collect training data for the cost model, train the model and evaluate it."""
