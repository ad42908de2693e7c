"""The version of the package, read by hatchling and stored beside every measurement."""

__version__ = "0.1.0"
