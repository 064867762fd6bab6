"""Builds and runs the programs of tests/server/programs that are not Python's. What their registries' own
clients (Maven, npm, Go) fetch, and what compilers make, lies in .cache/programs of the repository.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import kafka_tools
from places import REPOSITORY, TESTS
from scenario import Told, parse
from waiting import PATIENCE

PROGRAMS = TESTS / "server" / "programs"
CACHE = REPOSITORY / ".cache" / "programs"


def missing(*tools: str) -> str | None:
    """Return the reason why a program can't run here; None where it can."""
    lacking = [tool for tool in tools if shutil.which(tool) is None]
    return f"the program needs {' and '.join(lacking)}" if lacking else None


def java(*arguments: str) -> Told:
    """Run `Scenario` with Java's clients."""
    classes = compiled("java", kafka_tools.classpath())
    options = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    path = f"{classes}{os.pathsep}{kafka_tools.classpath()}"
    return parse(_run(["java", *options, "-cp", path, "Scenario", *arguments]))


def compiled(name: str, classpath: str) -> Path:
    """Return the folder of the classes of the Java program in the folder `name`."""
    sources = [str(file) for file in sorted((PROGRAMS / name).glob("*.java"))]
    command = ["javac", "-nowarn", "-cp", classpath]
    return _built(name, lambda target: _run([*command, "-d", str(target), *sources]))


def java_lines(name: str, program: str, *arguments: str) -> list[str]:
    """Return the lines that the Java program in the folder `name` prints."""
    path = f"{compiled(name, kafka_tools.classpath())}{os.pathsep}{kafka_tools.classpath()}"
    options = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    return _run(["java", *options, "-cp", path, program, *arguments]).splitlines()


def go(name: str, *arguments: str) -> Told:
    """Run the Go program in the folder `name`."""
    return parse("\n".join(go_lines(name, *arguments)))


def go_lines(name: str, *arguments: str) -> list[str]:
    """Return the lines that the Go program in the folder `name` prints."""
    source = PROGRAMS / name
    built = _built(name, lambda target: _run(["go", "build", "-o", str(target), "."], cwd=source))
    return _run([str(built / name), *arguments]).splitlines()


def node(name: str, *arguments: str) -> Told:
    """Run the Node program in the folder `name`."""

    def install(target: Path) -> None:
        shutil.copytree(PROGRAMS / name, target, dirs_exist_ok=True)
        _run(["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"], cwd=target)

    return parse(_run(["node", str(_built(name, install) / "scenario.js"), *arguments]))


def _built(name: str, build: Callable[[Path], object]) -> Path:
    """Return the folder with what `build` made of a program's present sources."""
    digest = hashlib.sha256()
    for file in sorted((PROGRAMS / name).iterdir()):
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return kept(f"{name}-{digest.hexdigest()[:16]}", build)


def kept(name: str, build: Callable[[Path], object]) -> Path:
    """Return the folder `name` of the cache, which `build` fills the first time."""
    target = CACHE / name
    with _locked():
        if not target.is_dir():
            fresh = CACHE / f"{name}.new"
            shutil.rmtree(fresh, ignore_errors=True)
            fresh.mkdir()
            build(fresh)
            fresh.rename(target)
    return target


@contextmanager
def _locked() -> Iterator[None]:
    """The processes of a test run share the cache."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with open(CACHE / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _run(command: Sequence[str], cwd: Path | None = None) -> str:
    """Return what a program prints; fails with all of it where the program does."""
    done = subprocess.run(
        command, cwd=cwd, capture_output=True, encoding="utf-8", errors="replace",
        stdin=subprocess.DEVNULL, timeout=4 * PATIENCE,
    )  # fmt: skip
    assert done.returncode == 0, f"{command[0]} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done.stdout
