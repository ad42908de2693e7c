"""Implement the search strategies, one per module."""
