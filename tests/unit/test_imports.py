"""Promise: `import segstore` brings the errors only. An open store needs no further module but NumPy, and
that for columns only.
"""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from fresh_interpreters import python

import segstore

pytestmark = pytest.mark.kind("programs")

EAGER = {
    "segstore",
    "segstore.errors",
    "segstore.first_use",
    "segstore.main_interpreter",
    "segstore.threads",
    "segstore.version",
}
"""The modules of `import segstore`: each program and each of Spark's workers waits for every one of them."""


ENGINE_SIZE = 200
"""The most modules that an open store needs."""


HEAVY = {
    *("numpy", "cramjam", "crc32c", "_cffi_backend", "pyarrow", "email", "importlib.metadata", "pathlib"),
    *("logging", "inspect", "dataclasses", "json", "hashlib", "uuid", "asyncio", "concurrent.futures"),
}


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
    assert not {"segstore.replication.store", "segstore.replication.replicated_writer", "ssl"} & found


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
