"""Hold scientific models on this machine, and say what it holds."""

__version__ = "0.1.0"
