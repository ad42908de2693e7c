"""Check a candidate's output against a float64 reference."""
