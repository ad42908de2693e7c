"""Provide files, caches, processes, option checks and wording for all packages."""
