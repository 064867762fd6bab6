"""The program of the primary in the demo's part with two machines. Its process is killed later. It serves a
new store, and appends records one by one when it has read a line from standard input. On disk: the store at
the path that is the program's argument. Threads: one, and the server's threads. The program prints the
server's address, and then the number of each acknowledged record.
"""

from __future__ import annotations

import sys
from itertools import count

import segstore

TOPIC = "ledger"


def main(path: str) -> None:
    """Serve a new store at `path`, wait for a line on standard input, and append records until the process is
    killed.
    """
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
