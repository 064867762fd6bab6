"""Promise: programs of Python's clients do all that they can do with a broker: they administer, produce,
share a group's partitions, commit and run transactions; the store has what they did.
"""

from __future__ import annotations

from typing import Any

import pytest
from programs import with_aiokafka, with_kafka_python
from scenario import hold

import segstore

pytestmark = pytest.mark.kind("clients' programs")

PROGRAMS = {module.NAME: module for module in (with_aiokafka, with_kafka_python)}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_does_all_it_can(server: segstore.Server, store: segstore.Store, name: str) -> None:
    program: Any = PROGRAMS[name]
    hold(program.run(server.bootstrap_servers), store, name)
