"""The version of this package. A release writes its own version here."""

__version__ = "0.0.0.dev0"
