"""Replay traces inside TVM with variables in place of numbers."""
