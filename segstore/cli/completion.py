"""Tab completion of topic and group names, if the command line already has a store.

On disk: only reads. Threads: one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress

import click

import segstore
from segstore.errors import SegstoreError


def topic_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return the store's topics whose names begin with `incomplete`."""
    return _names(ctx, incomplete, lambda store: store.topics())


def group_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return the store's groups whose names begin with `incomplete`."""
    return _names(ctx, incomplete, lambda store: [each.group_id for each in segstore.Groups(store).list()])


def _names(
    ctx: click.Context, incomplete: str, names: Callable[[segstore.Store], Iterable[str]]
) -> list[str]:
    """Return names of the store that begin with `incomplete`."""
    path = ctx.params.get("path")
    # Errors are ignored, because they would be printed into the command line that the user types.
    with suppress(SegstoreError, OSError):
        if isinstance(path, str):
            with segstore.open(path, "r") as store:
                return [name for name in names(store) if name.startswith(incomplete)]
    return []
