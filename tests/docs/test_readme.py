"""The code of the README and of the site's home works when it is pasted, and what they name exists."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from pathlib import Path

import pages
import pytest
from places import REPOSITORY
from waiting import PATIENCE

import segstore

README = (REPOSITORY / "README.md").read_text(encoding="utf-8")
HOME = REPOSITORY / "docs" / "index.md"
LINKING = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "examples/README.md")
EXAMPLES = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
TARGETS = sorted(set(re.findall(r"^make (\w+)", README, re.MULTILINE)))


LOG, WIRE = EXAMPLES  # test_blocks.py runs them all
NAMES = {LOG: '"flights-log"', WIRE: '"served-log"'}


def pasted(example: str, store_dir: Path) -> str:
    """What an example prints in an interpreter of its own; the store it leaves is checked when the test is
    over.
    """
    code = example.replace(NAMES[example], repr(str(store_dir)))
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE)
    assert run.returncode == 0, run.stderr
    return run.stdout


@pytest.mark.kind("programs")
def test_example_works_when_pasted_and_pasted_again(store_dir: Path) -> None:
    assert pasted(LOG, store_dir).splitlines() == [
        "offsets range(1, 3)",
        "0 b'UA1545' b'on time' [('source', b'demo')]",
        "1 b'AA1' b'late' []",
        "2 b'DL7' b'cancelled' []",
    ]
    first, *records = pasted(LOG, store_dir).splitlines()
    assert first == "offsets range(4, 6)"
    assert [line.split()[0] for line in records] == [str(n) for n in range(6)]


@pytest.mark.kind("programs")
def test_example_of_a_client_works_when_pasted(store_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    monkeypatch.setitem(NAMES, example := WIRE.replace("9092", str(port)), NAMES[WIRE])
    assert pasted(example, store_dir) == "b'on time' b'UA1545'\n"
    with segstore.open(store_dir, "r") as store:
        assert store.topics()["flights"].partitions == 1


@pytest.mark.parametrize(("example", "most"), [(LOG, 10), (WIRE, 13)], ids=["log", "client"])
def test_an_example_is_short_and_uses_its_own_store(example: str, most: int) -> None:
    assert len([line for line in example.splitlines() if line]) <= most
    assert example.count(NAMES[example]) == 1


@pytest.mark.parametrize("target", TARGETS)
def test_make_target_is_there(target: str) -> None:
    assert re.search(rf"^{target}:", (REPOSITORY / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)


def test_the_first_screen_has_the_sentence_the_install_and_the_code() -> None:
    sentence, install = README.splitlines()[2], README.index("\n## Install\n")
    assert "Python" in sentence
    assert "Linux" in sentence
    promised = README[: README.index("## Install")]
    assert [word for word in ("Apache project", "beta", "power cut", "offset") if word not in promised] == []
    assert install < README.index("pip install .") < README.index("\n## Ten lines\n") < README.index(LOG)
    assert README[: README.index(LOG)].count("\n") < 35
    assert README.count("\n") < 175


def test_the_home_of_the_site_begins_as_the_readme() -> None:
    ours = pages.blocks(REPOSITORY / "README.md")
    assert pages.blocks(HOME) == ours[:4], "install, ten lines, what they print, and the shell's lines"
    home = HOME.read_text(encoding="utf-8")
    assert home.partition("\n## ")[0] == README.partition("\n## ")[0]
    local = README.replace("](docs/", "](").replace(" ([security](SECURITY.md))", "")
    for title in ("Install", "Ten lines", "Wheels and extras", "What you get", "Beside other stores"):
        assert section(home, title) == section(local, title)
    for title in ("When not to take it", "Status and limits"):
        listed = [line for line in section(local, title).splitlines() if line.startswith(("- ", "  "))]
        assert "\n".join(listed) in home


def section(text: str, title: str) -> str:
    return text.partition(f"\n## {title}\n")[2].partition("\n## ")[0].strip()


@pytest.mark.parametrize("page", LINKING)
def test_each_link_leads_somewhere(page: str) -> None:
    place = REPOSITORY / page
    links = re.findall(r"\]\((?!https?:)([^)#]*)(?:#([\w-]+))?\)", place.read_text(encoding="utf-8"))
    assert [to for to, _ in links if not (place.parent / to).exists()] == []
    named = [(place.parent / to if to else place, heading) for to, heading in links if heading]
    assert [(to.name, heading) for to, heading in named if heading not in headings(to)] == []


def headings(page: Path) -> set[str]:
    """The anchors of a page, as GitHub makes them."""
    found = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", text.lower()).strip().replace(" ", "-") for text in found}
