"""The data file of Kafka's messages is what tools/kafka_messages.py makes from Kafka's own jar."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import kafka_tools
import pytest
from loading import loaded
from places import REPOSITORY

pytestmark = [
    pytest.mark.judge("Kafka's jar"),
    pytest.mark.skipif(kafka_tools.why_not() is not None, reason=str(kafka_tools.why_not())),
    pytest.mark.timeout(900),  # the first call may download
]
JAR = "kafka-clients-4.1.0.jar"


def test_the_data_file_is_what_the_jar_has() -> None:
    tool = loaded(REPOSITORY / "tools" / "kafka_messages.py")
    jar = next(Path(each) for each in kafka_tools.classpath().split(":") if each.endswith(JAR))
    assert json.loads(gzip.decompress(tool.TARGET.read_bytes())) == tool.definitions(jar)
