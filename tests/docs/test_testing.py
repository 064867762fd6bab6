"""The examples of docs/testing.md pass as tests of a user, who has the plugin."""

from __future__ import annotations

import asyncio  # noqa: F401  see `test_example_passes`
import importlib.util
import re
import subprocess
import sys

import confluent_kafka  # noqa: F401
import kafka  # noqa: F401
import pages
import pytest
from places import REPOSITORY, environment
from waiting import PATIENCE

from segstore.testing import Faults, LoggedRequest, broker, plugin

pytest_plugins = ["pytester"]

PAGE = (REPOSITORY / "docs" / "testing.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def title(example: str) -> str:
    client = re.findall(r"^from (confluent_kafka|kafka|aiokafka) ", example, re.MULTILINE)[0]
    return f"{client} {re.findall(r'def (test_[a-z_]*)', example)[0]}"


@pytest.mark.parametrize("example", EXAMPLES, ids=title)
def test_example_passes(example: str, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process. Pytester forgets the modules that a run was the first to import, and a second
    `asyncio` would not know the first one's exceptions.
    """
    if "aiokafka" in example and importlib.util.find_spec("aiokafka") is None:
        pytest.skip("aiokafka is not installed")
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makepyfile(example)
    pytester.runpytest_inprocess("-p", "segstore.testing.plugin", "-q").assert_outcomes(passed=1)


def test_every_block_is_an_example() -> None:
    assert [block.text for block in pages.blocks(REPOSITORY / "docs" / "testing.md")] == EXAMPLES


def test_there_is_an_example_of_each_client() -> None:
    assert {title(example).split()[0] for example in EXAMPLES} == {"confluent_kafka", "kafka", "aiokafka"}


def test_the_tables_name_what_is_there() -> None:
    calls = re.findall(r"^\| `(\w+)\(api", PAGE, re.MULTILINE)
    assert set(calls) == {"error", "delay", "drop", "half", "throttle"}
    assert all(callable(getattr(Faults, name)) for name in calls)
    fixtures = re.findall(r"^\| `(segstore_\w+)`", PAGE, re.MULTILINE)
    assert set(fixtures) == {name for name in vars(plugin) if name.startswith("segstore_")}
    assert f"{broker.ENOUGH >> 20} MiB are free" in PAGE
    named = re.search(r"Each has (.*) and `fields`", PAGE.replace("\n", " "))
    assert named is not None
    fields = set(re.findall(r"`(\w+)`", named[1])) | {"fields"}
    assert fields == set(LoggedRequest.__dataclass_fields__)


def test_the_plugin_is_an_entry_point() -> None:
    text = (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")
    assert f'[project.entry-points.pytest11]\nsegstore = "{plugin.__name__}"\n' in text


def test_the_plugin_imports_nothing_heavy() -> None:
    """Every run of pytest imports it."""
    code = (
        "import sys, pytest, segstore.testing.plugin;"
        "print(sorted(m for m in sys.modules if m == 'numpy' or m.startswith('segstore.')))"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE, env=environment()
    )
    assert run.returncode == 0, run.stderr
    light = {"errors", "main_interpreter", "threads", "testing", "testing.plugin", "version", "_native"}
    loaded = {name.removeprefix("segstore.") for name in eval(run.stdout)}
    assert loaded <= light
