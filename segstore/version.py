"""The version of segstore, which pyproject.toml and `segstore.__version__` take from here."""

VERSION = "0.2.0"
