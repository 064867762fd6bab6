"""Writes the tables of settings in docs/clients.md out of the settings classes.

Usage: `.venv/bin/python tools/client_settings.py`. On disk: docs/clients.md, between its markers;
tests/docs/test_clients.py holds that they are up to date.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from segstore.client.consumer.config import ConsumerConfig
from segstore.client.producer.config import ProducerConfig
from segstore.client.settings import StoreClientSettings

PAGE = Path(__file__).parents[1] / "docs" / "clients.md"
TABLES = {"producer": ProducerConfig, "consumer": ConsumerConfig}
OFF = ("None", "False")
"""What a setting allows that can only be off: otherwise it is refused, and its text is the reason."""


def taken(settings: type[StoreClientSettings]) -> str:
    """A table of the settings that have an effect, in the order of the class."""
    lines = ["| setting | default | allowed | what |", "|---|---|---|---|"]
    for option in settings.describe():
        if option.allowed not in OFF:
            unit = f", {option.unit}" if option.unit else ""
            default = (
                f"{option.default:g}"
                if isinstance(option.default, float)
                else option.default or repr(option.default)
            )
            lines.append(row(f"`{option.name}`", f"`{default}`", f"{option.allowed}{unit}", option.doc))
    return "\n".join(lines)


def refused(settings: type[StoreClientSettings]) -> str:
    """A table of kafka-python's settings that are refused, with the reason; one line a reason."""
    reasons = dict(settings.REFUSED)
    for option in settings.describe():
        if option.allowed in OFF:
            reasons[f"{option.name} (but {option.allowed})"] = option.doc
    return _with_reasons("refused", reasons)


def ignored(settings: type[StoreClientSettings]) -> str:
    """A table of kafka-python's settings that have no effect, with the reason."""
    return _with_reasons("ignored", settings.IGNORED)


def _with_reasons(title: str, reasons: Mapping[str, str]) -> str:
    lines = [f"| {title} | because |", "|---|---|"]
    for reason, names in _by_reason(reasons).items():
        lines.append(row(", ".join(_code(name) for name in names), reason))
    return "\n".join(lines)


def page(text: str) -> str:
    """The page with its tables as they should be. ValueError where a marker is missing."""
    for client, settings in TABLES.items():
        for kind, make in (("settings", taken), ("refused", refused), ("ignored", ignored)):
            marks = f"<!-- {client} {kind} -->", f"<!-- end of {client} {kind} -->"
            text = between(*marks, text, make(settings))
    return text


def between(begin: str, end: str, text: str, table: str) -> str:
    """The text of a page with another table between two markers. ValueError where one is missing."""
    before, found, rest = text.partition(f"{begin}\n")
    _, found_end, after = rest.partition(f"\n{end}")
    if not (found and found_end):
        raise ValueError(f"the page has no {begin} or no {end}")
    return f"{before}{begin}\n{table}\n{end}{after}"


def _by_reason(reasons: Mapping[str, str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, reason in reasons.items():
        found.setdefault(reason, []).append(name)
    return found


def _code(name: str) -> str:
    word, _, rest = name.partition(" ")
    return f"`{word}`" + (f" {rest}" if rest else "")


def row(*cells: Any) -> str:
    """A line of a table."""
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
