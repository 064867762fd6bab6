"""docs/mirror.md: its example works when it is pasted, and what it names is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from places import REPOSITORY

import segstore
from segstore.config.settings import options
from segstore.mirroring.settings import MirrorConfig
from segstore.testing import Broker

PAGE = (REPOSITORY / "docs" / "mirror.md").read_text(encoding="utf-8")
[EXAMPLE] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
NAMED = r"`((?:sasl|ssl|sync|security|request|reconnect|fetch|metadata)\.[a-z.]+)`"


def test_the_example_works_when_pasted(store_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Broker(topics=["flights", "other"]) as broker:
        broker.store.partition("flights").append(b"on time")
        pasted = EXAMPLE.replace('"127.0.0.1:9092"', repr(broker.bootstrap_servers))
        exec(pasted.replace('"flights-mirror"', repr(str(store_dir))), {})
    assert capsys.readouterr().out == "b'on time' 0\n"
    with segstore.open(store_dir, "r") as store:
        assert list(store.topics()) == ["flights"]


def test_the_settings_that_are_named_are_settings() -> None:
    named = set(re.findall(NAMED, PAGE))
    assert len(named) > 10
    assert named - set(options(MirrorConfig)) == set()
