"""Measure candidates on other machines through TVM's RPC tracker and servers."""
