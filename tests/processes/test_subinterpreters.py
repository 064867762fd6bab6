"""An import in a subinterpreter raises a named error, and the main interpreter is not affected."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.kind("programs")

SCRIPT = """
import sys
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters

first, path = sys.argv[1], sys.argv[2]
if first == "the main one":
    import segstore
    store = segstore.open(path)
    store.create_topic("t")
    store.partition("t").append(b"before")

IN_THE_OTHER = '''
import sys
sys.path[:] = %r
for name in ("segstore", "segstore.files", "segstore._native"):
    try:
        __import__(name)
        print("imported", name)
    except ImportError as error:
        assert "can't be imported in subinterpreter" in str(error), error
assert "numpy" not in sys.modules and "cramjam" not in sys.modules
print("refused", flush=True)
''' % (sys.path,)
for _ in range(3):
    other = interpreters.create()
    failed = interpreters.run_string(other, IN_THE_OTHER)
    assert failed is None, failed
    interpreters.destroy(other)

import segstore
if first == "the other":
    store = segstore.open(path)
    store.create_topic("t")
    store.partition("t").append(b"before")
store.partition("t").append(b"after", key=b"k")
print([record.value for record in store.partition("t").read(0)])
store.close()
"""


@pytest.mark.parametrize("first", ["the main one", "the other"])
def test_a_subinterpreter_is_refused(store_dir: Path, first: str) -> None:
    pytest.importorskip("_interpreters" if sys.version_info >= (3, 13) else "_xxsubinterpreters")
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", SCRIPT, first, str(store_dir)],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "refused\n" * 3 + "[b'before', b'after']\n"
