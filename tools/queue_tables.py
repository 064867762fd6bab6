"""Writes the tables in docs/queues.md: the settings of share groups, with the store's bounds, and of share
consumers.

Usage: `.venv/bin/python tools/queue_tables.py`. On disk: docs/queues.md, between its markers;
tests/docs/test_queues.py holds that they are up to date.
"""

from __future__ import annotations

from pathlib import Path

from client_settings import between, refused, row, taken

from segstore.client.share.config import ShareConsumerConfig
from segstore.config import GroupConfig, StoreConfig
from segstore.coordinator.share_settings import bounds

PAGE = Path(__file__).parents[1] / "docs" / "queues.md"
OF_CONSUMER_GROUPS = "consumer."


def group() -> str:
    """A table of a share group's settings; a bounded one has its bounds of a new store."""
    lines = ["| setting of the group | default | allowed | what |", "|---|---|---|---|"]
    bounded = bounds(StoreConfig())
    for option in GroupConfig.describe():
        if option.name.startswith(OF_CONSUMER_GROUPS):
            continue
        allowed = option.allowed
        if option.name in bounded:
            bound = bounded[option.name]
            allowed = f"{bound.least:,} to {bound.most:,}"
        unit = f" {option.unit}" if option.unit else ""
        lines.append(row(f"`{option.name}`", _plain(option.default), f"{allowed}{unit}", option.doc))
    return "\n".join(lines)


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return f"`{value}`".lower()
    return f"`{value:,}`" if isinstance(value, int) else f"`{value}`" if value else ""


def consumer() -> str:
    """A table of a share consumer's settings."""
    return taken(ShareConsumerConfig)


def not_taken() -> str:
    """A table of the settings that a share consumer refuses, and of the reasons."""
    return refused(ShareConsumerConfig)


def page(text: str) -> str:
    """The page with its tables as they should be. ValueError where a marker is missing."""
    for make in (group, consumer, not_taken):
        name = make.__name__.replace("_", " ")
        text = between(f"<!-- {name} -->", f"<!-- end of {name} -->", text, make())
    return text


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
