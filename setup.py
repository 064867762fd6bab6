"""What pyproject.toml can't say: the C helper is built by cffi."""

from setuptools import setup

setup(cffi_modules=["segstore/_native/build.py:ffibuilder"])
