"""Dockerfile, compose.yaml and the workflow of releases: what they copy and run is there, and their commands
are commands of segstore. Docker itself is not run.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import yaml
from cli import COMMAND
from places import REPOSITORY, environment
from waiting import PATIENCE

import segstore
from segstore.cli.app import ListedCommand
from segstore.version import VERSION


def dockerfile() -> list[tuple[str, str]]:
    """The instructions with what follows each."""
    text = (REPOSITORY / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(line.split(None, 1)[0], line.split(None, 1)[1].strip()) for line in lines]


def said(instruction: str) -> str:
    """What the last instruction of this name says."""
    return [rest for name, rest in dockerfile() if name == instruction][-1]


def compose() -> dict[str, Any]:
    return yaml.safe_load((REPOSITORY / "compose.yaml").read_text(encoding="utf-8"))["services"]["segstore"]


COMMANDS = {"CMD of the Dockerfile": json.loads(said("CMD")), "command of compose.yaml": compose()["command"]}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_is_one_of_segstore(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEGSTORE_PATH", "/store")
    serve, *options = COMMANDS[name]
    context = ListedCommand(serve).itself().make_context(serve, options)
    assert context.params["listen"] == ("0.0.0.0:9092",)
    assert context.params["advertise"] == ("localhost:9092",)
    assert context.params["http"] == "0.0.0.0:9100"


@pytest.mark.kind("programs")
def test_the_command_serves_the_volume_and_closes_it_at_the_end(store_dir: Path) -> None:
    pytest.importorskip("prometheus_client")
    with socket.create_server(("127.0.0.1", 0)) as free:
        pages = f"127.0.0.1:{free.getsockname()[1]}"
    replaced = {"0.0.0.0:9092": "127.0.0.1:0", "0.0.0.0:9100": pages}
    serve = [replaced.get(word, word) for word in json.loads(said("CMD"))]
    look = json.loads(said("HEALTHCHECK").partition("CMD ")[2])
    look = [sys.executable, *(word.replace("127.0.0.1:9100", pages) for word in look[1:])]
    assert subprocess.run(look, capture_output=True, check=False).returncode == 1
    env = {**environment(), "SEGSTORE_PATH": str(store_dir)}
    with subprocess.Popen([*COMMAND, *serve], env=env, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert "listens on" in process.stdout.readline()
        assert subprocess.run(look, check=False).returncode == 0
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE)
    assert (store_dir / ".kafka_cleanshutdown").exists()
    with segstore.open(store_dir) as store:
        assert store.recovered == ()


def test_the_image_runs_as_a_user_without_rights_who_owns_the_volume() -> None:
    user, volume = said("USER"), said("VOLUME")
    (made,) = [rest for name, rest in dockerfile() if name == "RUN" and "useradd" in rest]
    assert re.search(rf"useradd .*\b{user}\b.* -o {user} .*{volume}$", made)
    assert said("ENV") == f"SEGSTORE_PATH={volume}"
    assert json.loads(said("ENTRYPOINT")) == ["segstore"]


def test_compose_publishes_the_port_on_this_machine_alone_and_keeps_the_volume() -> None:
    service = compose()
    assert service["ports"] == [f"127.0.0.1:{port}:{port}" for port in said("EXPOSE").split()]
    assert [place.partition(":")[2] for place in service["volumes"]] == [said("VOLUME")]
    assert (REPOSITORY / service["build"] / "Dockerfile").exists()


def sent() -> list[str]:
    """The files that the build gets: the last pattern of .dockerignore that fits a file decides."""
    lines = (REPOSITORY / ".dockerignore").read_text(encoding="utf-8").splitlines()
    patterns = [line for line in lines if line and not line.startswith("#")]
    for pattern in patterns:
        assert pattern[0] != "!" or (REPOSITORY / pattern[1:]).exists(), pattern
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=REPOSITORY, capture_output=True, text=True, check=True
    ).stdout.split("\n")
    return [path for path in tracked if path and kept(path, patterns)]


def kept(path: str, patterns: list[str]) -> bool:
    keeps = True
    for pattern in patterns:
        bare = pattern.removeprefix("!").replace("**/", "*")
        if path == bare or path.startswith(f"{bare}/") or fnmatch(path, bare):
            keeps = pattern.startswith("!")
    return keeps


@pytest.mark.kind("programs")
def test_the_build_gets_what_it_needs_and_no_more() -> None:
    files = sent()
    project = (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")
    named = re.findall(r'^(?:readme|license-files|py-modules) = \[?"([\w.]+)"', project, re.MULTILINE)
    assert {"setup.py", "pyproject.toml", "segstore/_native/build.py", "segstore/py.typed"} <= {*files}
    for name in named:
        assert {name, f"{name}.py"} & {*files}, name
    outside = {path for path in files if not path.startswith("segstore/")}
    assert len(outside) == 5


# --- the workflow of releases -----------------------------------------------------------------------


def workflow() -> dict[str, Any]:
    path = REPOSITORY / ".github" / "workflows" / "release.yml"
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def steps(job: str) -> list[dict[str, Any]]:
    return workflow()["jobs"][job]["steps"]


@pytest.mark.kind("programs")
@pytest.mark.parametrize(("tag", "status"), [(f"v{VERSION}", 0), ("v99.0.0", 1), (VERSION, 1)])
def test_a_tag_must_be_the_version(tag: str, status: int, tmp_path: Path) -> None:
    (command,) = [step["run"] for step in steps("build") if step.get("name") == "The tag is the version"]
    (tmp_path / "python").symlink_to(sys.executable)
    env = {**os.environ, "GITHUB_REF_NAME": tag, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    assert subprocess.run(["bash", "-ec", command], cwd=REPOSITORY, env=env, check=False).returncode == status


def test_what_is_built_is_published() -> None:
    commands = [step["run"] for step in steps("build") if "run" in step]
    made = [command for command in commands if command.startswith("make ")]
    assert made == ["make dist", "make wheels"], "make wheels removes the wheel for this machine alone"
    makefile = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
    assert all(re.search(rf"^{command.split()[1]}:", makefile, re.MULTILINE) for command in made)
    (kept,) = [step["with"] for step in steps("build") if "upload-artifact" in step.get("uses", "")]
    (fetched,) = [step["with"] for step in steps("publish") if "download-artifact" in step.get("uses", "")]
    assert (kept["name"], kept["path"]) == (fetched["name"], f"{fetched['path']}/segstore-*")
    job = workflow()["jobs"]["publish"]
    assert (job["needs"], job["permissions"]["id-token"]) == ("build", "write")
    assert [step for step in job["steps"] if step.get("uses", "").startswith("pypa/gh-action-pypi-publish@")]
    assert workflow()[True] == {"push": {"tags": ["v*"]}}, "yaml reads `on` as true"
