"""The files of operate/: a unit of systemd, settings, Prometheus' alerts and Grafana's dashboard name
commands, files and metrics that there are.
"""

from __future__ import annotations

import configparser
import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
import yaml
from places import REPOSITORY

import segstore
from segstore.cli.app import ListedCommand

pytest.importorskip("prometheus_client")
HERE = REPOSITORY / "operate"
METRIC = re.compile(r"\b(?:segstore|process)_[a-z_]+\b")


def alerts() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load((HERE / "alerts.yml").read_text(encoding="utf-8"))["groups"]
    return list(group["rules"])


def panels() -> list[dict[str, Any]]:
    return list(json.loads((HERE / "grafana.json").read_text(encoding="utf-8"))["panels"])


EXPRESSIONS = {each["alert"]: each["expr"] for each in alerts()} | {
    f"{panel['title']} {target['refId']}": target["expr"] for panel in panels() for target in panel["targets"]
}


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The metrics that a server shows, also those that have no sample yet."""
    with (
        segstore.open(tmp_path_factory.mktemp("operate") / "store") as store,
        segstore.serve(store, port=0, http="127.0.0.1:0") as server,
        urlopen(f"http://{server.http}/metrics") as answer,
    ):
        return set(re.findall(r"^# TYPE (\S+) ", answer.read().decode(), re.MULTILINE))


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_an_expression_names_metrics_that_there_are(name: str, names: set[str]) -> None:
    found = set(METRIC.findall(EXPRESSIONS[name]))
    assert found - names == set()
    assert found or EXPRESSIONS[name].startswith("up{")


def test_each_alert_is_explained() -> None:
    page = (REPOSITORY / "docs" / "operate.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (Segstore\w+) \|", page, re.MULTILINE)
    assert rows == [each["alert"] for each in alerts()]
    for each in alerts():
        assert each["labels"]["severity"] in ("page", "ticket")
        assert each["annotations"]["summary"]


@pytest.mark.kind("programs")
def test_promtool_has_nothing_to_say() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("there is no promtool")
    for words in (("rules", "alerts.yml"), ("config", "prometheus.yml")):
        done = subprocess.run([promtool, "check", *words], cwd=HERE, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


def test_panels_lie_side_by_side() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in panels():
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells
    assert len({panel["id"] for panel in panels()}) == len(panels())


def unit() -> configparser.ConfigParser:
    found = configparser.ConfigParser(interpolation=None)
    found.optionxform = str  # type: ignore[assignment,method-assign]
    found.read(HERE / "segstore.service")
    return found


@pytest.mark.parametrize("key", ["ExecStartPre", "ExecStart"])
def test_the_commands_of_the_unit_are_commands_of_segstore(key: str, tmp_path: Path) -> None:
    program, command, *words = shlex.split(unit()["Service"][key])
    assert program == "/opt/segstore/bin/segstore"
    settings = tmp_path / "server.properties"
    shutil.copy(HERE / "server.properties", settings)
    given = [word.replace("/etc/segstore/server.properties", str(settings)) for word in words]
    assert str(settings) in given
    ListedCommand(command).itself().make_context(command, given)


@pytest.mark.kind("programs")
def test_systemd_has_nothing_to_say_but_that_segstore_is_not_there(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("there is no systemd-analyze")
    text = (HERE / "segstore.service").read_text(encoding="utf-8")
    made = tmp_path / "segstore.service"
    made.write_text(text.replace("/opt/segstore/bin/segstore", "/bin/true"), encoding="utf-8")
    done = subprocess.run(["systemd-analyze", "verify", made], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_what_the_page_installs_is_where_the_unit_looks() -> None:
    page = (REPOSITORY / "docs" / "operate.md").read_text(encoding="utf-8")
    service = unit()["Service"]
    assert f"useradd --system --home-dir /var/lib/{service['StateDirectory']}" in page
    assert f"-o {service['User']} -g {service['Group']} -m 0640 operate/server.properties /etc/" in page
    assert service["ExecReload"] == "/bin/kill -HUP $MAINPID"
    assert service["Restart"] == "on-failure"


def test_every_file_is_named_on_the_page() -> None:
    page = (REPOSITORY / "docs" / "operate.md").read_text(encoding="utf-8")
    assert [path.name for path in HERE.iterdir() if f"`{path.name}`" not in page] == []
