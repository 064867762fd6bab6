"""tools/wheels.py, which `make wheels` runs: what passes as a platform's wheel, and as its headers."""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from loading import loaded
from places import REPOSITORY

CC = str(sysconfig.get_config_var("CC") or "cc").split()[0]
TOLD = """
segstore-0.1.0-cp310-abi3-manylinux_2_17_x86_64.whl is consistent with the
following platform tag: "{}".

The wheel references external versioned symbols in these system-provided shared
libraries: libc.so.6 with versions {{'GLIBC_2.14'}}
"""
JUDGEMENTS = {
    "the platform's own": ("manylinux_2_17_x86_64", True),
    "an older C library's": ("manylinux_2_5_x86_64", True),
    "a newer C library's": ("manylinux_2_28_x86_64", False),
    "another machine's": ("manylinux_2_17_aarch64", False),
    "another C library's": ("musllinux_1_2_x86_64", False),
    "no C library's": ("linux_x86_64", False),
}
SIZES = {
    "right": ("#define SIZEOF_VOID_P 8\n#define SIZEOF__BOOL 1\n#define ALIGNOF_SIZE_T 8\n", True),
    "a short long": ("#define SIZEOF_INT 4\n#define SIZEOF_LONG 4\n", False),
    "wide letters": ("#define SIZEOF_WCHAR_T 2\n", False),
    "an alignment": ("#define ALIGNOF_LONG 4\n", False),
}


@pytest.fixture(scope="module")
def tool() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(str(REPOSITORY / "tools"))
        yield loaded(REPOSITORY / "tools" / "wheels.py")


@pytest.mark.parametrize("case", JUDGEMENTS)
def test_what_auditwheel_must_say(tool: ModuleType, case: str) -> None:
    tag, fits = JUDGEMENTS[case]
    assert tool.serves(TOLD.format(tag), "manylinux_2_17_x86_64") == fits


@pytest.mark.kind("programs")
@pytest.mark.parametrize("case", SIZES)
def test_headers_with_other_sizes_are_refused(tool: ModuleType, case: str, tmp_path: Path) -> None:
    pyconfig, fits = SIZES[case]
    source = tmp_path / "sizes.c"
    source.write_text(tool.assertions(pyconfig))
    done = subprocess.run([CC, "-fsyntax-only", str(source)], capture_output=True, text=True, check=False)
    assert (done.returncode == 0) == fits, done.stderr
    assert fits or "static assertion failed" in done.stderr


@pytest.mark.kind("programs")
def test_this_python_s_own_headers_are_right(tool: ModuleType, tmp_path: Path) -> None:
    pyconfig = Path(sysconfig.get_config_h_filename()).read_text()
    source = tmp_path / "sizes.c"
    source.write_text(tool.assertions(pyconfig))
    assert source.read_text().count("_Static_assert") == len(
        re.findall(r"^#define (?:SIZEOF|ALIGNOF)_", pyconfig, re.MULTILINE)
    )
    assert subprocess.run([CC, "-fsyntax-only", str(source)], check=False).returncode == 0


def test_a_wheel_is_used_as_readme_says(tool: ModuleType) -> None:
    assert "segstore.open(" in tool.image.example()
    compile(tool.image.example(), "README.md", "exec")


@pytest.mark.parametrize(
    "text", ["musllinux_1_2_x86_64", "musllinux_1_2_x86_64=", "manylinux_2_5_i686=python"]
)
def test_a_runner_is_a_platform_and_a_python(tool: ModuleType, text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="PLATFORM=PYTHON"):
        tool._runner(text)
    name, python = tool._runner("musllinux_1_2_x86_64=qemu -L 'a b' python3")
    assert (name, python) == ("musllinux_1_2_x86_64", ["qemu", "-L", "a b", "python3"])


@pytest.mark.parametrize("name", ["manylinux_2_17_aarch64", "musllinux_1_2_x86_64"])
def test_what_others_packages_may_be_tagged_with(tool: ModuleType, name: str) -> None:
    kind, machine = tool.parts(name)
    assert (f"{kind}_1_2_{machine}" in [name, *tool.older(name)]) == (kind == "musllinux")
    assert (f"{kind}_2_28_{machine}" in tool.older(name)) == (kind == "manylinux")


ENDINGS = {
    "manylinux_2_17_x86_64": ".cpython-314t-x86_64-linux-gnu.so",
    "manylinux_2_17_aarch64": ".cpython-314t-aarch64-linux-gnu.so",
    "musllinux_1_2_aarch64": ".cpython-314t-aarch64-linux-musl.so",
}


@pytest.mark.parametrize("name", ENDINGS)
def test_how_extensions_of_one_version_end(tool: ModuleType, name: str) -> None:
    assert tool.suffix("cp314-cp314t", name) == ENDINGS[name]


def test_a_python_with_the_gil_is_not_free_threaded(tool: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"--free-threaded .* has the GIL"):
        tool.free_threaded(sys.executable, tmp_path)
