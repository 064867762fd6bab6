"""The version of segstore. pyproject.toml and `segstore.__version__` get it from this module."""

VERSION = "0.2.0"
