"""The examples of docs/testing.md pass as tests of a user, who has the plugin."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys

import pages
import pytest
from places import REPOSITORY, environment
from plugin_runs import Run
from plugin_runs import kept_modules as kept_modules
from plugin_runs import run_with_plugin as run_with_plugin
from waiting import PATIENCE

from segstore.testing import Faults, LoggedRequest, broker, plugin

pytestmark = pytest.mark.kind("clients on the wire")

pytest_plugins = ["pytester"]

PAGE = (REPOSITORY / "docs" / "testing.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def title(example: str) -> str:
    client = re.findall(r"^from (confluent_kafka|kafka|aiokafka) ", example, re.MULTILINE)[0]
    return f"{client} {re.findall(r'def (test_[a-z_]*)', example)[0]}"


@pytest.mark.parametrize("example", EXAMPLES, ids=title)
def test_example_passes(example: str, run_with_plugin: Run) -> None:
    if "aiokafka" in example and importlib.util.find_spec("aiokafka") is None:
        pytest.skip("aiokafka is not installed")
    run_with_plugin(example).assert_outcomes(passed=1)


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
    light = {"errors", "first_use", "main_interpreter", "threads", "version", "_native"}
    light |= {"testing", "testing.plugin"}
    loaded = {name.removeprefix("segstore.") for name in eval(run.stdout)}
    assert loaded <= light
