"""Engines that take predicates: polars, pyarrow's datasets and DuckDB. On disk: only reads."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType

from table_engines import Engine

QUERIES: dict[str, Engine] = {}


class Kept:
    """Tables that live through a game."""

    def __init__(self) -> None:
        self.queries: Mapping[str, Engine] = {}

    def __enter__(self) -> Kept:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        """Nothing is open."""
