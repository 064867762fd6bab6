"""Promise: the first use of a name brings the engine, and the first columns bring NumPy, whoever asks, and
whatever comes in between.
"""

from __future__ import annotations

import pickle
import textwrap
from pathlib import Path

import pytest
from fresh_interpreters import python

import segstore
from segstore.storage.store.sweeper import Swept

pytestmark = pytest.mark.kind("programs")

ENGINE = """
with segstore.open(sys.argv[1]) as store:
    store.create_topic("t")
    store.partition("t").append(b"1")
    assert [each.value for each in store.partition("t").read(0)] == [b"1"]
"""


# --- first use ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "flags", [("-W", "error"), ("-OO",), ("-B",), ("-X", "dev", "-W", "error")], ids=" ".join
)
def test_all_names_by_whatever_flags(flags: tuple[str, ...], store_dir: Path) -> None:
    code = """
        import segstore
        assert set(segstore.__all__) <= set(dir(segstore))
        from segstore import *
        assert all(globals()[name] is getattr(segstore, name) for name in segstore.__all__)
        assert not hasattr(segstore, "Absent")
    """
    assert python(textwrap.dedent(code) + ENGINE, store_dir, flags=flags) == ""


def test_types_can_be_looked_up() -> None:
    code = "import segstore, typing\nprint(typing.get_type_hints(segstore.open)['return'] is segstore.Store)"
    assert python(code) == "True"


def test_rooms_of_the_engine_need_no_import_of_their_own() -> None:
    code = "import segstore\nprint(segstore.files.Files.__name__, segstore.records.CODECS[1])"
    assert python(code) == "Files gzip"


PICKLED = {
    "a record": segstore.Record(1, 2, b"k", b"v", ()),
    "a tuple of clients": segstore.TopicPartition("t", 0),
    "an answer": Swept("t", 0),
    "an error": segstore.OffsetOutOfRangeError(1, 2, 3),
    "a class": segstore.Producer,
    "a function": segstore.open,
}


@pytest.mark.parametrize("name", PICKLED)
def test_a_fresh_process_takes_what_was_pickled(name: str) -> None:
    code = f"import pickle\nprint(repr(pickle.loads({pickle.dumps(PICKLED[name])!r})).partition(' at ')[0])"
    assert python(code) == repr(PICKLED[name]).partition(" at ")[0]


@pytest.mark.parametrize(
    ("of", "asked"),
    [
        ("segstore", ("open", "Store", "Producer", "Consumer", "Record", "check")),
        ("segstore.arrays.np", ("empty", "ndarray", "dtype", "linalg", "int64", "frombuffer")),
    ],
)
def test_many_threads_ask_first(of: str, asked: tuple[str, ...]) -> None:
    code = f"""
        import threading, segstore.arrays
        names, found = {asked!r} * 4, []
        begin = threading.Barrier(len(names))
        def ask(name):
            begin.wait()
            found.append(getattr({of}, name) is getattr({of}, name))
        threads = [threading.Thread(target=ask, args=[name]) for name in names]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        print(len(found), all(found))
    """
    assert python(code) == "24 True"


def test_a_child_of_a_fork_asks_first(store_dir: Path) -> None:
    code = """
        import os, segstore
        child = os.fork()
        if not child:
            with segstore.open(sys.argv[1]):
                os._exit(7)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), "numpy" in sys.modules)
    """
    assert python(code, store_dir) == "7 False"


@pytest.mark.parametrize(
    ("module", "asked"),
    [("numpy.exceptions", "np.empty"), ("cramjam", "segstore.open")],
    ids=["NumPy", "engine"],
)
def test_a_fork_waits_for_the_import_of_another_thread(module: str, asked: str) -> None:
    """Else the child has half a module, and waits for the lock of a thread that it does not have."""
    code = f"""
import os, signal, sys, threading, segstore
from segstore.arrays import np
midst, forked = threading.Event(), threading.Event()
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r} and self in sys.meta_path:
            sys.meta_path.remove(self)
            midst.set()
            forked.wait(0.5)  # a fork that does not wait for the import comes at once
sys.meta_path.insert(0, Finder())
other = threading.Thread(target=lambda: {asked})
other.start()
midst.wait()
child = os.fork()
if not child:
    signal.alarm(20)
    {asked}
    os._exit(7)
forked.set()
other.join()
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), {asked} is {asked})
"""
    assert python(code) == "7 True"


def test_a_module_forks_while_it_is_imported(tmp_path: Path) -> None:
    (tmp_path / "forks.py").write_text("import os\nchild = os.fork()\nif not child: os._exit(7)")
    code = """
import os
sys.path.insert(0, sys.argv[1])
from segstore.first_use import import_apart
print(os.waitstatus_to_exitcode(os.waitpid(import_apart("forks").child, 0)[1]))
"""
    assert python(code, tmp_path) == "7"


