"""Promise: `import segstore` brings the errors only. The first use of a name brings the engine, and the first
columns bring NumPy, whoever asks, and whatever comes in between. An open store needs no further module but
NumPy, and that for columns only.
"""

from __future__ import annotations

import pickle
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from places import REPOSITORY

import segstore
from segstore.storage.store.sweeper import Swept

PACKAGES = Path(np.__file__).parents[1]
EAGER = {
    "segstore",
    "segstore.errors",
    "segstore.first_use",
    "segstore.main_interpreter",
    "segstore.threads",
    "segstore.version",
}
"""The modules of `import segstore`: each program and each of Spark's workers waits for every one of them."""

ENGINE_SIZE = 198
"""The most modules that an open store needs."""

HEAVY = {
    *("numpy", "cramjam", "crc32c", "_cffi_backend", "pyarrow", "email", "importlib.metadata", "pathlib"),
    *("logging", "inspect", "dataclasses", "json", "hashlib", "uuid", "asyncio", "concurrent.futures"),
}
ENGINE = """
with segstore.open(sys.argv[1]) as store:
    store.create_topic("t")
    store.partition("t").append(b"1")
    assert [each.value for each in store.partition("t").read(0)] == [b"1"]
"""


def python(code: str, *arguments: object, flags: tuple[str, ...] = ()) -> str:
    """What a fresh interpreter prints, without `site`: that imports modules too, by what is installed."""
    begin = f"import sys; sys.path[:0] = [{str(REPOSITORY)!r}, {str(PACKAGES)!r}]\n"
    command = [sys.executable, "-I", "-S", *flags, "-c", begin + textwrap.dedent(code), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.strip()


# --- which modules ------------------------------------------------------------------------------


def test_importing_segstore_brings_the_errors_only() -> None:
    found = python("import segstore; print(*sys.modules)").split()
    assert {name for name in found if name.startswith("segstore")} == EAGER
    assert HEAVY & set(found) == set()
    assert len(found) < 100


OPEN = "import segstore\nstore = segstore.open(sys.argv[1])\nlog = store.partition('t')\n"
READER = OPEN.replace("sys.argv[1]", "sys.argv[1], 'r'")
METADATA = """
import segstore, socket, struct
with segstore.open(sys.argv[1]) as store, segstore.serve(store, port=0) as server:
    host, port = server.bootstrap_servers.split(":")
    with socket.create_connection((host, int(port))) as client:
        request = struct.pack(">hhihi", 3, 1, 1, -1, -1)
        client.sendall(struct.pack(">i", len(request)) + request)
        assert client.recv(1 << 16)
"""
STARTS: dict[str, tuple[str, int]] = {
    "import segstore": ("import segstore", len(EAGER)),
    "an append": (f"{OPEN}log.append(b'v', key=b'k', headers=[('h', b'')])\nstore.close()", ENGINE_SIZE),
    "a compressed append": (f"{OPEN}store.partition('z').append(b'v' * 100)\nstore.close()", ENGINE_SIZE),
    "a producer": (
        f"{OPEN}p = segstore.Producer(store)\nassert p.send('t', b'v').get().offset\nstore.close()",
        ENGINE_SIZE + 47,
    ),
    "a record that is read": (f"{READER}assert log.read_one(0).value == b'v'", ENGINE_SIZE),
    "a record with headers": (f"{READER}assert log.read_one(1).headers == [('h', b'')]", ENGINE_SIZE),
    "a list of topics": (
        "from segstore.cli import main\nmain(['topics', '--store', sys.argv[1]])",
        ENGINE_SIZE + 18,
    ),
    "a server's metadata": (METADATA, ENGINE_SIZE + 63),
}
"""Programs over a store that was closed cleanly, none of which brings NumPy; and how many modules of segstore
each brings at most.
"""


@pytest.fixture(scope="module")
def closed_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("starts") / "store"
    with segstore.open(path) as store:
        store.create_topic("t")
        store.create_topic("z", config={"compression.type": "zstd"})
        for headers in ((), [("h", b"")], ()):
            store.partition("t").append(b"v", headers=headers)
    return path


@pytest.mark.parametrize("name", STARTS)
def test_a_start_brings_what_it_needs(name: str, closed_store: Path) -> None:
    code, most = STARTS[name]
    told = f"import atexit\natexit.register(lambda: print(*sys.modules))\n{code}"
    found = set(python(told, closed_store).splitlines()[-1].split())
    assert not {"numpy", "pyarrow"} & found
    assert len([each for each in found if each.startswith("segstore")]) <= most


def test_a_server_brings_neither_replication_nor_tls_that_it_does_not_use(tmp_path: Path) -> None:
    served = """
with segstore.open(sys.argv[1]) as store, segstore.serve(store, port=0):
    from segstore.server.handlers import MODULES, handlers_of

    print(*sys.modules)
    for each in MODULES:  # as requests of all kinds do
        handlers_of(each)
    print(*sys.modules)
"""
    begun, found = (set(line.split()) for line in python(f"import segstore\n{served}", tmp_path).splitlines())
    assert "segstore.server.handlers.metadata" in found - begun
    assert not {"segstore.replication.store", "segstore.replication.side", "ssl"} & found


ENGINE_MODULES = {
    "numpy",
    "cramjam",
    "_cffi_backend",
    "segstore._native",
    "segstore.storage",
    "segstore.bench",
    "segstore.demo",
}
COMMAND_LINES: dict[str, tuple[list[str], dict[str, str], set[str]]] = {
    "the version": (["--version"], {}, {"rich", "segstore.cli.output"}),
    "the help": (["--help"], {}, {"segstore.cli.output", "segstore.cli.topics"}),
    "zsh asks for a script": ([], {"_SEGSTORE_COMPLETE": "zsh_source"}, {"rich"}),
    "zsh completes a command": (
        [],
        {"_SEGSTORE_COMPLETE": "zsh_complete", "COMP_WORDS": "segstore to", "COMP_CWORD": "1"},
        {"rich"},
    ),
}


@pytest.mark.parametrize("name", COMMAND_LINES)
def test_a_command_line_that_needs_no_engine_brings_none(name: str) -> None:
    arguments, environment, more = COMMAND_LINES[name]
    code = f"""
import os
from segstore.cli import main
os.environ.update({environment!r})
try:
    main({arguments!r})
except SystemExit as ended:
    print(ended.code, *sys.modules)
"""
    *printed, last = python(code).splitlines()
    code_of_exit, *found = last.split()
    assert code_of_exit in ("0", "None")
    assert printed
    assert (ENGINE_MODULES | more) & set(found) == set()


def test_the_help_of_no_command_brings_the_engine() -> None:
    """Nor what prints tables, nor a module that another command needs."""
    code = """
import contextlib, io
from segstore.cli.app import COMMANDS, ListedCommand, commands

def helps(path, command):
    yield path
    for name, inner in getattr(command, "commands", {}).items():
        yield from helps([*path, name], inner)

brought = []
for name in COMMANDS:
    for path in helps([name], ListedCommand(name).itself()):
        with contextlib.redirect_stdout(io.StringIO()) as shown:
            commands.main([*path, "--help"], prog_name="segstore", standalone_mode=False)
        assert shown.getvalue().startswith(f"Usage: segstore {' '.join(path)}"), path
        if wrong := set(sys.argv[1:]) & set(sys.modules):
            brought.append((path, wrong))
            break
print(*brought)
"""
    assert python(code, *sorted(ENGINE_MODULES - {"segstore.bench", "segstore.demo"} | {"rich"})) == ""


def test_the_collector_rests_while_a_command_is_imported() -> None:
    """And is awake afterwards, with nothing of the modules to look at."""
    code = """
import gc
from segstore.cli.importing import imports
before = gc.get_stats()[2]["collections"]
with imports():
    import segstore.cli.app, segstore.cli.serve
print(gc.get_stats()[2]["collections"] - before, gc.isenabled(), gc.get_freeze_count() > 10_000)
with imports():
    gc.disable()
print(gc.isenabled())
gc.disable()
with imports():
    pass
print(gc.isenabled())
"""
    assert python(code).split() == ["0", "True", "True", "True", "False"]


def test_a_program_that_calls_a_command_has_its_collector_back(store_dir: Path) -> None:
    code = """
        import gc, segstore
        from segstore.cli.app import commands
        with segstore.open(sys.argv[1]) as store:
            store.create_topic("t")
        commands.main(["topics", "--store", sys.argv[1]], standalone_mode=False)
        print(gc.get_freeze_count(), gc.isenabled())
        sys.stderr = sys.stdout
        for wrong in (["topics", "--wrong"], ["topics", "--store", sys.argv[1] + "/none"]):
            try:
                commands.main(wrong)
            except SystemExit as ended:
                print("ended", ended.code, gc.get_freeze_count(), gc.isenabled())
    """
    printed = python(code, store_dir).splitlines()
    assert "0 True" in printed
    assert [line for line in printed if line.startswith("ended")] == ["ended 2 0 True", "ended 1 0 True"]


def test_what_a_program_froze_stays_frozen_behind_a_command() -> None:
    code = """
import gc
from segstore.cli import main
gc.freeze()
theirs = gc.get_freeze_count()
try:
    main(["--version"])
except SystemExit:
    print(gc.get_freeze_count() >= theirs)
"""
    assert python(code).splitlines()[-1] == "True"


def test_a_named_tuple_brings_no_engine() -> None:
    found = python("import segstore; segstore.TopicPartition('t', 0); print(*sys.modules)").split()
    assert "segstore.coordinator.structs" in found
    assert not {"numpy", "segstore.storage", "segstore._native"} & set(found)


def test_the_engine_brings_no_package_that_reads_what_is_installed() -> None:
    code = "import numpy, cramjam\nbefore = set(sys.modules)\nimport segstore\nsegstore.open"
    found = set(python(f"{code}\nprint(*set(sys.modules) - before)").split())
    assert "segstore.storage.store.writer" in found
    assert not {"crc32c", "email", "importlib.metadata", "argparse", "zipfile", "asyncio", "pyarrow"} & found


USES = {
    "columns, where there is NumPy": """
        log.append_batch([b"1", b"2"], keys=[b"k", b"k"])
        log.flush()
        log.read(0)
        store.sweep()
        store.stats()
    """,
    "records": """
        log.append(b"1", key=b"k", headers=[("h", b"")])
        log.append(b"2", key=b"k")
        log.flush()
        assert log.read_one(1).value == b"2"
        store.delete_topic("t")
    """,
}


@pytest.mark.parametrize("name", USES)
def test_an_open_store_needs_no_further_module(name: str, store_dir: Path) -> None:
    """Neither for these, nor for its close: at the interpreter's end none can be imported."""
    code = f"""
import segstore
store = segstore.open(sys.argv[1], config={{"log.cleaner.backoff.ms": 60000}})
if "NumPy" in {name!r}:
    import numpy
before = set(sys.modules)
store.create_topic("t", config={{"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0}})
log = store.partition("t")
{textwrap.dedent(USES[name])}
store.close()
print(*sorted(set(sys.modules) - before))
"""
    assert python(code, store_dir) == ""


# --- first use ----------------------------------------------------------------------------------


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


# --- in the midst of it -------------------------------------------------------------------------

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
