"""`python -m queue_judge.worker KIND ADDRESS TOLD NAME PLAN`: a process with one consumer on the wire. It
ends when consumers are to end.
"""

from __future__ import annotations

import faulthandler
import logging
import signal
import sys
from pathlib import Path

from .plan import Plan
from .told import Flags, Telling


def main(kind: str, address: str, told: str, name: str, plan: str) -> None:
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)
    logging.disable(logging.ERROR)  # libraries tell of each connection that is cut
    flags, telling, drawn = Flags(Path(told)), Telling(Path(told)), Plan.loaded(plan)
    if kind == "raw":
        from .raw import RawConsumer

        RawConsumer(address, drawn, telling, name).run(lambda: flags.is_over)
        return
    from .librdkafka import LibrdkafkaConsumer

    explicit = kind == "librdkafka"
    LibrdkafkaConsumer(address, drawn, telling, name, explicit).run(lambda: flags.is_over)


if __name__ == "__main__":
    main(*sys.argv[1:])
