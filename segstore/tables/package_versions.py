"""Checks that the packages that read tables are not too old. Nothing is on disk. Threads: any."""

from __future__ import annotations

from segstore.errors import MissingPackageError, pip_install

OLDEST = {"duckdb": "1.4.2", "polars": "1.35", "pyarrow": "19.0"}
"""The oldest tested versions: of DuckDB for `attach`, of polars and pyarrow for `scan_polars`. pyarrow 18 is
too old, because it can't make arrays of views from buffers.
"""


def release(version: str) -> tuple[int, ...]:
    """Return the first three numbers of a version: (1, 5, 0) for "1.5.0.dev3"."""
    return tuple(int(each) for each in version.split(".")[:3] if each.isdecimal())


def check_version(what: str, package: str, version: str) -> None:
    """Raise MissingPackageError if the installed version of a package is too old for the call `what`. The
    message asks for a later version.
    """
    oldest = OLDEST[package]
    if release(version) < release(oldest):
        advice = pip_install(f"'{package}>={oldest}'")
        raise MissingPackageError(
            f"{what} needs {package} {oldest} or later, and {version} is installed: {advice}", name=package
        )
