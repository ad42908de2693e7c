"""Measure candidates on other machines through TVM's tracker and servers."""
