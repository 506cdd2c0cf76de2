"""The version of hpcelastic."""

__version__ = "0.1.0"
