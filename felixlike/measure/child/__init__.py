"""Run inside measuring processes: the fork server, candidates, and sessions with RPC servers."""
