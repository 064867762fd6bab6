"""Starts Spark's JVM and a session on it, and makes a class archive, with which a JVM starts quickly.

On disk: a temporary directory while the JVM starts, and the archive. Spark's own launcher makes the JVM's
command. The JVM is started without Spark's shell scripts. If PySpark was installed by pip, it is started
without SPARK_HOME too: with SPARK_HOME, every Python worker would import PySpark from `pyspark.zip`, which
has no compiled modules and takes seconds. Threads: one thread at a time starts a session; the result is an
ordinary SparkSession.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import signal
import struct
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from segstore.errors import ConfigError, Needing, SegstoreError
from segstore.spark.java import Java, find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# --- archive -----------------------------------------------------------------------------------

# With an archive of Spark's loaded classes, a JVM starts in half the time. `prepare` makes the archive.
#
# On disk: these functions own `<cache>/segstore/spark-<key>.aot` or `.jsa`. `<cache>` is $XDG_CACHE_HOME or
# ~/.cache; `<key>` is a digest of the Java and the PySpark that have made the archive. If a JVM can't use the
# archive, it starts without it. A new archive replaces the old one by rename, so several processes may make
# and use it at the same time. Threads: any.

_AOT = 25
"""The first version of Java that can make an AOT cache, which contains linked classes, in one run. Older
versions make a CDS archive, which needs the JDK's own CDS archive too.
"""
_QUIET = ("-Xlog:disable", "-Xlog:all=error:stderr")
_SECONDS = 900
_TRAINING = """
import sys
from segstore.spark.class_archive_training import train
train(sys.argv[1], sys.argv[2])
"""


def archive_path(java: Java, jars: str) -> str:
    """Return the path that the archive for this Java and these jars has, or would have if it existed."""
    stamp = f"{java.home}\0{java.version}\0{jars}\0{os.stat(jars).st_mtime_ns}"
    key = hashlib.sha256(stamp.encode()).hexdigest()[:16]
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(cache, "segstore", f"spark-{key}.{'aot' if java.version >= _AOT else 'jsa'}")


def flags_to_use(java: Java, jars: str) -> list[str]:
    """Return the flags with which a JVM uses the archive; an empty list if there is no archive."""
    path = archive_path(java, jars)
    if not os.path.exists(path):
        return []
    name = "AOTCache" if java.version >= _AOT else "SharedArchiveFile"
    return [f"-XX:{name}={path}", *_QUIET]


def flags_to_make(java: Java, path: str) -> list[str]:
    """Return the flags with which a JVM writes the archive to `path` when it exits."""
    name = "AOTCacheOutput" if java.version >= _AOT else "ArchiveClassesAtExit"
    return [f"-XX:{name}={path}", *_QUIET]


def prepare() -> str:
    """Make or replace the class archive for the Java and the PySpark that `session` uses now. Return the
    archive's path.

    This takes one to two minutes, in a process of its own, and about 200 MB on disk. Raises SegstoreError,
    OSError.
    """

    java = find_java()
    path = archive_path(java, os.path.join(home(), "jars"))
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with tempfile.TemporaryDirectory(dir=os.path.dirname(path), prefix="making-") as work:
        made = os.path.join(work, os.path.basename(path))
        command = [sys.executable, "-c", _TRAINING, work, made]
        run = subprocess.run(command, env=environment(java), capture_output=True, timeout=_SECONDS)
        if run.returncode or not os.path.exists(made):
            said = run.stderr.decode(errors="replace")[-2000:]
            raise SegstoreError(f"no archive was made with {java.command}: {said}")
        os.replace(made, path)
    return path


# --- launch ------------------------------------------------------------

_LAUNCHER = ("org.apache.spark.launcher.Main", "org.apache.spark.deploy.SparkSubmit")
_VECTOR = "jdk.incubator.vector"
_QUICK = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
_LOCAL = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": str(max(2, os.cpu_count() or 2)),
}
# The pause between two checks whether the JVM has reported its port, in seconds.
_POLL = 0.02
_MOST_SECRET = 1 << 16
_starting = threading.Lock()
_processes: list[subprocess.Popen[bytes]] = []
"""The JVMs that this module has started. A JVM exits when its standard input is closed; this list keeps the
standard inputs open.
"""


class Gateway(NamedTuple):
    """The port and the secret with which PySpark connects to the JVM."""

    port: int
    secret: str


def start(master: str, conf: Mapping[str, Any], quick: bool, archive: str = "") -> SparkSession:
    """Return the active SparkSession, or a new one, for which a JVM is started if PySpark has none.
    `segstore.spark.session` calls this, and describes the other arguments. If `archive` is not empty, it is
    the path to which the new JVM writes a class archive when it exits.
    """
    settings = {spark_name(name): _text(value) for name, value in conf.items()}
    defaults = _LOCAL if master.startswith("local") else {}
    with Needing("pyspark", "a session of Spark"):
        from pyspark import SparkContext
        from pyspark.sql import SparkSession
    with _starting:
        # If there is a session, it gets only the settings of this call, not the defaults of `_LOCAL`.
        there = SparkSession.getActiveSession() is not None
        settings = settings if there else defaults | settings
        builder = SparkSession.builder.master(master)
        for name, value in settings.items():
            builder = builder.config(name, value)
        there_is_one = there or SparkContext._gateway is not None or "PYSPARK_GATEWAY_PORT" in os.environ
        settings["spark.master"] = master
        with _python(), _set(**({} if there_is_one else _launched(settings, quick, archive))):
            return builder.getOrCreate()


def spark_name(name: str) -> str:
    """Return the name of a Spark setting: spark.sql.x for "spark_sql_x" and for "spark.sql.x". Raises
    ConfigError if the name does not begin with "spark.".
    """
    name = name if "." in name else name.replace("_", ".")
    if not name.startswith("spark."):
        raise ConfigError(f"{name!r} is no Spark setting: their names begin with spark.")
    return name


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


@contextmanager
def _set(**values: str) -> Iterator[None]:
    """Set environment variables during the `with` block, in which PySpark reads them."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def _python() -> Iterator[None]:
    """Set PYSPARK_PYTHON to this interpreter during the `with` block, unless the variable is set already.
    Without it PySpark would run the python3 on PATH.
    """
    with _set(PYSPARK_PYTHON=os.environ.get("PYSPARK_PYTHON", _interpreter())):
        yield


