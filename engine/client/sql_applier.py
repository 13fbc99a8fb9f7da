"""Committed transactions applied to an SQL database, each exactly once.

The last applied transaction of each partition is stored in the database itself, in a table that the application provides:

======================  ===================  ==================================================================
column                  type                 what it is
======================  ===================  ==================================================================
``PARTITION_ID``        integer primary key  the partition
``HIGH_WATER_MARK``     bigint               the last transaction that was applied; -1: none
======================  ===================  ==================================================================

The release's helper uses the same table.  `SqlApplier` describes how a transaction is applied exactly once.

Any driver of DB-API 2.0 (PEP 249) will do, unless it commits by itself (autocommit).
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import re
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

from waltzctl.engine.amounts import check_at_least
from waltzctl.engine.client.log_client import LogClient
from waltzctl.engine.client.log_transaction import Transaction
from waltzctl.engine.errors import DeadlineError, InvalidRequestError, RefusedError
from waltzctl.engine.net.retries import pause_after

T = TypeVar("T")
_MARKERS = {"qmark": ("?", "?"), "numeric": (":1", ":2"), "format": ("%s", "%s"), "pyformat": ("%s", "%s")}
"""The placeholders of two parameters, by the driver's ``paramstyle``; ``named`` is handled apart."""
_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)?", re.ASCII)
_BLANK = r"[\s;\ufeff]|--[^\r\n]*|\#[^\r\n]*|\*/"
_NOTHING = rf"(?:{_BLANK}|/\*M?!\d*|/\*.*?\*/)*+"
"""What may precede a statement.  A comment ``/*! ... */`` is not skipped: MySQL and MariaDB execute its contents."""
_NOTHING_NESTED = re.compile(rf"(?:{_BLANK})*+")
_COMMENT_EDGE = re.compile(r"/\*|\*/")
_ENDING = r"COMMIT|END|ABORT|START\s+TRANSACTION|ROLLBACK(?!\s+((WORK|TRANSACTION)\s+)?TO\b)"
_ENDS = re.compile(rf"{_NOTHING}({_ENDING}|BEGIN)\b", re.IGNORECASE | re.DOTALL)
_ENDS_BEHIND = re.compile(rf"{_NOTHING}({_ENDING})\b", re.IGNORECASE | re.DOTALL)
"""As `_ENDS`, for a statement after another one; without BEGIN, which begins a block there as well."""
_HAS_BODY = re.compile(
    rf"{_NOTHING}CREATE\b((?!\b(TABLE|VIEW|INDEX)\b)[^;])*?\b(TRIGGER|FUNCTION|PROCEDURE|PACKAGE|EVENT)\b",
    re.IGNORECASE | re.DOTALL,
)
"""A definition whose body has statements that are not executed now.  Not a table: that may have a column named ``event``."""
_SEMICOLONS = tuple(
    re.compile(
        rf"'(?:{within}|'')*+'|\"[^\"]*\"|`[^`]*`|\$(\w*)\$.*?\$\1\$|--[^\r\n]*|/\*(?!M?!).*?\*/|;",
        re.DOTALL | re.ASCII,
    )
    for within in (r"[^']", r"[^'\\]|\\.")
)
"""Quoted texts and comments, in which a semicolon ends no statement, and the semicolons outside of them.

Two variants: in a text a backslash is an ordinary character (standard SQL), or it escapes the next one (MySQL).
"""
_BLOCK = re.compile(r"\bBEGIN\b", re.IGNORECASE)
_CURSOR = frozenset(
    (
        *("arraysize", "callproc", "close", "description", "fetchall", "fetchmany", "fetchone", "lastrowid", "nextset"),
        *("rowcount", "setinputsizes", "setoutputsize"),
    )
)
"""The attributes of a DB-API cursor that cannot end a transaction."""


@dataclass(frozen=True, slots=True)
class SqlDatabase:
    """A database and the properties of its driver.

    `connect` opens a connection; it is called, and the connection used, in one thread.  `error`, `paramstyle`: the driver's
    ``Error`` and ``paramstyle``.  `table`: the table of high-water marks.  An SQL transaction that fails with `error` is retried
    after `first_retry` seconds, then after twice as long each time, up to `longest_retry`, for at most `timeout` seconds from the
    first failure.
    """

    connect: Callable[[], Any]
    error: type[Exception]
    paramstyle: str
    table: str = "HIGH_WATER_MARKS"
    timeout: float = 60.0
    first_retry: float = 0.01
    longest_retry: float = 10.0

    def __post_init__(self) -> None:
        if self.paramstyle not in (*_MARKERS, "named"):
            raise InvalidRequestError(
                f"{self.paramstyle!r}: no paramstyle of DB-API 2.0",
                advice="give the driver's own: its attribute paramstyle",
            )
        if not _NAME.fullmatch(self.table):
            raise InvalidRequestError(f"{self.table!r}: no name of a table", advice="letters, digits and underscores")
        for name in ("timeout", "first_retry", "longest_retry"):
            check_at_least(name, getattr(self, name), 0)


