"""No line tells to install segstore from an index: it is on none, and who registers the name there would get
the machines of those who follow such a line.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from places import REPOSITORY

from segstore.demo.flights import PACKAGES
from segstore.errors import MissingPackageError, Needing, pip_install

FROM_AN_INDEX = re.compile(
    r"pip3? install (?:-\S+ )*(?:[\w.=<>'-]+ )*'?segstore(?![\w/*-])"  # not ./segstore, nor a wheel
    r"|(?<![./\w])segstore\[(?:arrow|bench|demo|dev|metrics|spark|wire)\b"
)
READ = ("*.md", "docs/**/*.md", "examples/*", "notebooks/*.ipynb", "segstore/**/*.py", "tools/*", "Makefile")

PROJECT = (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")


def read() -> list[Path]:
    return [path for pattern in READ for path in REPOSITORY.glob(pattern) if path.is_file()]


def test_nothing_is_installed_from_an_index_that_lacks_it() -> None:
    texts = {path: path.read_text(encoding="utf-8") for path in read()}
    assert len(texts) > 500
    found = [
        f"{path.relative_to(REPOSITORY)}: {line.strip()}"
        for path, text in texts.items()
        if path.name != "CHANGELOG.md"
        for line in text.splitlines()
        if FROM_AN_INDEX.search(line)
    ]
    assert found == []


@pytest.mark.parametrize(
    ("line", "seen"),
    [
        ("pip install segstore", True),
        ("pip install -q segstore", True),
        ("pip install segstore fastapi", True),
        ("pip install fastapi segstore", True),
        ("pip install 'segstore[arrow]'", True),
        ("needs the extra segstore[wire]", True),
        ("pip install .", False),
        ("pip install '.[arrow]'", False),
        ("pip install segstore-*-manylinux_2_17_x86_64.whl", False),
        ("pip install pyarrow", False),
        ("pip install ./segstore", False),
    ],
)
def test_which_lines_are_seen(line: str, seen: bool) -> None:
    assert bool(FROM_AN_INDEX.search(line)) == seen


def test_an_error_names_the_package_and_how_it_is_installed() -> None:
    with pytest.raises(MissingPackageError) as caught, Needing("no-such-package", "a table"):
        import no_such_package  # noqa: F401
    assert str(caught.value) == (
        "a table needs no-such-package, which is not installed: pip install no-such-package"
    )
    assert caught.value.name == "no_such_package"


def test_another_package_s_error_is_its_own() -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such_package"), Needing("pyarrow", "a table"):
        import no_such_package  # noqa: F401


def test_the_packages_of_the_demo_are_those_of_its_extra() -> None:
    (extra,) = re.findall(r"^demo = \[(.*)\]$", PROJECT, re.MULTILINE)
    (wire,) = re.findall(r'^wire = \["([\w-]+)', PROJECT, re.MULTILINE)
    named = {wire if name == "segstore" else name for name in re.findall(r'"([\w-]+)', extra)}
    assert named == set(PACKAGES)
    tool = (REPOSITORY / "tools" / "image.py").read_text(encoding="utf-8")
    assert f"PACKAGES = {PACKAGES}".replace("'", '"') in tool
    assert pip_install(*PACKAGES) == f"pip install {' '.join(PACKAGES)}"
