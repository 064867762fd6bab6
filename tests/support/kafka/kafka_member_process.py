"""A `Member` in a process of its own, which can be killed and paused, and is asked by its standard input."""

from __future__ import annotations

import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from places import environment
from waiting import PATIENCE


class MemberProcess:
    """The process, which has started when this is made, and is a member once `ask("start")` has returned."""

    def __init__(
        self,
        node: int,
        root: Path,
        cluster_id: str,
        controller: tuple[str, int],
        peers: Mapping[int, tuple[str, int]],
        told: tuple[str, int] | None = None,
    ) -> None:
        self._log = root.with_suffix(".log")
        with open(self._log, "ab") as out:
            self._process = subprocess.Popen(
                [sys.executable, __file__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=out,
                env=environment(),
            )
        self._send(node, root, cluster_id, controller, dict(peers), told)

    def _send(self, *message: Any) -> None:
        assert self._process.stdin is not None
        pickle.dump(message, self._process.stdin)
        self._process.stdin.flush()

    def ask(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the member."""
        self._send(name, args, kwargs)
        answered: list[Any] = []
        thread = threading.Thread(target=lambda: answered.append(self._receive()), daemon=True)
        thread.start()
        thread.join(PATIENCE)
        assert answered, f"{name}: no answer\n{self.told}"
        result, error = answered[0]
        assert error is None, f"{name}: {error}\n{self.told}"
        return result

    def _receive(self) -> Any:
        assert self._process.stdout is not None
        try:
            return pickle.load(self._process.stdout)
        except EOFError:
            return None, "the process has ended"

    @property
    def told(self) -> str:
        """Return the last of what the process has logged."""
        return self._log.read_text()[-4000:]

    def signal(self, number: int) -> None:
        """Send a signal: SIGSTOP pauses the process, SIGCONT lets it go on."""
        self._process.send_signal(number)

    def kill(self) -> None:
        """Kill the process, whatever it does. May be repeated."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()

    def stop(self) -> None:
        """Let the member stop cleanly."""
        self.ask("close")
        self.kill()


def _serve(read: BinaryIO, write: BinaryIO) -> None:
    from kafka_member import Member

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    member = Member(*pickle.load(read))
    while True:
        try:
            name, args, kwargs = pickle.load(read)
        except EOFError:
            return
        try:
            answer = getattr(member, name)(*args, **kwargs), None
        except Exception as error:
            answer = None, repr(error)
        pickle.dump(answer, write)
        write.flush()


if __name__ == "__main__":
    _serve(sys.stdin.buffer, sys.stdout.buffer)
