"""Runs one round: a server, and clients of two libraries behind a proxy; servers, clients and connections
fail in turn; then all becomes calm, what is left is read, and the history of what was told is judged.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from fault_proxy import Proxy
from histories import Part, from_lines
from jepsen.running import Failed, committed, contents, of_topics
from jepsen.running import Round as GroupRound
from waiting import PATIENCE, until
from wire_client import WireClient

import segstore

from .judge import WireHistory
from .roles import PARTS, RECEIVING, SENDING
from .told import CONFIG, GROUPS, HOPS, Flags

KINDS = ("librdkafka", "kafka-python")
EVENTS = (30, 250)
"""How many events come between two faults, at least."""
LOST = (6, 14)
"""How many answers are lost; there are more connections than that."""
A_WHILE = 15.0
"""Seconds after which the next fault comes though little was told: a rebalance waits for stopped members."""


class Round(GroupRound):
    """All in `directory`, which is empty. `defect` is one of `defects`, which the server is given."""

    package = "wire_storm"

    def __init__(self, directory: Path, seed: int, defect: str = "none") -> None:
        super().__init__(directory, seed)
        self.defect, self.flags = defect, Flags(self.told)
        self.port_file, self.unread = directory / "port", ""
        self.lives: Counter[str] = Counter()
        self.clients: dict[tuple[str, Sequence[str]], subprocess.Popen[bytes]] = {}
        self.faults: dict[str, Callable[[], None]] = {
            "server killed": self._server_killed,
            "server killed without answers": self._server_killed_mute,
            "server ended": self._server_ended,
            "server stopped": lambda: self._stopped(self.server),
            "client killed": self._client_killed,
            "client stopped": lambda: self._stopped(self.rng.choice([*self.clients.values()])),
            "cut": lambda: self.proxy.cut(hard=self.rng.random() < 0.5),
            "torn": lambda: self.proxy.tear(self.rng.randrange(1, 6)),
            "stalled": self._stalled,
            "answers lost": self._answers_lost,
        }

    def play(self, faults: Sequence[str]) -> Counter[str]:
        """Have these faults one after the other. Failed."""
        with Proxy() as self.proxy:
            counts = self._judged(lambda: self._play(faults))
        if self.unread:
            raise Failed(self._say("the history shows nothing wrong"))
        return counts

    def _say(self, what: str) -> str:
        return super()._say("\n".join(filter(None, (self.unread, what))))

    def _play(self, faults: Sequence[str]) -> None:
        self._serve(0)
        for kind in KINDS:
            for roles in (SENDING, RECEIVING):
                self._begin_client(kind, roles)
        for fault in faults:
            self._some_events()
            self._note(fault)
            self.faults[fault]()
            self.counts[fault] += 1
        self._some_events()
        self._calm()

    def _note(self, what: str) -> None:
        """Write what is done among what the processes print."""
        with open(self.errors, "a") as errors:
            errors.write(f"{time.time():.3f} {self._events()} events: {what}\n")

    # --- processes ------------------------------------------------------------------------

    def _serve(self, port: int) -> None:
        self.port_file.unlink(missing_ok=True)
        self.lives["server"] += 1
        run, advertised = f"own{self.lives['server']}", str(self.proxy.port)
        self.server = self._start("server", run, str(port), advertised, self.defect)
        until(lambda: self._port() or self._fails(self.server))
        self.proxy.target = self._port()

    def _port(self) -> int:
        with suppress(FileNotFoundError, ValueError):
            return int(self.port_file.read_text())
        return 0

    def _fails(self, process: subprocess.Popen[bytes]) -> bool:
        if process.poll() is not None:
            raise Failed(self._say(f"{process.args} ended: {process.returncode}"))
        return False

    def _begin_client(self, kind: str, roles: Sequence[str]) -> None:
        self.lives[kind] += 1
        run, address = f"{kind}{self.lives[kind]}", f"127.0.0.1:{self.proxy.port}"
        self.clients[kind, roles] = self._start("client", run, kind, address, *roles)

    def _some_events(self) -> None:
        """Let some more be told, and see that nobody has failed."""
        enough, end = self._events() + self.rng.randint(*EVENTS), time.monotonic() + A_WHILE
        while self._events() < enough and time.monotonic() < end:
            time.sleep(0.05)
            for process in [self.server, *self.clients.values()]:
                self._fails(process)

    # --- faults ---------------------------------------------------------------------------

    def _server_killed(self) -> None:
        self._kill(self.server)
        self._again()

    def _again(self) -> None:
        self._serve(self.proxy.target)

    def _server_killed_mute(self) -> None:
        """What was appended last is not acknowledged, and sent again to the next server."""
        self._mute()
        self._kill(self.server)
        self.proxy.cut(hard=False)
        self.proxy.go_on()
        self._again()

    def _mute(self) -> None:
        """Lose the answers of most connections."""
        self.proxy.mute()
        enough, end = self.rng.randint(*LOST), time.monotonic() + A_WHILE / 3
        while self.proxy.lost < enough and time.monotonic() < end:
            time.sleep(0.01)

    def _server_ended(self) -> None:
        self.server.send_signal(signal.SIGTERM)
        self._has_gone(0)
        self._again()

    def _has_gone(self, status: int) -> None:
        try:
            self.server.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.server.send_signal(signal.SIGABRT)
            self.server.wait()
        if self.server.returncode != status:
            raise Failed(self._say(f"the server ended: {self.server.returncode}, not {status}"))

    def _client_killed(self) -> None:
        which = self.rng.choice([*self.clients])
        self._kill(self.clients[which])
        self._begin_client(*which)

    def _stopped(self, process: subprocess.Popen[bytes]) -> None:
        """Now and then for longer than a session."""
        os.kill(process.pid, signal.SIGSTOP)
        time.sleep(self.rng.choice((0.2, 1.0, 5.0)))
        os.kill(process.pid, signal.SIGCONT)

    def _stalled(self) -> None:
        self.proxy.stall()
        time.sleep(self.rng.choice((0.2, 1.0)))
        if self.rng.random() < 0.5:
            self.proxy.cut(hard=True)
        self.proxy.go_on()

    def _answers_lost(self) -> None:
        self._mute()
        self.proxy.cut(hard=False)
        self.proxy.go_on()

    # --- the end --------------------------------------------------------------------------

    def _calm(self) -> None:
        """Nothing fails any more: senders end, groups read all, then everybody ends."""
        self.flags.calm()
        for (_, roles), process in self.clients.items():
            if roles == SENDING:
                self._ends(process)
        self._note("calm")
        with segstore.open(self.store, mode="r") as store:
            end = time.monotonic() + PATIENCE
            while (left := self._unread(store)) and time.monotonic() < end:
                self._fails(self.server)
                time.sleep(0.2)
        if left:
            self.unread = f"not all is read: {left}; {self._stacks()}"
            for process in [self.server, *self.clients.values()]:
                self._kill(process)
            return
        self.flags.over()
        for process in self.clients.values():
            self._ends(process)
        self.server.send_signal(signal.SIGTERM)
        self._has_gone(0)

    def _stacks(self) -> str:
        """Have all processes print where their threads are."""
        for process in [self.server, *self.clients.values()]:
            process.send_signal(signal.SIGUSR1)
        time.sleep(2)
        return "where all are is below"

    def _unread(self, store: segstore.Store) -> list[str]:
        """Return which groups have not committed behind the last record that they may read, and where."""
        found: list[str] = []
        at: dict[tuple[str, Part], int] = {}
        with WireClient("127.0.0.1", self.proxy.target) as wire:
            for group in GROUPS:
                for topic in wire.ask("OffsetFetch", 5, group_id=group, topics=None).topics:
                    for each in topic.partitions:
                        at[group, (topic.name, each.partition_index)] = each.committed_offset
        for group, topics in GROUPS.items():
            for part in of_topics(PARTS, topics):
                log = store.partition(*part)
                behind = max(at.get((group, part), 0), log.start_offset)
                is_open = log.last_stable_offset < log.end_offset
                if is_open or len(log.read(behind, 1, isolation_level="read_committed")):
                    found.append(f"{group} {part} from {behind}{' (open)' * is_open}")
        return found

    def _history(self) -> WireHistory:
        with segstore.open(self.store, config=CONFIG) as store:
            return WireHistory(
                from_lines(self.told.read_bytes()),
                contents(store, PARTS, "read_uncommitted"),
                contents(store, PARTS, "read_committed"),
                {
                    group: committed(store, group, of_topics(PARTS, topics))
                    for group, topics in GROUPS.items()
                },
                {part: store.partition(*part).start_offset for part in PARTS},
                HOPS,
            )
