"""tools/image.py: a wheel of this tree on a machine image that has neither a compiler nor a network."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from loading import loaded
from places import REPOSITORY

pytestmark = pytest.mark.kind("images")

PYTHON = Path(sys.executable).resolve()
LOOK = f"""
import os, shutil, socket
assert os.listdir(".") == [], os.listdir(".")
assert not os.path.exists({str(REPOSITORY)!r}), "the repository is there"
assert {{name for _, name in socket.if_nameindex()}} == {{"lo"}}, socket.if_nameindex()
with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()):
    pass
with open("/dev/null", "wb") as null, open("/proc/self/status") as status:
    null.write(b"x")
    assert status.read().startswith("Name:")
assert os.getppid() == 1, os.getppid()
import ctypes, hashlib, sqlite3, ssl, zlib
print("looked")
"""


@pytest.fixture(scope="module")
def tool() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(str(REPOSITORY / "tools"))
        yield loaded(REPOSITORY / "tools" / "image.py")


@pytest.fixture(scope="module")
def root(tool: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if reason := tool.impossible():
        pytest.skip(f"no image can be entered here: {reason}")
    made = tmp_path_factory.mktemp("image")
    tool.make(made, PYTHON)
    return made


def test_it_is_a_machine_of_its_own(tool: ModuleType, root: Path) -> None:
    assert tool.run(root, [str(PYTHON), "-c", LOOK], PYTHON) == "looked\n"


def test_nothing_of_it_stays_mounted(tool: ModuleType, root: Path) -> None:
    tool.run(root, [str(PYTHON), "-c", "pass"], PYTHON)
    assert str(root) not in Path("/proc/self/mountinfo").read_text()


@pytest.mark.parametrize("name", ["cc", "g++", "zig"])
def test_an_image_with_a_compiler_is_refused(tool: ModuleType, root: Path, name: str) -> None:
    tool.refuse_compilers(root, PYTHON)
    compiler = root / "usr/local/bin" / name
    compiler.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(sys.executable, compiler)
    try:
        with pytest.raises(tool.StepError, match="no image without a compiler: it has .*" + name[0]):
            tool.refuse_compilers(root, PYTHON)
    finally:
        compiler.unlink()


STEPS = {
    "a step that fails": ("raise SystemExit('no such thing')", "", "no such thing"),
    "what fails as it should": ("raise SystemExit('do this')", "do this", None),
    "what fails otherwise": ("raise SystemExit('no such thing')", "do this", "no such thing"),
    "what should fail": ("print('well')", "do this", "should say 'do this', and said\nwell"),
}


@pytest.mark.parametrize("case", STEPS)
def test_steps(tool: ModuleType, root: Path, case: str) -> None:
    program, advice, told = STEPS[case]
    step = tool.Step(case, [str(PYTHON), "-c", program], advice)
    if told is None:
        tool.take(step, root, PYTHON)
    else:
        with pytest.raises(tool.StepError, match=told):
            tool.take(step, root, PYTHON)


@pytest.mark.parametrize("lacks", ["unshare", "mount", "ldd"])
def test_why_none_can_be_entered(
    tool: ModuleType,
    lacks: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    which = shutil.which
    monkeypatch.setattr(shutil, "which", lambda name, **path: None if name == lacks else which(name, **path))
    (tmp_path / "a.whl").touch()
    assert tool.main([str(tmp_path / "a.whl")]) == tool.NOT_PERMITTED
    assert f"there is no {lacks}" in capsys.readouterr().err


def test_a_wheel_and_the_demo(
    tool: ModuleType, root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing but the wheel, and what pip brings for it: all that a newcomer does first."""
    wheel = built(tmp_path)
    assert tool.main([str(wheel), "--records", "2000"]) == 0
    told = capsys.readouterr().out
    for step in tool.steps(wheel, PYTHON, 2000):
        assert f" s  {step.name}\n" in told


def built(room: Path) -> Path:
    """Build a wheel of what git would give."""
    listed = ["git", "ls-files", "-z", "-co", "--exclude-standard", "--", ".", ":!tests"]
    for file in subprocess.run(
        listed, cwd=REPOSITORY, check=True, capture_output=True, text=True
    ).stdout.split("\0"):
        if file and (REPOSITORY / file).is_file():
            (room / "tree" / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(REPOSITORY / file, room / "tree" / file)
    command = [sys.executable, "setup.py", "-q", "bdist_wheel", "--dist-dir", str(room)]
    subprocess.run(command, cwd=room / "tree", check=True, capture_output=True)
    (wheel,) = room.glob("segstore-*.whl")
    return wheel
