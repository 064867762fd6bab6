"""The primary of the demo's hot standby, in a process that is killed. It serves a new store, and appends
records one by one once its standby has connected.

On disk: the store at the path of its argument. Threads: the server's own. Standard output has the server's
address first, then the number of each acknowledged record.
"""

from __future__ import annotations

import sys
from itertools import count

import segstore

TOPIC = "ledger"


def main(path: str) -> None:
    """Serve, wait for a line on standard input, and append until the process is killed."""
    with segstore.open(path) as store, segstore.serve(store, port=0) as server:
        store.create_topic(TOPIC)
        print(server.bootstrap_servers, flush=True)
        sys.stdin.readline()
        log = store.partition(TOPIC, 0)
        for number in count():
            log.append(b"entry %d" % number)
            print(number, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
