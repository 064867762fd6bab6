"""`make fuzz`: every target for some minutes, each in a process of its own; what fails is saved, made small.

    python -m fuzz.run [--minutes 5] [--target NAME]... [--seed N] [--keep]     in tests/hostile
    python -m fuzz.run --target NAME FILE                                       runs one input again

PYTHONPATH has the rooms of tests/support, and tests/plugins.

On disk: `build/fuzz/`: failing inputs; `--keep`: adds inputs that reached new outcomes to the corpus.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

from places import REPOSITORY, environment

from fuzz.loop import Current, Hang, Loop, digest, failure, limit_memory, limit_time
from fuzz.shrink import shrunk
from fuzz.targets import TARGETS, corpus, folder
from segstore._native import _segstore

FAILED = REPOSITORY / "build" / "fuzz"
WEIGHTS = {"batches": 8, "records": 4, "codecs": 2, "store": 8, "wire": 8}
"""Of the time: what runs slowly, or is all in C, gets more."""
MOST_KEPT = 1500  # bytes of an input that goes to the corpus
GRACE = 120  # seconds beyond its time after which a child hangs


def main() -> int:
    options = arguments()
    if options.file:
        return replay(options.target[0], options.file)
    if options.child:
        return child(options)
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1 << 32)
    chosen = options.target or list(TARGETS)
    print(f"seed {seed}: --seed {seed} does the same again; native build: {native_build()}", flush=True)
    second = options.minutes * 60 / sum(WEIGHTS.get(name, 1) for name in chosen)
    begun = time.monotonic()
    told = [
        parent(name, seed, options.inputs, second * WEIGHTS.get(name, 1), options.keep) for name in chosen
    ]
    inputs, minutes = sum(done for done, _ in told), (time.monotonic() - begun) / 60
    print(f"{inputs:,} inputs of {len(chosen)} targets, {inputs / minutes:,.0f} a minute")
    return int(any(failed for _, failed in told))


def native_build() -> str:
    """Which it is. SystemExit where another one was to be run."""
    path, expected = str(_segstore.__file__), os.environ.get("SEGSTORE_EXPECT_BUILD", "")
    if not path.startswith(expected):
        sys.exit(f"{path} is loaded in place of the build in {expected}")
    return path


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--inputs", type=int, default=1 << 62, help="of each target, at most")
    parser.add_argument("--target", action="append", choices=list(TARGETS))
    parser.add_argument("--seed", type=int)
    parser.add_argument("--keep", action="store_true", help="add what reached new outcomes to the corpus")
    parser.add_argument("--child", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--current", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("file", nargs="?", type=Path)
    return parser.parse_args()


# --- one target in a process of its own -------------------------------------------------------------


def child(options: argparse.Namespace) -> int:
    """Prints what was done as JSON; the exception where an input failed, with status 1."""
    logging.disable(logging.CRITICAL)
    name = options.target[0]
    limit_time()
    limit_memory()
    current = Current(options.current)
    try:
        loop = Loop(TARGETS[name], corpus(name), f"{options.seed} {name}", current)
        loop.run(options.inputs, options.child)
    except (Exception, Hang):
        traceback.print_exc()
        return 1
    if options.keep:
        keep(name, loop.new)
    print(json.dumps({"inputs": loop.done, "outcomes": len(loop.outcomes)}))
    return 0


def keep(name: str, inputs: list[bytes]) -> None:
    """Add small ones to the corpus."""
    folder(name).mkdir(parents=True, exist_ok=True)
    for data in inputs:
        if len(data) <= MOST_KEPT:
            (folder(name) / digest(data)).write_bytes(data)


def parent(name: str, seed: int, inputs: int, seconds: float, keeps: bool) -> tuple[int, bool]:
    """(inputs that were run, whether one failed)."""
    with tempfile.TemporaryDirectory(prefix="segstore-fuzz-") as work:
        current = Path(work) / "current"
        command = [sys.executable, "-m", "fuzz.run", "--target", name, "--seed", str(seed)]
        command += ["--inputs", str(inputs), "--child", str(seconds), "--current", str(current)]
        command += ["--keep"] if keeps else []
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=seconds + GRACE, env=environment()
            )
        except subprocess.TimeoutExpired:
            done = subprocess.CompletedProcess(command, -1, "", "it hangs where no signal reaches it\n")
        if done.returncode == 0:
            told = json.loads(done.stdout)
            print(f"{name:22} {told['inputs']:>12,} inputs {told['outcomes']:>5} outcomes", flush=True)
            return told["inputs"], False
        print(f"{name:22} FAILED, status {done.returncode}\n{done.stderr}", flush=True)
        save(name, Current.get(current) if current.exists() else b"")
    return 0, True


# --- what failed --------------------------------------------------------------------------------------


def save(name: str, data: bytes) -> None:
    FAILED.mkdir(parents=True, exist_ok=True)
    path = FAILED / f"{name.replace(' ', '-')}-{digest(data)}"
    path.write_bytes(data)
    print(f"saved: {path}")
    subprocess.run(
        [sys.executable, "-m", "fuzz.run", "--target", name, str(path)],
        env=environment(),
        timeout=600,
        check=False,
    )


def replay(name: str, path: Path) -> int:
    """Run one input: the exception, and beside the file the smallest that fails the same way. A crash ends
    this process, as it should.
    """
    logging.disable(logging.CRITICAL)
    limit_time()
    limit_memory()
    data = path.read_bytes()
    why = failure(TARGETS[name], data)
    if why is None:
        print(f"{name}: {TARGETS[name].outcome(data)}")
        return 0
    small = shrunk(data, lambda less: failure(TARGETS[name], less) == why)
    path.with_suffix(".small").write_bytes(small)
    print(f"{name}: {why}; {len(small)} of {len(data)} bytes do: {small[:200]!r}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
