"""Plays rounds: a store is written by one process, archived by another one or two, and restored by a third;
each is killed at random, or dies at a call. At the end of each round the archive is judged.
"""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from places import REPOSITORY, environment
from waiting import PATIENCE

import segstore
from segstore.archiving.chain import read_state
from segstore.archiving.remote import RemoteFiles
from segstore.errors import ArchiveError, SegstoreError

from .told import MADE_ANEW, Key, ToldFile, ends_of

Record = tuple[bytes | None, bytes | None]
Records = dict[Key, dict[int, Record]]
SECONDS = (0.3, 1.5)
LOST, OLDER_COPY = 0.15, 0.1
"""How often the store is lost and goes on as what was restored, or two archivers run at once."""


class Failed(Exception):
    """A round that went wrong: its seed, and what was seen."""


class Rounds:
    """All in `directory`, which is empty; the archive is at `uri`."""

    def __init__(self, directory: Path, seed: int, uri: str | None = None, defect: str = "none") -> None:
        self.seed, self.rng, self.directory, self.defect = seed, random.Random(seed), directory, defect
        self.store, self.uri = directory / "store", uri or str(directory / "archive")
        self.told = ToldFile(directory / "told")
        self.counts = Counter[str]()
        self._lives = 0
        self._started: list[subprocess.Popen[bytes]] = []

    def play(self, rounds: int) -> Counter[str]:
        """Play so many rounds. Failed."""
        try:
            for number in range(rounds):
                self._round()
                self.counts["rounds"] = number + 1
        except (AssertionError, SegstoreError, OSError, subprocess.TimeoutExpired) as error:
            errors = (self.directory / "errors").read_text(errors="replace")[-6_000:]
            raise Failed(
                f"seed {self.seed}, {self.directory}: {type(error).__name__}: {error}\n{errors}"
            ) from error
        finally:
            for process in self._started:
                process.kill()
                process.wait(PATIENCE)
        return self.counts

    def _round(self) -> None:
        writer = self._start("write", str(self.store))
        self._await_store(writer)
        archivers = [self._archiver()]
        for _ in range(self.rng.randrange(1, 4)):
            time.sleep(self.rng.uniform(*SECONDS))
            if self.rng.random() < OLDER_COPY:
                archivers.append(self._archiver())
                self.counts["two archivers"] += 1
            elif self.rng.random() < 0.5:
                self._kill(archivers.pop() if archivers else self._archiver())
                archivers.append(self._archiver())
                self.counts["archiver killed"] += 1
            else:
                self._kill(writer)
                writer = self._start("write", str(self.store))
                self.counts["writer killed"] += 1
        time.sleep(self.rng.uniform(*SECONDS))
        self._end()
        self._judge()

    # --- processes ------------------------------------------------------------------------

    def _start(self, work: str, *arguments: str) -> subprocess.Popen[bytes]:
        self._lives += 1
        seed = f"{self.seed} {self._lives}"
        with open(self.directory / "errors", "ab") as errors:
            errors.write(f"--- {work} {seed}\n".encode())
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "archive_judge.worker", self.defect, work, seed, *arguments],
                env=environment(str(REPOSITORY)), stdin=subprocess.DEVNULL, stdout=errors, stderr=errors,
            )  # fmt: skip
        self._started.append(process)
        return process

    def _archiver(self) -> subprocess.Popen[bytes]:
        return self._start("archive", str(self.store), self.uri, str(self.told.path))

    def _await_store(self, writer: subprocess.Popen[bytes]) -> None:
        until = time.monotonic() + PATIENCE
        while not (self.store / ".segstore").is_dir():
            assert writer.poll() is None, "the writer has ended"
            assert time.monotonic() < until, "the writer makes no store"
            time.sleep(0.01)

    def _kill(self, process: subprocess.Popen[bytes]) -> None:
        """Kill a process, which has not ended by an error; a restore may have, of a call that was refused."""
        process.kill()
        process.wait(PATIENCE)
        may_end = (0, 1) if "restore" in process.args else (0,)  # type: ignore[operator]
        assert process.returncode in (*may_end, -signal.SIGKILL), (
            f"{process.args} ended with {process.returncode}"
        )

    def _end(self) -> None:
        """Kill all: archivers first, which would come to the end of what a dead writer has left."""
        self._started.sort(key=lambda process: "archive" in process.args)  # type: ignore[operator]
        while self._started:
            self._kill(self._started.pop())

    # --- judgement ------------------------------------------------------------------------

    def _judge(self) -> None:
        told, target = self.told.ends(), self.directory / "restored"
        if not told and "there is no archive" in _refusal(self.uri):
            return
        self._restored(target)
        findings = list(segstore.check(target))
        assert not findings, f"check complains of what was restored: {findings}"
        self._compare(target, told)
        self.counts["told"] = sum(told.values())
        if self.rng.random() < LOST:
            self.counts["store lost"] += 1
            shutil.rmtree(self.store)
            target.rename(self.store)
        else:
            shutil.rmtree(target)

    def _restored(self, target: Path) -> None:
        """Restore, after restores that were killed."""
        for _ in range(self.rng.randrange(2)):
            process = self._start("restore", self.uri, str(target))
            try:
                process.wait(self.rng.random())
            except subprocess.TimeoutExpired:
                self._kill(process)
            self.counts["restore killed"] += process.returncode != 0
            if target.exists():
                return
        segstore.restore(self.uri, target)

    def _compare(self, target: Path, told: dict[Key, int]) -> None:
        with segstore.open(target, "r") as restored, segstore.open(self.store, "r") as store:
            ends, now = self._archived_ends(), ends_of(store)
            # Behind what was archived, a restored log may have markers that abort transactions.
            behind = {key: end for key, end in ends_of(restored).items() if end < ends.get(key, 0)}
            assert not behind, f"restored up to {behind}, archived up to {ends}"
            for key, end in told.items():
                if key[0] == MADE_ANEW and key not in ends:
                    continue  # deleted, which the archive knows, or made anew
                assert ends.get(key, -1) >= end, f"{key}: told {end}, archived up to {ends.get(key)}"
            there, here = _records(restored, "read_uncommitted"), _records(store, "read_uncommitted")
            for key in there.keys() & now.keys():
                self._compare_logs(key, there[key], here[key], min(ends.get(key, 0), now[key]))
            _check_pairs(_records(restored, "read_committed"))

    def _archived_ends(self) -> dict[Key, int]:
        state = read_state(RemoteFiles(self.uri))
        kept = {key for key, topic in state.topics.items() if topic.deleted is None}
        return {tuple(key): each.end for key, each in state.partitions.items() if key[:2] in kept}  # type: ignore[misc]

    def _compare_logs(self, key: Key, restored: dict[int, Record], live: dict[int, Record], end: int) -> None:
        other = [n for n in restored.keys() & live.keys() if restored[n] != live[n]]
        assert not other, f"{key}: other records at {other[:5]}"
        if key[0] == "compacted":
            lacking = [n for n, (name, _) in _latest(live).items() if n < end and n not in restored]
        else:
            lacking = [n for n in live if n < end and n not in restored]
        assert not lacking, (
            f"{key}: records at {lacking[:5]} are not in what was restored, which ends at {end}"
        )
        self.counts["records"] += len(restored)


def _records(store: segstore.Store, isolation: str) -> Records:
    found: Records = {key: {} for key in ends_of(store)}
    for name, topic_id, number in found:
        for record in store.partition(name, number).scan(isolation_level=isolation):
            found[name, topic_id, number][record.offset] = (record.key, record.value)
    return found


def _latest(records: dict[int, Record]) -> dict[int, Record]:
    latest = {key: offset for offset, (key, _) in sorted(records.items())}
    return {offset: records[offset] for offset in latest.values()}


def _check_pairs(committed: Records) -> None:
    """Check that each transaction is whole or absent."""
    seen = [{value for _, value in each.values()} for key, each in committed.items() if key[0] == "pairs"]
    if seen:
        assert seen[0] == seen[1], f"torn transactions: {sorted(seen[0] ^ seen[1])[:3]}"


def _refusal(uri: str) -> str:
    """Return why an archive can't be read, "" if it can."""
    try:
        read_state(RemoteFiles(uri))
    except ArchiveError as error:
        return str(error)
    return ""
