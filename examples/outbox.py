"""An outbox beside SQLite: a row and the event that tells of it are written together, or not at all.

    python examples/outbox.py shop.db shop-log        # accounts and events until Ctrl-C
    python examples/outbox.py shop.db shop-log 100    # 100 accounts, then it ends
    segstore consume accounts --store shop-log        # the events

A transaction of SQLite writes the account and, into the table `outbox`, its event. A relay appends the events
to the log in the order of their ids, syncs them, and only then deletes the rows. So an event is in the log
exactly once, whenever the process is killed:

- before the transaction has committed: neither the account nor the event is there;
- before the append: the row is there still, and the next start relays it;
- between the append and the delete: the last record of the log tells the id up to which the rows are in the
  log already, and the next start deletes these without appending them again.

Ctrl-C is one more such end: it needs no care of its own.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sqlite3
from collections.abc import Iterable

import segstore

TABLES = """
PRAGMA journal_mode = WAL;
CREATE TABLE IF NOT EXISTS accounts (name TEXT PRIMARY KEY, cents INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS outbox (id INTEGER PRIMARY KEY AUTOINCREMENT, event TEXT NOT NULL);
"""


def open_account(database: sqlite3.Connection, name: str, cents: int) -> None:
    """Do what the application exists for, and note the event in the same transaction."""
    event = json.dumps({"type": "opened", "name": name, "cents": cents})
    with database:  # commits, or rolls back where an exception leaves it
        database.execute("INSERT INTO accounts VALUES (?, ?)", (name, cents))
        database.execute("INSERT INTO outbox (event) VALUES (?)", (event,))


def relayed(log: segstore.PartitionLog) -> int:
    """Return the id of the last event that is in the log; 0 for none. AUTOINCREMENT gives no id twice."""
    if log.end_offset == 0:
        return 0
    (_, number), *_ = log.read_one(log.end_offset - 1).headers
    return int(number)


def relay(database: sqlite3.Connection, log: segstore.PartitionLog, most: int = 1000) -> int:
    """Move events from the outbox to the log; returns how many rows were there, at most `most`."""
    rows = database.execute("SELECT id, event FROM outbox ORDER BY id LIMIT ?", (most,)).fetchall()
    last = relayed(log)
    new = [(number, event) for number, event in rows if number > last]
    if new:
        log.append_batch(
            [event.encode() for _, event in new],
            headers=[[("outbox id", b"%d" % number)] for number, _ in new],
        )
    if rows:
        log.flush()  # the rows go only after their events have reached the disk
        with database:
            database.execute("DELETE FROM outbox WHERE id <= ?", (rows[-1][0],))
    return len(rows)


def names(database: sqlite3.Connection, count: int | None) -> Iterable[str]:
    """Yield new names; without a `count` there is no end."""
    (number,) = database.execute("SELECT count(*) FROM accounts").fetchone()
    last = None if count is None else number + count
    while number != last:
        yield f"account-{number}"
        number += 1


def main(database_path: str, log_path: str, count: int | None = None) -> None:
    with contextlib.closing(sqlite3.connect(database_path)) as database, segstore.open(log_path) as store:
        database.executescript(TABLES)
        store.ensure_topic("accounts")
        log = store.partition("accounts")
        while relay(database, log):  # what the last run has left
            pass
        print(f"{log.end_offset} events", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            for done, name in enumerate(names(database, count), 1):
                open_account(database, name, 500)
                if done % 10 == 0:  # in a real program a thread does this, with a connection of its own
                    relay(database, log)
        relay(database, log)
        print(f"{log.end_offset} events", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(usage="outbox.py DATABASE STORE [COUNT]")
    parser.add_argument("database_path")
    parser.add_argument("log_path")
    parser.add_argument("count", nargs="?", type=int)
    main(**vars(parser.parse_args()))
