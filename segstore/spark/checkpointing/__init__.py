"""Serves Spark's checkpoint directories from a compacted topic.

On disk: the topic, through the engine (see `segstore.filetree`). A WebHDFS server listens on the loopback
address for the WebHDFS client that PySpark contains; the paths of its URLs contain a secret. This package
does not import pyspark. Threads: any thread may use a `Checkpoints`; the server has threads of its own.
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
    """The checkpoints of a topic, and the server for them, which runs until `close`. After `close`, all files
    are durable. If the object is used in a `with` statement, it is closed at the end of the block.
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

        `scheme` "webhdfs" works in every session. `scheme` "segstore" works only in a session that was passed
        to `configure`; Spark then makes fewer requests.
        """
        arguments.one_of("scheme", scheme, [SCHEME, "webhdfs"])
        return f"{scheme}://{HOST}:{self.port}/{self._secret}{clean_path(name)}".rstrip("/")

    def configure(self, spark: SparkSession, *, rocksdb: bool = False) -> None:
        """Register the scheme segstore:// with a session, and set the directory /rdd of these checkpoints as
        the session's directory for checkpoints of RDDs and DataFrames.

        If `rocksdb` is True, new queries use RocksDB with a changelog for their state, so that a batch writes
        only the changes of the state.
        """
        context = spark.sparkContext
        context._jsc.hadoopConfiguration().set(f"fs.{SCHEME}.impl", _CLIENT)
        context.setCheckpointDir(self.url("rdd"))
        for name, value in _ROCKSDB.items() if rocksdb else ():
            spark.conf.set(name, value)

    # --- for studies --------------------------------------------------------------------------

    @property
    def offset(self) -> int:
        """Return the topic's log end offset; by it the present state of the directories can be read later."""
        return self.tree.log.end_offset

    @property
    def operations(self) -> list[ServedOperation]:
        """Return the last 10,000 operations that the server has completed, in the order of completion."""
        return list(self._faults.operations)

    @property
    def counts(self) -> Counter[str]:
        """Return a dict from the name of each operation to the number of times that it was served."""
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
        """Delay `times` matching operations by `seconds`, beginning with the `nth` one after this call.

        `operation` is the name of a WebHDFS operation, such as "RENAME"; None matches any operation. `path`
        is a pattern with * and ?, which the operation's path in the tree must match; for a RENAME this is the
        target. If `after` is True, the delay comes after the operation, else before it. Raises
        InvalidArgumentError.
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
        """Answer matching operations with an IOException. The arguments select operations as in `delay`. If
        `after` is True, the operation is carried out before the error is sent.
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
        """Close the connection of matching operations without an answer. The arguments select operations as
        in `delay`. Java's client may repeat the request by itself.
        """
        return self._faults.add("drop", operation, path, nth, times, after=after)

    def heal(self) -> None:
        """Remove the faults that `delay`, `fail` and `drop` have set."""
        self._faults.clear()

    # --- closing ------------------------------------------------------------------------------

    def close(self) -> None:
        """Stop the server, and make all files durable. A second call does nothing. Raises StorageError."""
        self._server.close()
        if not self.tree.log.context.closed:
            self.tree.flush()
