"""Serves Spark's checkpoint directories from a compacted topic.

On disk: the topic, through the engine (see `segstore.filetree`). A WebHDFS server listens on the loopback
address, with a secret in its paths, for the client that PySpark ships. This package does not import pyspark.
Threads: any may use a `Checkpoints`; the server has threads of its own.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from segstore.closing import Closing
from segstore.config import arguments
from segstore.errors import InvalidArgumentError
from segstore.filetree import clean_path, file_tree
from segstore.spark.checkpointing.http_server import HOST, CheckpointServer
from segstore.spark.checkpointing.rules import OperationFault, OperationFaults, ServedOperation, Sync
from segstore.spark.checkpointing.webhdfs import WebHdfs
from segstore.storage.store.store import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEME = "segstore"
_CLIENT = "org.apache.hadoop.hdfs.web.WebHdfsFileSystem"
_ROCKSDB = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
}


class Checkpoints(Closing):
    """The checkpoints of a topic, and their server, which runs until `close`. As a context manager it is
    closed at the end of the block. After `close`, all files are durable.
    """

    def __init__(
        self,
        store: Store,
        topic: str = "checkpoints",
        *,
        sync: str = "batch",
        config: Mapping[str, Any] | None = None,
        port: int = 0,
        secret: str | None = None,
    ) -> None:
        arguments.one_of("sync", sync, [level.value for level in Sync])
        secret = secrets.token_urlsafe(18) if secret is None else secret
        if not secret or not secret.replace("-", "").replace("_", "").isalnum() or not secret.isascii():
            raise InvalidArgumentError("secret must be made of letters, digits, - and _")
        self.tree = file_tree(store, topic, config)
        self._faults = OperationFaults()
        hdfs = WebHdfs(self.tree, secret, Sync(sync), self._faults)
        self._server = CheckpointServer(hdfs.serve, port)
        hdfs.port = self.port = self._server.port
        self._secret = secret

    def __repr__(self) -> str:
        return f"<Checkpoints {self.tree.log.topic} at {HOST}:{self.port}>"

    # --- for Spark --------------------------------------------------------------------------

    def url(self, name: str = "", scheme: str = SCHEME) -> str:
        """Return the URL of the checkpoint directory `name`. Raises InvalidArgumentError.

        Scheme "segstore" needs a session that `configure` has set up; Spark's checkpoint file manager for
        this scheme makes fewer requests. Scheme "webhdfs" works in every session.
        """
        arguments.one_of("scheme", scheme, [SCHEME, "webhdfs"])
        return f"{scheme}://{HOST}:{self.port}/{self._secret}{clean_path(name)}".rstrip("/")

    def configure(self, spark: SparkSession, *, rocksdb: bool = False) -> None:
        """Register segstore:// with a session, and set /rdd of these checkpoints as the directory for
        checkpoints of the session's RDDs and DataFrames.

        `rocksdb`: new queries keep their state in RocksDB with a changelog, so that a batch writes only the
        changes of the state.
        """
        context = spark.sparkContext
        context._jsc.hadoopConfiguration().set(f"fs.{SCHEME}.impl", _CLIENT)
        context.setCheckpointDir(self.url("rdd"))
        for name, value in _ROCKSDB.items() if rocksdb else ():
            spark.conf.set(name, value)

    # --- for studies --------------------------------------------------------------------------

    @property
    def offset(self) -> int:
        """Return the log end offset. The directories' state at this offset can be read later."""
        return self.tree.log.end_offset

    @property
    def operations(self) -> list[ServedOperation]:
        """Return the last 10,000 served operations, in the order in which they were finished."""
        return list(self._faults.operations)

    @property
    def counts(self) -> Counter[str]:
        """Return the number of times each operation was served."""
        return Counter(self._faults.counts)

    def delay(
        self,
        seconds: float,
        operation: str | None = None,
        path: str = "*",
        *,
        nth: int = 1,
        times: int = 1,
        after: bool = False,
    ) -> OperationFault:
        """Delay the `nth` matching operation from now on, and the next `times - 1` matching ones, by
        `seconds`.

        `operation` is a WebHDFS operation, such as "RENAME", or None for any; `path` is a pattern, with * and
        ?, of the operation's path in the tree (a RENAME's target). With `after` the delay comes after the
        operation instead of before it. Raises InvalidArgumentError.
        """
        return self._faults.add("delay", operation, path, nth, times, after=after, seconds=seconds)

    def fail(
        self,
        operation: str | None = None,
        path: str = "*",
        *,
        nth: int = 1,
        times: int = 1,
        after: bool = False,
    ) -> OperationFault:
        """Make matching operations fail with an IOException. The arguments choose operations as in `delay`.
        With `after`, the operation is done before the failure is reported.
        """
        return self._faults.add("fail", operation, path, nth, times, after=after)

    def drop(
        self,
        operation: str | None = None,
        path: str = "*",
        *,
        nth: int = 1,
        times: int = 1,
        after: bool = False,
    ) -> OperationFault:
        """Cut the connection of matching operations without an answer. The arguments choose operations as in
        `delay`. Java's
        client may repeat the request by itself.
        """
        return self._faults.add("drop", operation, path, nth, times, after=after)

    def heal(self) -> None:
        """Remove all faults."""
        self._faults.clear()

    # --- closing ------------------------------------------------------------------------------

    def close(self) -> None:
        """Stop the server, and flush all files. A second call does nothing. Raises StorageError."""
        self._server.close()
        if not self.tree.log.context.closed:
            self.tree.flush()
