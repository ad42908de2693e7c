"""Modules that any package may use: files, caches, processes, checks of options, and wording."""
