"""The part of the build that pyproject.toml has no words for: the C helper is built by cffi, six modules of
Python's own kind are built beside it (a producer's `send`, columns of bytes objects, the append of records,
small transfers, a consumer's wait, and the counts of a server's requests), and a wheel is tagged for the
Pythons that it serves. The two senders that only `segstore bench zero-copy` measures are built in a clone,
and are in no wheel.

cffi makes an extension of the stable ABI, so that one wheel serves Python 3.10 and later. Free-threaded
builds of CPython have no stable ABI: a wheel for one of them is for that version alone. None of our own
modules says Py_MOD_GIL_NOT_USED, so that such a Python turns the GIL on when it loads them: nobody has run
the tests without the GIL (docs/packaging.md).
"""

import os
import runpy
import shlex
import shutil
import sys
import sysconfig

from setuptools import Extension, setup

COMPILER = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")[0]
HEADER = os.path.join(sysconfig.get_paths()["include"], "Python.h")
MISSING = [f"a C compiler ({COMPILER} is not there)"] * (shutil.which(COMPILER) is None)
MISSING += [f"Python's headers ({HEADER} is not there)"] * (not os.path.exists(HEADER))
if MISSING and {"bdist_wheel", "editable_wheel", "build", "build_ext", "install", "develop"}.intersection(
    sys.argv
):
    sys.exit(
        f"segstore has a part in C, whose build needs {' and '.join(MISSING)}. Debian, Ubuntu:"
        " apt-get install gcc libc6-dev python3-dev; another compiler by CC. See Install in README.md."
    )

FREE_THREADED = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
WHEEL = {} if FREE_THREADED else {"bdist_wheel": {"py_limited_api": "cp310"}}

BUILD = runpy.run_path("segstore/_native/build.py")
COMPILE, LINK = BUILD["flags"]()
BESIDE = [
    Extension(
        f"segstore._native._{name}",
        [f"segstore/_native/{source}.c" for source in sources],
        depends=[f"segstore/_native/{name}" for name in BUILD["HEADERS"]],
        py_limited_api=not FREE_THREADED,
        extra_compile_args=COMPILE,
        extra_link_args=LINK,
    )
    for name, *sources in (
        ("producer", "producer", "queue", "future", "post"),
        ("spans", "spans"),
        ("tail_append", "tail_append", "list_append"),
        ("transfer", "transfer_call"),
        ("tailer", "tailer"),
        ("counts", "counts"),
    )
]

HELPERS = ["segstore/_native/build.py:ffibuilder"]
if "bdist_wheel" not in sys.argv:
    HELPERS.append("segstore/_native/build.py:exhibits")

setup(ext_modules=BESIDE, cffi_modules=HELPERS, options=WHEEL)
