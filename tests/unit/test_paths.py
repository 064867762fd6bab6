"""segstore.config.paths: relative paths become absolute ones of the same file, and stay so."""

from __future__ import annotations

import ast
import os
from pathlib import Path
from typing import Any

import pytest
from places import REPOSITORY

from segstore.config import arguments
from segstore.config.paths import settled
from segstore.errors import ConfigError, InvalidArgumentError, InvalidTypeError, StorageError
from segstore.server.security.settings import SecurityConfig
from segstore.wire.settings import WireConfig

# Below /here, which has a directory `in`, and a link `link` to /other/in: the path that is given, and what
# becomes of it.
PATHS = {
    "a name": ("x", "{here}/x"),
    "a slash at the end": ("x/", "{here}/x"),
    "a dot in front": ("./x", "{here}/x"),
    "slashes and dots": ("in//./x", "{here}/in/x"),
    "the directory itself": (".", "{here}"),
    "its parent": ("..", "{top}"),
    "beside it": ("../x", "{top}/x"),
    "above the root": ("../" * 40 + "x", "/x"),
    "a parent after a name": ("in/../x", "{here}/in/../x"),
    "a parent after a link": ("link/../x", "{here}/link/../x"),
    "a link": ("link/x", "{here}/link/x"),
    "a home": ("~/x", "{here}/~/x"),
    "two dots in names": ("..x/x..", "{here}/..x/x.."),
    "absolute": ("/x/y", "/x/y"),
    "absolute, a slash at the end": ("/x/y/", "/x/y"),
    "absolute, a parent": ("/x/../y", "/x/../y"),
    "the root": ("/", "/"),
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "here"
    for made in (path / "in", tmp_path / "other" / "in"):
        made.mkdir(parents=True)
    (path / "link").symlink_to(tmp_path / "other" / "in")
    monkeypatch.chdir(path)
    return path


@pytest.mark.parametrize("name", PATHS)
def test_a_path_is_made_absolute_once(here: Path, name: str) -> None:
    given, expected = PATHS[name]
    found = settled(given)
    assert found == settled(found) == expected.format(here=here, top=here.parent)


@pytest.mark.parametrize("name", PATHS)
def test_it_leads_to_the_same_place(here: Path, name: str) -> None:
    given, _ = PATHS[name]
    assert os.path.realpath(settled(given)) == os.path.realpath(given)


GIVEN: dict[str, Any] = {"str": "in", "bytes": b"in", "a Path": Path("in"), "no text": os.fsencode("in")}


@pytest.mark.parametrize("kind", GIVEN)
def test_a_path_may_be_given_in_several_types(here: Path, kind: str) -> None:
    assert arguments.path("path", GIVEN[kind]) == str(here / "in")


def test_bytes_that_are_no_text_are_kept(here: Path) -> None:
    assert os.fsencode(arguments.path("path", b"\xff")) == bytes(here) + b"/\xff"


NO_PATHS: dict[str, tuple[Any, type[Exception]]] = {
    "empty": ("", InvalidArgumentError),
    "empty bytes": (b"", InvalidArgumentError),
    "a null character": ("a\0b", InvalidArgumentError),
    "a number": (3, InvalidTypeError),
}


@pytest.mark.parametrize("name", NO_PATHS)
def test_what_is_no_path_stays_refused(name: str) -> None:
    given, error = NO_PATHS[name]
    with pytest.raises(error, match="path"):
        arguments.path("path", given)


def test_a_deleted_directory_is_told_with_the_path(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = here / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(StorageError, match=r"current directory can't be told.*No such file.*'x'"):
        settled("x")
    assert settled("/x") == "/x"


# Of each class of settings: those that name a file.
LOCATIONS: dict[str, tuple[type, tuple[str, ...]]] = {
    "client": (
        WireConfig,
        (
            *("ssl.ca.location", "ssl.truststore.location"),
            *("ssl.certificate.location", "ssl.key.location"),
        ),
    ),
    "server": (SecurityConfig, ("ssl_keystore_location", "ssl_truststore_location", "sasl_users")),
}


@pytest.mark.parametrize("side", LOCATIONS)
def test_each_file_of_settings_has_an_absolute_path(here: Path, side: str) -> None:
    kind, names = LOCATIONS[side]
    needed = {"ssl.key.location": {"ssl.certificate.location": "c"}}
    for name in names:
        made = kind.parse({name: "in/x", **needed.get(name, {})})  # type: ignore[attr-defined]
        assert getattr(made, name.replace(".", "_")) == str(here / "in/x"), name
        with pytest.raises(ConfigError, match=name):
            kind.parse({name: ""})  # type: ignore[attr-defined]


def test_every_setting_whose_name_says_a_place_is_one_of_these() -> None:
    for kind, names in LOCATIONS.values():
        said = {row.name for row in kind.describe() if "path" in row.allowed}  # type: ignore[attr-defined]
        assert said == {*names}


# --- one place ------------------------------------------------------------------------------------

CONVERSIONS = {"os.fspath", "os.fsdecode", "os.getcwd", "os.path.abspath", "os.path.realpath"}
EXCEPT = {
    "files": "paths that callers have settled",
    "index": "paths that callers have settled",
    "config": "here they are settled",
    "cli": "a command ends before its directory changes",
    "demo": "a command",
    "bench": "a command",
    "spark.java": "Java's directory, which is used at once",
    "spark.launch": "Java's directory, which is used at once",
}
KNOWN = {
    ("replication.metadata.voters", "os.path.abspath"): "compares settled paths that can't be read",
    ("server.security.settings", "os.fspath"): "is it empty?",
    ("server.security.settings", "os.fsdecode"): "settled in the same line",
    ("storage.full_disk", "os.fsdecode"): "for a message",
    ("spark.job_tasks", "os.fsdecode"): "a place of Spark's",
}


def conversions(tree: ast.AST) -> set[str]:
    """Return the calls by which a module takes a path from outside by itself."""
    return {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)} & CONVERSIONS


def test_paths_from_outside_are_taken_in_one_place() -> None:
    """What takes a path calls `arguments.path` or has a setting of the kind `location`."""
    package = REPOSITORY / "segstore"
    found = set()
    for path in package.rglob("*.py"):
        module = ".".join(path.relative_to(package).with_suffix("").parts)
        if not any(module == each or module.startswith(f"{each}.") for each in EXCEPT):
            found |= {(module, call) for call in conversions(ast.parse(path.read_text(encoding="utf-8")))}
    assert found == {*KNOWN}