def _interpreter() -> str:
    """Return this interpreter's path. If a shell would need quotes around the path, return only the file's
    name; `environment` adds its directory to PATH.
    """
    # `Utils.checkCommandAvailable` of Spark checks the path in a shell, without quotes. If the check fails,
    # Spark has no Python data sources.
    return os.path.basename(sys.executable) if _must_be_quoted(sys.executable) else sys.executable


def _must_be_quoted(path: str) -> bool:
    return shlex.quote(path) != path


def _launched(settings: Mapping[str, str], quick: bool, archive: str) -> dict[str, str]:
    """Start a JVM, and return the environment variables with which PySpark connects to it."""
    java = find_java()
    flags = list(_QUICK if quick else ())
    flags += flags_to_make(java, archive) if archive else flags_to_use(java, os.path.join(home(), "jars"))
    gateway = launch(command(java, settings, flags), environment(java))
    return {"PYSPARK_GATEWAY_PORT": str(gateway.port), "PYSPARK_GATEWAY_SECRET": gateway.secret}


def home() -> str:
    """Return Spark's home directory, which contains the directory `jars`."""
    from pyspark.find_spark_home import _find_spark_home

    found: str = _find_spark_home()
    return os.path.abspath(found)


def running() -> tuple[subprocess.Popen[bytes], ...]:
    """Return the processes of the JVMs that this module has started."""
    return tuple(_processes)


def command(java: Java, settings: Mapping[str, str], flags: Sequence[str] = ()) -> list[str]:
    """Call Spark's launcher with these settings, and return the command of the JVM that the launcher makes.
    `flags` are added as the JVM's first flags.

    If the launcher fails, raises SegstoreError, which has the launcher's message.
    """
    conf = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    submit = os.environ.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell")
    asked = [java.command, "-Xmx128m", "-cp", os.path.join(home(), "jars", "*"), *_LAUNCHER, *conf]
    asked += shlex.split(submit)
    run = subprocess.run(asked, env=_with_home(java), capture_output=True)
    # The launcher prints messages, and then the words of the command. A zero byte follows each word.
    words = [word.decode() for word in run.stdout.split(b"\0\n", 1)[-1].split(b"\0")[:-1]]
    if run.returncode or not words:
        said = run.stderr.decode(errors="replace").strip()
        raise SegstoreError(f"Spark's launcher failed with {java.command}: {said}")
    lacking = f"--add-modules={_VECTOR}" if java.lacks(_VECTOR) else None
    return [words[0], *flags, *(word for word in words[1:] if word != lacking)]


def _with_home(java: Java) -> dict[str, str]:
    """Return the environment for Spark's launcher, as Spark's script `spark-class` sets it."""
    jars = os.listdir(os.path.join(home(), "jars"))
    scala = next((m[1] for m in map(re.compile(r"spark-launcher_([\d.]+)-").match, jars) if m), "2.13")
    return {**os.environ, "JAVA_HOME": java.home, "SPARK_HOME": home(), "SPARK_SCALA_VERSION": scala}


def environment(java: Java) -> dict[str, str]:
    """Return the environment for the JVM. Spark's Python workers inherit it."""
    found = {**os.environ, "JAVA_HOME": java.home, "SPARK_CONNECT_MODE": "0"}
    # With the same hash seed, all Python workers iterate over a set of strings in the same order.
    found["PYTHONHASHSEED"] = os.environ.get("PYTHONHASHSEED", "0")
    if _must_be_quoted(sys.executable):
        found["PATH"] = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)])
    ours = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    if ours not in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")):
        found["PYTHONPATH"] = os.pathsep.join(filter(None, (ours, os.environ.get("PYTHONPATH"))))
    return found


def launch(words: list[str], env: Mapping[str, str]) -> Gateway:
    """Start the JVM, wait until it has reported its port and secret, and return these. Raises SegstoreError
    if the JVM exits before that.

    If an exception ends the wait, the JVM is killed. A JVM whose port nobody knows would run for ever.
    """
    with tempfile.TemporaryDirectory(prefix="segstore-spark-") as directory:
        info_path = os.path.join(directory, "gateway")
        process = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            env={**env, "_PYSPARK_DRIVER_CONN_INFO_PATH": info_path},
            preexec_fn=_not_interrupted,
        )
        try:
            while not os.path.exists(info_path):
                if process.poll() is not None:
                    raise SegstoreError(f"the JVM ended with status {process.returncode}: {' '.join(words)}")
                time.sleep(_POLL)
        except BaseException:
            process.kill()
            process.communicate()
            raise
        _processes.append(process)
        with open(info_path, "rb") as file:
            port, size = struct.unpack(">ii", file.read(8))
            return Gateway(port, file.read(min(size, _MOST_SECRET)).decode())


def _not_interrupted() -> None:
    """Make the JVM ignore Ctrl-C, because the application gets the signal too, and stops Spark."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
