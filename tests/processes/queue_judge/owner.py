"""`python -m queue_judge.owner DIR TOLD LIFE PORT ADVERTISED PLAN HOW`: the process that has the store,
serves it, and has producers and consumers of its own. HOW is "storm", or "drain": then nothing is produced
any more, and it ends when the queue is empty.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from queue_events import Got, Noted

import segstore
from segstore.coordinator.group_settings import group_settings
from segstore.coordinator.share.keys import ShareKey
from segstore.coordinator.share.share import ShareCoordinator
from segstore.coordinator.shared import shared

from . import defects
from .beside import Changes, Source, SteppedClock
from .local import KINDS
from .plan import GROUP, TOPICS, Plan
from .tap import Tap
from .told import Telling, now

DRAIN_S, SLEEPER_MS = 60.0, 500


class Owner:
    """All threads over one store. The first that fails ends the process."""

    def __init__(self, store: segstore.Store, clock: SteppedClock, told: Path, life: int, plan: Plan) -> None:
        self.store, self.clock, self.life, self.plan = store, clock, life, plan
        self.tell = Telling(told)
        self._over = threading.Event()

    def is_over(self) -> bool:
        return self._over.is_set()

    def prepare(self) -> None:
        """Make topics and the group's settings, unless they are there."""
        for topic in self.plan.topics:
            if topic not in self.store.topics():
                self.store.create_topic(topic, self.plan.partitions, TOPICS[topic])
        group_settings(self.store).alter(GROUP, self.plan.group_config)

    def storm(self) -> None:
        """Work until SIGTERM."""
        signal.signal(signal.SIGTERM, lambda *_: self._over.set())
        work: list[tuple[str, Callable[[], None]]] = [
            ("source 1", Source(self, "s1").run),
            ("source 2", Source(self, "s2").run),
            ("changes", Changes(self).run),
        ]
        for n, kind in enumerate(self.plan.local):
            name = f"{kind}{n}:{self.life}"
            work.append((name, KINDS[kind](self.store, self.plan, self.tell, name, self.is_over).run))
        self._run(work)

    def drain(self) -> None:
        """Have all that is left accepted, also what a consumer has that does not let go of it."""
        sleeper = self._sleeper() if self.plan.sleeps else None
        made = [
            KINDS["drain"](self.store, self.plan, self.tell, f"drain{n}", self._is_drained) for n in range(2)
        ]
        self._run([(each.name, each.run) for each in made])
        end = time.monotonic() + DRAIN_S / 4
        while (left := self._left()) and time.monotonic() < end:
            time.sleep(0.05)
        for each in left:
            self.tell(Noted(f"not drained: {each}", now()))
        if sleeper is not None:
            sleeper.close()

    def _sleeper(self) -> segstore.ShareConsumer:
        """Return a consumer that has got records."""
        sleeper = segstore.ShareConsumer(
            self.store, *self.plan.topics, group_id=GROUP, share_acknowledgement_mode="explicit"
        )
        polled = sleeper.poll(SLEEPER_MS)
        for tp, records in polled.items():
            rows = [(each.offset, each.delivery_count, each.value.decode()) for each in records]
            self.tell(Got("sleeper", tuple(tp), rows, now()))  # type: ignore[arg-type]
        sleeper.unsubscribe()  # its partitions are for others, its locks stay
        return sleeper

    def _run(self, work: list[tuple[str, Callable[[], None]]]) -> None:
        threads = [
            threading.Thread(target=self._guarded, args=(call,), name=name, daemon=True)
            for name, call in work
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():
                thread.join(0.1)  # signals come between

    def _guarded(self, call: Callable[[], None]) -> None:
        try:
            call()
        except BaseException:
            logging.getLogger("queue_judge").exception("a thread failed")
            sys.stderr.flush()
            os._exit(3)

    def _is_drained(self) -> bool:
        return not self._left()

    def _left(self) -> list[str]:
        """Return the partitions in which something is left."""
        share, found = shared(self.store, ShareCoordinator), []
        for topic in self.plan.topics:
            info = self.store.topics()[topic]
            for number in info.partition_ids:
                leader = share._leaders.get(*ShareKey(GROUP, info.topic_id, number))
                end = self.store.partition(topic, number).high_watermark
                if leader is None:
                    found.append(f"{topic}-{number} is not led; it ends at {end}")
                elif leader.core.lag(end) or leader.core.in_flight():
                    runs = [run.values() for run in leader.core.runs()[:5]]
                    found.append(f"{topic}-{number}: {leader.core.start} of {end}: {runs}")
        return found


def main(directory: str, told: str, life: str, port: str, advertised: str, plan: str, how: str) -> None:
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)
    logging.basicConfig(level=logging.WARNING)
    drawn, clock = Plan.loaded(plan), SteppedClock()
    Tap(Telling(Path(told)), int(life)).install()
    defects.plant(drawn.defect, clock)
    with segstore.open(directory, config=drawn.config, clock=clock) as store:
        owner = Owner(store, clock, Path(told), int(life), drawn)
        owner.prepare()
        server = segstore.serve(store, port=int(port), advertised=f"127.0.0.1:{advertised}")
        Path(told).with_name("port").write_text(str(server.port))
        owner.drain() if how == "drain" else owner.storm()


if __name__ == "__main__":
    main(*sys.argv[1:])
