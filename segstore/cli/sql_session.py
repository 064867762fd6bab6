"""`SqlSession`: runs the user's statements on a connection of DuckDB that has a view for each topic of a
store.

On disk: the store is only read. The user's statements may write files, and DuckDB writes temporary files into
the system's temporary directory. Threads: only the main thread calls the methods. Statements run in a thread
of the session, so that the main thread can handle Ctrl-C at once.
"""

from __future__ import annotations

import math
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import click
import duckdb
import pyarrow

from segstore.cli.sql_output import Result
from segstore.errors import SegstoreError
from segstore.storage.store.store import Store
from segstore.tables.typed_columns import WAY_OUT
from segstore.threads import sleeps

if TYPE_CHECKING:
    from typing_extensions import Self

    from segstore.storage.meta.topic_info import TopicInfo

BATCH_ROWS = 8192
"""The number of rows of a result that are in memory at a time, apart from rows in DuckDB's own memory."""
_STEP = 0.05
_LINE = re.compile(r"\n+LINE (\d+): .*", re.DOTALL)
_OURS = re.compile(r".*\bTraceback .*\bsegstore\.errors\.\w+: ", re.DOTALL)
"""Text that DuckDB adds before the message of an error that the scan of a topic has raised."""
_OFFSET = re.compile(r'(?<!")\boffset\b(?!")', re.IGNORECASE)
_WRONG = (duckdb.ParserException, duckdb.CatalogException, duckdb.BinderException)


class WrongQueryError(click.ClickException):
    """Raised if a query is not valid SQL, or names an unknown table or column."""

    exit_code = 2


class SqlSession:
    """Runs statements. `SqlSession` is a context manager, which closes the connection at the end of the
    `with` block.
    """

    def __init__(
        self, store: Store, text: str, values: Mapping[str, Mapping[str, str]], isolation_level: str
    ) -> None:
        """`text` has the statements. For each topic, `values` has the arguments with which its values are
        decoded. Raises the errors of `segstore.duckdb.attach`.
        """
        from segstore.duckdb import attach

        place = os.path.join(tempfile.gettempdir(), f"segstore-sql-{os.getpid()}")
        self._con = duckdb.connect(config={"temp_directory": place})
        self._con.execute("SET TimeZone = 'UTC'")
        # Queries must not find Python variables by their names.
        self._con.execute("SET python_enable_replacements = false")
        self._text, self._line = text, 0
        self._topics = attached(store.topics(), text)
        self._pool = ThreadPoolExecutor(1, "segstore-sql")
        self._running = Future[Any]()
        self._running.cancel()
        attach(self._con, store, topics=self._topics, values=dict(values), isolation_level=isolation_level)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *of: object) -> None:
        self._stop(self._running)
        self._pool.shutdown()
        self._con.close()

    def results(self) -> Iterator[Result]:
        """Run the statements in order. Yield the result of each statement that has result rows. The caller
        must read all rows of a result before it asks for the next result. Raises WrongQueryError,
        SegstoreError.
        """
        at = 0
        for statement in self._call(self._con.extract_statements, self._text):
            query = str(statement.query).lstrip()
            at = max(at, self._text.find(query, at))
            self._line = self._text.count("\n", 0, at)
            relation = self._call(self._con.sql, statement)
            if relation is not None and _has_rows(statement, relation):
                yield self._result(relation)
            elif relation is not None:
                self._call(relation.fetchall)

    def _result(self, relation: Any) -> Result:
        make = getattr(relation, "to_arrow_reader", None) or relation.fetch_record_batch
        reader = self._call(make, BATCH_ROWS)
        batches = iter(partial(self._call, next, reader, None), None)
        return Result(relation.columns, [str(each) for each in relation.types], reader.schema, batches)

    def _call(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """Call DuckDB in the session's thread, and wait for the result. Ctrl-C stops the call. If Ctrl-C came
        within `submit`, the future that `submit` returns would be lost, so this method makes the future
        itself, before the call of `submit`.
        """
        done = self._running = Future[Any]()
        try:
            self._pool.submit(_carry_out, done, call, arguments)
            # A signal that comes just before a sleep does not end the sleep.
            for sleep in sleeps(math.inf):
                if wait([done], sleep).done:
                    break
            return done.result()
        except (duckdb.Error, pyarrow.ArrowException, OSError) as error:
            raise self._statement_error(error) from error
        finally:
            self._stop(done)

    def _stop(self, running: Future[Any]) -> None:
        """Interrupt a running call, and wait until it has stopped. A Ctrl-C during the wait is ignored."""
        while not (running.done() or running.cancel()):
            with suppress(KeyboardInterrupt):
                self._con.interrupt()
                wait([running], _STEP)

    def _statement_error(self, error: Exception) -> Exception:
        """Convert DuckDB's `error` to an error of segstore. Its message is one line."""
        message = _OURS.sub("", str(error)).replace(WAY_OUT, "--on-bad null or --on-bad column passes it by")
        found = _LINE.search(message)
        place = f" (line {self._line + (int(found[1]) if found else 1)})" * ("\n" in self._text.strip())
        message = " ".join(message[: found.start() if found else None].split()) + place
        if not isinstance(error, _WRONG):
            return SegstoreError(message)
        if hint := self._hint(message):
            message += f"{'' if message[-1] in '.!?' else '.'} {hint}"
        return WrongQueryError(message)

    def _hint(self, message: str) -> str:
        """Return a hint for an error message: a name that must be quoted, or the existing topics. If there is
        no hint, return "".
        """
        for name in self._topics:
            if not re.fullmatch(r"[A-Za-z_]\w*", name) and re.search(
                rf'(?<![\w"]){re.escape(name)}', self._text
            ):
                return f'Names of topics as "{name}" are quoted'
        if "Parser Error" in message and _OFFSET.search(self._text):
            return 'The column "offset" is quoted: it is a word of SQL'
        if "Table with name" in message:
            return f"Topics: {', '.join(self._topics) or 'none'}"
        return ""


def _carry_out(done: Future[Any], call: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    if done.set_running_or_notify_cancel():
        try:
            done.set_result(call(*arguments))
        except Exception as error:
            done.set_exception(error)


def attached(topics: Mapping[str, TopicInfo], text: str) -> list[str]:
    """Return the names of the topics that become views. An internal topic becomes a view only if the
    statements name it. For DuckDB, names that differ only in case are equal. If topics have such names, those
    that the statements name become views. If the statements name none of them, one of these topics becomes a
    view.
    """
    named = [name for name in sorted(topics) if name in text]
    seen = {name.lower() for name in named}
    for name in sorted(topics):
        if name.lower() not in seen and not topics[name].internal:
            seen.add(name.lower())
            named.append(name)
    return sorted(named)


def _has_rows(statement: Any, relation: Any) -> bool:
    """Return whether a statement has result rows. A count of changed rows is no result row."""
    kinds = {each.name for each in statement.expected_result_type}
    if "CHANGED_ROWS" in kinds and relation.columns == ["Count"]:
        return bool(statement.type.name == "MULTI")
    return "QUERY_RESULT" in kinds