class SqlCursor:
    """A cursor for the application.  What would end the SQL transaction raises InvalidRequestError: the applier ends it."""

    def __init__(self, cursor: Any) -> None:
        self._cursor = cursor

    def execute(self, statement: Any, *parameters: Any) -> SqlCursor:
        """As the driver's `execute`; returns this cursor.  `statement`: see `_text_of`."""
        _check_statement(_text_of(statement, self._cursor))
        self._cursor.execute(statement, *parameters)
        return self

    def executemany(self, statement: Any, rows: Sequence[Any]) -> SqlCursor:
        """As the driver's `executemany`; returns this cursor."""
        _check_statement(_text_of(statement, self._cursor))
        self._cursor.executemany(statement, rows)
        return self

    def __iter__(self) -> Iterator[Any]:
        return iter(self._cursor.fetchone, None)  # every driver has `fetchone`, not every cursor is iterable

    def __getattr__(self, name: str) -> Any:
        if name in _CURSOR:
            return getattr(self._cursor, name)
        raise _forbidden(name)


class SqlTransaction:
    """The SQL transaction in which a transaction is applied: it provides cursors, and cannot be committed or rolled back."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def cursor(self) -> SqlCursor:
        """A new cursor."""
        return SqlCursor(self._connection.cursor())

    def execute(self, statement: Any, *parameters: Any) -> SqlCursor:
        """Execute a statement with a new cursor, and return the cursor."""
        return self.cursor().execute(statement, *parameters)

    def __getattr__(self, name: str) -> Any:
        raise _forbidden(name)


Apply = Callable[[SqlTransaction, Transaction, bytes], object]
"""Makes the application's changes for a transaction and its data.  Called again after an SQL error."""


def _forbidden(name: str) -> Exception:
    if name.startswith("__"):
        return AttributeError(name)
    return InvalidRequestError(
        f"{name} is not for the function that applies a transaction",
        advice="leave it out: the changes and the mark are committed together when the function returns",
    )


def _refuse_coroutine(given: object) -> None:
    """Raise InvalidRequestError where `apply` returned a coroutine or generator: it has executed nothing yet.

    Without this the mark would be committed and the changes would be missing.
    """
    if inspect.isawaitable(given) or inspect.isgenerator(given) or inspect.isasyncgen(given):
        if inspect.iscoroutine(given):
            given.close()
        kind = "coroutine" if inspect.isawaitable(given) else "generator"
        raise InvalidRequestError(
            f"the function that applies a transaction is a {kind}, of which nothing was executed",
            advice="make it a plain function, without yield: it is called in a thread of its own, and may block",
        )


def _text_of(statement: Any, cursor: Any) -> str:
    """The text of a statement, which may be a str, bytes, or a composed statement of psycopg.

    Bytes are decoded as Latin-1, which is enough to find keywords.
    """
    if isinstance(statement, str):
        return statement
    if isinstance(statement, bytes):
        return statement.decode("latin-1")
    composed = getattr(statement, "as_string", None)
    if composed is None:
        raise InvalidRequestError(
            f"{type(statement).__name__}: no SQL statement that can be looked at", advice="give a text"
        )
    return str(composed(cursor))


def _check_statement(statement: str) -> None:
    found = _begins_with(_ENDS, statement)
    if found is None and ";" in statement and not _HAS_BODY.match(statement):
        found = _end_behind_another(statement)
    if found:
        raise _forbidden(found.group(1).upper())


def _end_behind_another(statement: str) -> re.Match[str] | None:
    """The first statement after a semicolon that ends a transaction.

    Drivers that pass the text on to the server unchanged, as psycopg does, execute several statements at once.
    """
    for pieces in _SEMICOLONS:
        for piece in pieces.finditer(statement):
            if piece[0] == ";":
                found = _begins_with(_ENDS_BEHIND, statement[piece.end() :])
                if found and not (found[1].upper() == "END" and _BLOCK.search(statement, 0, piece.start())):
                    return found
    return None


def _begins_with(what: re.Pattern[str], statement: str) -> re.Match[str] | None:
    """Match `what` after the leading comments, read both as nested comments and not: databases differ."""
    return what.match(statement) or what.match(_behind_nested_comments(statement))


