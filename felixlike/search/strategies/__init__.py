"""The search strategies, one module each."""
