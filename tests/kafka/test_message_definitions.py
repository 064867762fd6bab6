"""The data file of Kafka's messages and records is what tools/kafka_messages.py makes from Kafka's jars."""

from __future__ import annotations

import gzip
from pathlib import Path

import kafka_tools
import pytest
from loading import loaded
from places import REPOSITORY

pytestmark = [
    pytest.mark.judge("Kafka's jar"),
    pytest.mark.skipif(kafka_tools.why_not() is not None, reason=str(kafka_tools.why_not())),
    pytest.mark.timeout(900),  # the first call may download
    pytest.mark.kind("Kafka's tools"),
]


def test_the_data_file_is_what_the_jars_have() -> None:
    tool = loaded(REPOSITORY / "tools" / "kafka_messages.py")
    jars = {Path(each).name: Path(each) for each in kafka_tools.classpath().split(":")}
    made = tool.definitions(jars[f"{name}-{tool.VERSION}.jar"] for name in tool.JARS)
    assert gzip.decompress(tool.TARGET.read_bytes()) == gzip.decompress(tool.packed(made))
