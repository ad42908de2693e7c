"""The code that measuring processes run: the fork server, candidates, and sessions with RPC servers."""