def _behind_nested_comments(statement: str) -> str:
    """A statement without its leading comments, where comments nest as in PostgreSQL."""
    place, depth = _blank(statement, 0), 0
    while statement.startswith("/*", place):
        for edge in _COMMENT_EDGE.finditer(statement, place):
            depth += 1 if edge[0] == "/*" else -1
            if not depth:
                place = _blank(statement, edge.end())
                break
        else:
            return ""  # the comment has no end
    return statement[place:]


def _blank(statement: str, place: int) -> int:
    found = _NOTHING_NESTED.match(statement, place)
    return place if found is None else found.end()


@dataclass(slots=True)
class SqlApplier:
    """Applies transactions to a database.  Its calls block, and all belong to the thread of the first one.

    A transaction with id `t` is applied in one SQL transaction:

    1. raise the partition's mark from `t` - 1 to `t`; if it was not `t` - 1, another applier has applied `t`: skip it;
    2. call the application's function;
    3. commit both.

    The row of the mark stays locked from step 1 to the commit, so that only one of several appliers works on a partition at a
    time.  After a commit whose outcome is unknown, the retry finds in the mark whether it was done.
    """

    database: SqlDatabase
    apply: Apply
    _marks: dict[int, int] = field(default_factory=dict)
    """By partition, the last transaction that is known to be applied."""
    _connection: Any = None
    """None before the first use and after an error."""
    _stopping: threading.Event = field(default_factory=threading.Event)

    def mark(self, partition: int) -> int:
        """The last applied transaction of a partition; -1: none.  Inserts the partition's row if needed.  Raises as `once`."""
        return self._with_retries(
            f"the mark of partition {partition}", lambda cursor: self._read_or_make(cursor, partition)
        )

    def once(self, transaction: Transaction, data: bytes) -> bool:
        """Apply a transaction unless it was applied before; returns whether this call applied it.

        Raises DeadlineError when the database has failed for `SqlDatabase.timeout` seconds, RefusedError when an earlier
        transaction has not been applied, and what the application raises.  After an error none of its changes are committed.
        """
        partition, number = transaction.partition, transaction.transaction_id
        if self.is_done(transaction):
            return False
        update, values = self._sql(
            "UPDATE {table} SET HIGH_WATER_MARK = {0} WHERE PARTITION_ID = {1}", number, partition
        )
        update += f" AND HIGH_WATER_MARK = {number - 1:d}"

        def attempt(cursor: Any) -> bool:
            cursor.execute(update, values)
            if cursor.rowcount == 1:
                _refuse_coroutine(self.apply(SqlTransaction(self._connection), transaction, data))
                self._check_mark(cursor, partition, number)
                return True
            if cursor.rowcount != 0:
                raise InvalidRequestError(
                    f"{self.database.table}: the driver says that {cursor.rowcount} rows changed where it is one or none",
                    advice="use a driver that counts rows; PARTITION_ID must be the primary key",
                )
            self._marks[partition] = self._read(cursor, partition, missing=-2)
            if self._marks[partition] < number:
                raise RefusedError(
                    f"{self.database.table}: partition {partition} is at {self._marks.pop(partition)}, and transaction {number}"
                    " cannot be applied to it",
                    advice="the mark was changed by somebody else: begin again, which reads it anew",
                )
            return False

        done = self._with_retries(f"transaction {number} of partition {partition}", attempt)
        if done:
            self._marks[partition] = number
        return done

    def is_done(self, transaction: Transaction) -> bool:
        """Whether this applier knows, without a query, that a transaction was applied."""
        return self._marks.get(transaction.partition, -1) >= transaction.transaction_id

    def stop(self) -> None:
        """Retry nothing from now on.  May be called from any thread."""
        self._stopping.set()

    def close(self) -> None:
        """Close the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(self.database.error):
                connection.close()

    # ---- inside --------------------------------------------------------------------------------------------------------

    def _sql(self, text: str, *values: int) -> tuple[str, Any]:
        """A statement with the driver's placeholders, and its parameters."""
        style = self.database.paramstyle
        if style == "named":
            return text.format(":a", ":b", table=self.database.table), dict(zip("ab", values, strict=False))
        return text.format(*_MARKERS[style], table=self.database.table), values

    def _with_retries(self, what: str, attempt: Callable[[Any], T]) -> T:
        """Run `attempt` in an SQL transaction; retry it after an error of the database.

        The time begins with the first error: a dead connection may tell none for longer than that.
        """
        pause, deadline = 0.0, float("inf")
        while True:
            try:
                return self._attempt(attempt)
            except self.database.error as error:
                self.close()  # the error may be the connection's: retry with a new one
                deadline = min(deadline, time.monotonic() + self.database.timeout)
                pause = pause_after(pause, first=self.database.first_retry, longest=self.database.longest_retry)
                if time.monotonic() + pause > deadline or self._stopping.wait(pause):
                    raise DeadlineError(
                        "the database", f"it refused {what} for {self.database.timeout:g} s, at last with: {error}"
                    ) from error

    def _attempt(self, attempt: Callable[[Any], T]) -> T:
        if self._connection is None:
            self._connection = self.database.connect()
            try:
                self._refuse_autocommit()
            except BaseException:
                self.close()  # else the next attempt would take it unchecked
                raise
        try:
            cursor = self._connection.cursor()
            found = attempt(cursor)
            cursor.close()
            self._connection.commit()
        except BaseException:
            try:
                self._connection.rollback()
            except BaseException as error:
                self.close()  # else what is left in it would be committed with the next
                if not isinstance(error, self.database.error):
                    raise
            raise
        return found

    def _refuse_autocommit(self) -> None:
        """Raise InvalidRequestError where the connection commits each statement: a mark could be raised without the changes."""
        connection = self._connection
        cursor = connection.cursor()
        cursor.execute(f"UPDATE {self.database.table} SET HIGH_WATER_MARK = HIGH_WATER_MARK WHERE PARTITION_ID = -1")
        tells = getattr(connection, "get_autocommit", None)  # PyMySQL, mysqlclient: their `autocommit` is a setter
        commits = (
            getattr(connection, "autocommit", None)
            == 1  # cx_Oracle: a number; sqlite3: -1 where isolation_level decides
            or getattr(connection, "in_transaction", True) is False
            or (callable(tells) and bool(tells()))
        )
        cursor.close()
        connection.rollback()
        if commits:
            raise InvalidRequestError(
                "the database's connections commit each statement by themselves",
                advice="open them with autocommit off (sqlite3: isolation_level not None)",
            )

    def _read(self, cursor: Any, partition: int, *, missing: int) -> int:
        cursor.execute(*self._sql("SELECT HIGH_WATER_MARK FROM {table} WHERE PARTITION_ID = {0}", partition))
        row = cursor.fetchone()
        return missing if row is None else int(row[0])

    def _check_mark(self, cursor: Any, partition: int, number: int) -> None:
        """Read the mark again before the commit, to make sure that the SQL transaction is still intact.

        PostgreSQL aborts an SQL transaction at its first error, even one that the application has caught.  A commit would then
        roll back without an error; this query fails instead.
        """
        found = self._read(cursor, partition, missing=-2)
        if found != number:
            raise InvalidRequestError(
                f"{self.database.table}: partition {partition} is at {found} in the SQL transaction in which it was raised to"
                f" {number}",
                advice="the function that applies a transaction must neither end the SQL transaction nor change the mark",
            )

    def _read_or_make(self, cursor: Any, partition: int) -> int:
        mark = self._read(cursor, partition, missing=-2)
        if mark == -2:
            mark = -1  # if another applier inserts the row at the same time, this fails, and the retry reads that row
            cursor.execute(
                *self._sql("INSERT INTO {table} (PARTITION_ID, HIGH_WATER_MARK) VALUES ({0}, {1})", partition, mark)
            )
        self._marks[partition] = mark
        return mark


async def apply_feed(
    client: LogClient,
    partitions: Collection[int],
    database: SqlDatabase,
    apply: Apply,
    *,
    until: Callable[[int], int | None] | None = None,
) -> int:
    """Apply the committed transactions of `partitions` after the marks in the database; returns how many were applied.

    Runs without end, or up to the transactions that `until` returns as for `LogClient.feed`.  The database is used, and `apply`
    called, in one separate thread.  Waits without limit for a cluster that does not answer.  Raises as `SqlApplier.once`,
    `LogClient.feed` and `LogClient.data`.
    """
    loop, applied = asyncio.get_running_loop(), 0
    applier = SqlApplier(database, apply)
    thread = ThreadPoolExecutor(1, "waltz-sql")
    try:
        marks = {number: await loop.run_in_executor(thread, applier.mark, number) for number in partitions}
        async with contextlib.aclosing(client.feed(marks, until=until)) as feed:
            async for one in feed:
                if not applier.is_done(one):
                    data = await client.awaited_data(one)
                    applied += await loop.run_in_executor(thread, applier.once, one, data)
    finally:
        applier.stop()
        await asyncio.shield(loop.run_in_executor(thread, applier.close))  # after the thread's current job
        thread.shutdown(wait=False)
    return applied
