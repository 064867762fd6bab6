"""What pyproject.toml can't say: the C helper is built by cffi, and for which Pythons a wheel is.

cffi makes an extension of the stable ABI, so that one wheel serves Python 3.10 and all that follow.
Free-threaded builds of CPython have no stable ABI: a wheel for one of them is for that version alone.
"""

import sysconfig

from setuptools import setup

FREE_THREADED = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
WHEEL = {} if FREE_THREADED else {"bdist_wheel": {"py_limited_api": "cp310"}}

setup(cffi_modules=["segstore/_native/build.py:ffibuilder"], options=WHEEL)
