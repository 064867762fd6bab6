"""A web service on asyncio that keeps events in a log of its own.

    pip install fastapi uvicorn                        # beside segstore
    cd examples && STORE=events-log uvicorn web_service:app --port 8000
    curl -X POST http://127.0.0.1:8000/events/alice -H 'Content-Type: application/json' -d '{"page": "/"}'
    curl 'http://127.0.0.1:8000/events/3?start=0'      # partition 3; the answer to POST says which it is

One process has the log open, so uvicorn runs one worker; workers.py is the way for several. Requests that
come at the same time share an append, since the producer batches for `linger_ms`. A client that gives up does
not take its event back.

Ctrl-C and SIGTERM: uvicorn answers what it has begun, then `lifespan` sends what the producer still holds and
closes the store. `kill -9`: each event that was answered with 201 is in the log; the next start recovers it.
For answers that outlive a power cut, give the topic `flush.messages=1`.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import islice
from typing import Any

from fastapi import Body, FastAPI, HTTPException

import segstore

TOPIC, PARTITIONS = "events", 4


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Have store and producer open while the service runs."""
    with segstore.open(os.environ.get("STORE", "events-log")) as store:
        store.ensure_topic(TOPIC, partitions=PARTITIONS)
        async with segstore.AsyncProducer(store, linger_ms=2) as producer:
            app.state.store, app.state.producer = store, producer
            yield


app = FastAPI(lifespan=lifespan)


@app.post("/events/{user}", status_code=201)
async def add(user: str, event: Any = Body()) -> dict[str, int]:  # noqa: B008  FastAPI reads the default
    """Append an event; the events of one user are in one partition, in order."""
    try:
        sent = await app.state.producer.send_and_wait(TOPIC, json.dumps(event).encode(), key=user.encode())
    except segstore.RecordTooLargeError as error:
        raise HTTPException(413, str(error)) from error
    except segstore.SegstoreError as error:  # such as a full disk
        raise HTTPException(503, str(error)) from error
    return {"partition": sent.partition, "offset": sent.offset}


@app.get("/events/{partition}")
async def events(partition: int, start: int = 0, most: int = 100) -> list[dict[str, Any]]:
    """Return events of a partition from an offset on. A read may wait for the disk, so a thread does it."""
    try:
        log = app.state.store.partition(TOPIC, partition)
    except segstore.UnknownTopicOrPartitionError as error:
        raise HTTPException(404, str(error)) from error
    return await asyncio.to_thread(_events, log, start, most)


def _events(log: segstore.PartitionLog, start: int, most: int) -> list[dict[str, Any]]:
    return [
        {"offset": record.offset, "user": record.key.decode(), "event": json.loads(record.value)}
        for record in islice(log.scan(max(start, log.start_offset)), most)
    ]
