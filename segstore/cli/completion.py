"""Completes the names of topics and groups by the Tab key, where the command line names a store by then.

On disk: only reads. Threads: one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress

import click

import segstore
from segstore.errors import SegstoreError


def topic_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return the topics of the store whose names begin so."""
    return _names(ctx, incomplete, lambda store: store.topics())


def group_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return the groups of the store whose names begin so."""
    return _names(ctx, incomplete, lambda store: [each.group_id for each in segstore.Groups(store).list()])


def _names(
    ctx: click.Context, incomplete: str, names: Callable[[segstore.Store], Iterable[str]]
) -> list[str]:
    """Nothing is told of errors: a shell would print them amid the line that is typed."""
    path = ctx.params.get("path")
    with suppress(SegstoreError, OSError):
        if isinstance(path, str):
            with segstore.open(path, "r") as store:
                return [name for name in names(store) if name.startswith(incomplete)]
    return []
