"""The code of tutorials and of the pages beside them works when it is followed from top to bottom."""

from __future__ import annotations

from pathlib import Path

import pages
import pytest
from places import REPOSITORY

import segstore

pytestmark = pytest.mark.kind("examples")

DOCS = REPOSITORY / "docs"
SPARK = DOCS / "tutorials" / "spark.md"  # see tests/spark/test_tutorial.py
PAGES = [*sorted(set((DOCS / "tutorials").glob("*.md")) - {SPARK}), DOCS / "migrating.md"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_page_works_when_it_is_followed(page: Path, tmp_path: Path) -> None:
    served = {"segstore.serve(store)": "segstore.serve(store, port=0)"}  # 9092 may be another process's
    assert pages.walk(page, tmp_path, pages.Setting(served)) > 0
    stores = [path.parent.parent for path in tmp_path.rglob(".segstore/format")]
    assert {str(store): segstore.check(store) for store in stores} == {str(store): [] for store in stores}


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("```python\nprint(1)\n```\n```text\n2\n```\n", "expected"),
        ("```bash\nfalse | true\n```\n", "block 0"),
        ("```sh\ntrue\n```\n", "kind 'sh'"),
        ("```python\n1 / 0\n```\n", "ZeroDivisionError"),
        ("```bash\nsegstore serve --store log --listen nowhere\n```\n", "block 0"),
        (
            "```bash\nsegstore serve --store log --listen localhost:0\nkill -9 $LASTING\n```\n",
            "ended with 137",
        ),
    ],
)
def test_a_page_that_is_wrong_is_seen(text: str, wrong: str, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(text)
    with pytest.raises(AssertionError, match=wrong):
        pages.walk(page, tmp_path)
