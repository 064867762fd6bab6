"""Writes the tables in docs/serve.md: the APIs that a server has, from its handlers, and its settings.

Usage: `.venv/bin/python tools/serve_tables.py`. On disk: docs/serve.md, between its markers;
tests/docs/test_serve.py holds that they are up to date.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from client_settings import between, row

from segstore.config import StoreConfig
from segstore.config.options import OptionRow
from segstore.server.apis import advertised, served
from segstore.server.handlers import HANDLERS
from segstore.server.security.settings import SecurityConfig
from segstore.server.settings import ServerConfig

PAGE = Path(__file__).parents[1] / "docs" / "serve.md"
CONSUMERS = "group.consumer."


def apis() -> str:
    """A table of the APIs that are served, by key."""
    lines = ["| key | API | versions |", "|--:|---|---|"]
    for api in sorted(HANDLERS):
        low, high = served(api)
        versions = f"{low} to {high}" if low < high else str(low)
        if advertised(api) != served(api):
            versions += f"; advertised from {advertised(api).low} on"
        lines.append(row(int(api), api.message, versions))
    return "\n".join(lines)


def settings() -> str:
    """A table of a server's settings, in the order of the class, without those of its security."""
    of_security = {option.name for option in SecurityConfig.describe()}
    return _table(option for option in ServerConfig.describe() if option.name not in of_security)


def security() -> str:
    """A table of the settings of a server's security."""
    return _table(SecurityConfig.describe())


def groups() -> str:
    """A table of the store's settings for consumer groups."""
    return _table(option for option in StoreConfig.describe() if option.name.startswith(CONSUMERS))


def _table(options: Iterable[OptionRow]) -> str:
    lines = ["| setting | default | allowed | what |", "|---|---|---|---|"]
    for option in options:
        unit = f", {option.unit}" if option.unit else ""
        default = "" if option.default in (None, "") else f"`{_plain(option.default)}`"
        lines.append(
            row(f"`{option.name.replace('_', '.')}`", default, f"{option.allowed}{unit}", option.doc)
        )
    return "\n".join(lines)


def _plain(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def page(text: str) -> str:
    """The page with its tables as they should be. ValueError where a marker is missing."""
    for make in (apis, settings, groups, security):
        name = make.__name__
        text = between(f"<!-- {name} -->", f"<!-- end of {name} -->", text, make())
    return text


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