def test_a_spawned_process_calls_a_public_function(store_dir: Path) -> None:
    code = """
        import multiprocessing, segstore
        segstore.open(sys.argv[1]).close()
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            print(pool.apply(segstore.check, [sys.argv[1]]))
    """
    assert python(code, store_dir) == "[]"


def test_another_directory_is_entered_first(store_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "numpy.py").write_text("raise SystemExit('the wrong one')")
    code = "import os, segstore\nos.chdir(sys.argv[2])\n" + ENGINE
    assert python(code, store_dir, tmp_path) == ""


# --- in the midst of it ---------------------------------------------------------------------------

MIDST = """
import os, signal
class Finder:
    '''Sends a signal where the engine's import comes to a module.'''
    def find_spec(self, name, path=None, target=None):
        if name == sys.argv[2] and self in sys.meta_path:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), int(sys.argv[3]))
sys.meta_path.insert(0, Finder())
"""


MODULES = ["cramjam", "segstore._native", "segstore.storage.store.writer"]
ASKING = ["segstore.open", "from segstore import open", "from segstore import *"]
NUMPY = "from segstore.arrays import np; np.empty"


@pytest.mark.parametrize(
    ("asking", "module"),
    [*((each, module) for module in MODULES for each in ASKING), (NUMPY, "numpy.exceptions")],
)
def test_ctrl_c_in_the_midst_and_the_next_use_works(asking: str, module: str, store_dir: Path) -> None:
    code = f"""
import segstore
signal.signal(signal.SIGINT, signal.default_int_handler)
try:
    {asking}
    print("not interrupted")
except KeyboardInterrupt:
    pass
"""
    assert python(MIDST + code + ENGINE, store_dir, module, 2) == ""


def test_ctrl_c_ends_the_wait_when_the_import_has_ended() -> None:
    """Else the interpreter might end in the midst of it, and with another exit status."""
    code = """
import segstore
signal.signal(signal.SIGINT, signal.default_int_handler)
try:
    segstore.open
except KeyboardInterrupt:
    print(sys.modules["segstore.coordinator.open"].open is segstore.open)
"""
    assert python(MIDST + code, "", "cramjam", 2) == "True"


@pytest.mark.parametrize(
    ("module", "asked"),
    [("segstore.storage.store.writer", "segstore.open"), ("numpy.exceptions", "np.empty")],
)
def test_a_signal_s_handler_asks_in_the_midst(module: str, asked: str, store_dir: Path) -> None:
    code = f"""
import segstore
from segstore.arrays import np
found = []
signal.signal(signal.SIGUSR1, lambda *_: found.append({asked}))
first = {asked}
assert found == [first]
"""
    assert python(MIDST + code + ENGINE, store_dir, module, 10) == ""


def test_a_read_that_ctrl_c_ends_while_numpy_is_imported_can_be_repeated(store_dir: Path) -> None:
    code = """
import segstore
signal.signal(signal.SIGINT, signal.default_int_handler)
store = segstore.open(sys.argv[1])
store.create_topic("t")
log = store.partition("t")
log.append(b"1")
try:
    log.read(0)
    print("not interrupted")
except KeyboardInterrupt:
    print([each.value for each in log.read(0)], log.append(b"2"))
store.close()
"""
    assert python(MIDST + code, store_dir, "numpy.exceptions", 2) == "[b'1'] 1"


def test_a_finalizer_that_appends_is_not_called_while_numpy_is_imported(store_dir: Path) -> None:
    """The collector would call it in the import's thread, where it would wait for the lock of a thread that
    waits for the import.
    """
    code = """
import gc, segstore
called = []
class Cycle:
    def __init__(self):
        self.itself = self
    def __del__(self):
        called.append("numpy.exceptions" in sys.modules)
gc.set_threshold(1)
Cycle()
from segstore.arrays import np
class Finder:
    def find_spec(self, name, path=None, target=None):
        assert not gc.isenabled() or not name.startswith("numpy"), name
sys.meta_path.insert(0, Finder())
np.empty
print(gc.isenabled())
"""
    assert python(code, store_dir) == "True"


def test_a_module_asks_that_is_needed_itself_and_is_being_imported(store_dir: Path, tmp_path: Path) -> None:
    """The engine imports what is being imported by the one that asks: nobody waits for the other."""
    (tmp_path / "difflib.py").write_text("import segstore\nsegstore.open\ndef get_close_matches(): ...")
    code = "sys.path.insert(0, sys.argv[2])\nimport difflib, segstore" + ENGINE
    assert python(code, store_dir, tmp_path) == ""


def test_the_last_of_the_process_asks_first() -> None:
    """A function that is called when all other threads have ended, and no thread can be started any more."""
    code = "import atexit, segstore\natexit.register(lambda: print(segstore.open.__name__))"
    assert python(code) == "open"
