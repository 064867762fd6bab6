"""Tab completion of topic and group names. The command line must already name a store.

On disk: the store is only read. Threads: one.
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
    """Call `names` with the store, and return those of its results that begin with `incomplete`."""
    path = ctx.params.get("path")
    # Errors are ignored: a message would be printed into the command line that the user is typing.
    with suppress(SegstoreError, OSError):
        if isinstance(path, str):
            with segstore.open(path, "r") as store:
                return [name for name in names(store) if name.startswith(incomplete)]
    return []
