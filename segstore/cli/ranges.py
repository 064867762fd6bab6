"""Options for a range of a topic's records: --partition, --start, --end, --from-time, --to-time.

The options are named like the arguments of `Store.scan`. Nothing is on disk. Threads: one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from segstore.cli.options import time_value
from segstore.integers import INT64_MAX

if TYPE_CHECKING:
    from segstore.storage.scans.bounds import Bounds
    from segstore.storage.scans.topic_scan import TopicScan
    from segstore.storage.store.store import Store

F = TypeVar("F", bound=Callable[..., Any])
EDGES = ("earliest", "latest")
_OFFSET = "N|earliest|latest"


class Renamed(click.Option):
    """An option that accepts its former names, too. The help does not show them."""

    def __init__(self, names: list[str], *, old: tuple[str, ...] = (), **settings: Any) -> None:
        super().__init__([*names, *old], **settings)
        self._all, self._shown = self.opts, [each for each in self.opts if each not in old]

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """Return the help of the option, without its former names."""
        self.opts = self._shown
        try:
            return super().get_help_record(ctx)
        finally:
            self.opts = self._all

    def get_error_hint(self, ctx: click.Context | None) -> str:
        """Return the option's names for an error message, without its former names."""
        return " / ".join(f"'{each}'" for each in self._shown)


def offset_value(_ctx: click.Context, _param: click.Parameter, value: str | None) -> int | str | None:
    """Return the value of an option: an offset, "earliest" or "latest". If the option is not given, return
    None.
    """
    if value is None or value in EDGES:
        return value
    if not value.isdecimal() or int(value) > INT64_MAX:
        raise click.BadParameter(f"{value!r} is neither an offset nor earliest or latest")
    return int(value)


class RecordRange(NamedTuple):
    """The range of records that the options choose. `start` and `end` are offsets, "earliest", "latest" or
    None.
    """

    partitions: tuple[int, ...]
    start: int | str | None
    end: int | str | None
    from_time: int | None
    to_time: int | None

    def check(self) -> None:
        """Raise click.UsageError if the start or the end of the range is given both as an offset and as a
        time, or if the range ends before it starts.
        """
        for by_offset, by_time in (("start", "from_time"), ("end", "to_time")):
            if getattr(self, by_offset) is not None and getattr(self, by_time) is not None:
                names = f"--{by_offset} and --{by_time.replace('_', '-')}"
                raise click.UsageError(f"Give {names} not both: an end of the range is an offset or a time.")
        for first, last in (("start", "end"), ("from_time", "to_time")):
            given = getattr(self, first), getattr(self, last)
            if isinstance(given[0], int) and isinstance(given[1], int) and given[0] > given[1]:
                names = f"--{first.replace('_', '-')} is after --{last.replace('_', '-')}"
                raise click.UsageError(f"{names}: nothing lies between them.")

    def scan(self, store: Store, topic: str, isolation_level: str) -> TopicScan:
        """Return a scan of the range's partitions and times. The scan is not limited to the range's offsets:
        callers pass `bounds` to the scan's methods.
        """
        return store.scan(
            topic,
            self.partitions or None,
            from_time=self.from_time,
            to_time=self.to_time,
            isolation_level=isolation_level,
        )

    @property
    def bounds(self) -> Bounds:
        """Return the range's offsets as `Bounds`. These offsets may lie outside of a partition's log."""
        from segstore.storage.scans.bounds import Bounds

        if self.start == "latest" or self.end == "earliest":
            return Bounds(partitions=frozenset())
        first = self.start if isinstance(self.start, int) else 0
        return Bounds(None, first, self.end - 1 if isinstance(self.end, int) else INT64_MAX)


def range_options(command: F) -> F:
    """Add the options that choose a range of records. The command gets their values as a `RecordRange`, the
    argument `limits`.
    """

    @wraps(command)
    def run(
        *args: Any, partition: Any, start: Any, end: Any, from_time: Any, to_time: Any, **named: Any
    ) -> Any:
        limits = RecordRange(tuple(dict.fromkeys(partition)), start, end, from_time, to_time)
        limits.check()
        return command(*args, limits=limits, **named)

    for option in reversed(_OPTIONS):
        run = option(run)
    return run  # type: ignore[return-value]


_OPTIONS: tuple[Callable[[Any], Any], ...] = (
    click.option(
        "--partition",
        "-p",
        type=click.IntRange(0),
        multiple=True,
        help="Read only this partition; may be repeated.",
    ),
    click.option(
        "--start",
        cls=Renamed,
        old=("--from-offset", "--offset", "-o"),
        callback=offset_value,
        metavar=_OFFSET,
        help="Offset to begin at, earliest or latest; by default earliest.",
    ),
    click.option(
        "--end",
        cls=Renamed,
        old=("--to-offset",),
        callback=offset_value,
        metavar=_OFFSET,
        help="Offset to end before, earliest or latest; by default latest.",
    ),
    click.option(
        "--from-time",
        "-t",
        cls=Renamed,
        old=("--time",),
        callback=time_value,
        metavar="TIME",
        help="Begin at the first record from this time on: ISO 8601 (UTC), or ms.",
    ),
    click.option(
        "--to-time",
        callback=time_value,
        metavar="TIME",
        help="End before the first record from this time on.",
    ),
)
