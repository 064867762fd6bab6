"""docs/mirror.md: the settings that it names are there."""

from __future__ import annotations

import re

from places import REPOSITORY

from segstore.config.settings import options
from segstore.mirroring.settings import MirrorConfig

PAGE = (REPOSITORY / "docs" / "mirror.md").read_text(encoding="utf-8")
NAMED = r"`((?:sasl|ssl|sync|security|request|reconnect|fetch|metadata)\.[a-z.]+)`"


def test_the_settings_that_are_named_are_settings() -> None:
    named = set(re.findall(NAMED, PAGE))
    assert len(named) > 10
    assert named - set(options(MirrorConfig)) == set()
