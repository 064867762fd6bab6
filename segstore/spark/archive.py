"""An archive of Spark's loaded classes, with which a JVM starts in half the time. Made on demand.

Owns `<cache>/segstore/spark-<key>.aot` or `.jsa`, where the cache is $XDG_CACHE_HOME or ~/.cache, and the key
stands for the Java and the PySpark that it was made with. The JVM looks whether it fits, and starts without
it where it does not. It is replaced by rename, so that any number of processes may make and use it.
Threads: any; functions without state.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile

from segstore.errors import SegstoreError
from segstore.spark.java import Java, find_java

_AOT = 25
"""From this version of Java on the archive holds linked classes, and needs no archive of the JDK's own."""
_QUIET = ("-Xlog:disable", "-Xlog:all=error:stderr")
_SECONDS = 900
_TRAINING = """
import sys
from segstore.spark.class_archive_training import train
train(sys.argv[1], sys.argv[2])
"""


def archive_path(java: Java, jars: str) -> str:
    """Where the archive for this Java and these jars is, if it was made."""
    stamp = f"{java.home}\0{java.version}\0{jars}\0{os.stat(jars).st_mtime_ns}"
    key = hashlib.sha256(stamp.encode()).hexdigest()[:16]
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(cache, "segstore", f"spark-{key}.{'aot' if java.version >= _AOT else 'jsa'}")


def flags_to_use(java: Java, jars: str) -> list[str]:
    """Of a JVM; none where there is no archive."""
    path = archive_path(java, jars)
    if not os.path.exists(path):
        return []
    name = "AOTCache" if java.version >= _AOT else "SharedArchiveFile"
    return [f"-XX:{name}={path}", *_QUIET]


def flags_to_make(java: Java, path: str) -> list[str]:
    """Of a JVM that writes the archive when it ends."""
    name = "AOTCacheOutput" if java.version >= _AOT else "ArchiveClassesAtExit"
    return [f"-XX:{name}={path}", *_QUIET]


def prepare() -> str:
    """Make the archive for the Java and the PySpark that `session` takes now, or make it anew: its path.

    One to two minutes, in a process of its own; about 200 MB. SegstoreError, OSError.
    """
    from segstore.spark.launch import environment, home

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
