"""The table of all fuzzed parsers, by name."""

from __future__ import annotations

from pathlib import Path

from fuzz import (
    batch_targets,
    index_targets,
    point_targets,
    range_targets,
    record_targets,
    request_targets,
    sent_targets,
    small_targets,
    store_target,
    table_targets,
    wire_target,
)
from fuzz.target import Target

CORPUS = Path(__file__).parent / "corpus"

TARGETS: dict[str, Target] = {
    **batch_targets.TARGETS,
    **index_targets.TARGETS,
    **small_targets.TARGETS,
    **record_targets.TARGETS,
    **point_targets.TARGETS,
    **range_targets.TARGETS,
    **request_targets.TARGETS,
    **sent_targets.TARGETS,
    **store_target.TARGETS,
    **table_targets.TARGETS,
    **wire_target.TARGETS,
}


def folder(name: str) -> Path:
    """Where a target's corpus is."""
    return CORPUS / name.replace(" ", "-")


def corpus(name: str) -> list[bytes]:
    """Inputs that are kept in the repository."""
    place = folder(name)
    return [path.read_bytes() for path in sorted(place.iterdir())] if place.is_dir() else []
