"""Check a candidate's answer against a float64 reference."""
