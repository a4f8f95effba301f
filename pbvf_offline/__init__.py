"""Parameter-based value functions: policies as data, critics as functions of policies."""

__version__ = "0.1.0"
