"""Transactions applied to an SQL database: exactly once, wherever it ends, whoever else is at it, whatever the database says."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.client.test_log_client import Around, run
from tests.server.storing import PARTITION
from waltzctl.engine.client import sql_applier
from waltzctl.engine.client.log_transaction import Draft, Transaction
from waltzctl.engine.client.sql_applier import (
    SqlApplier,
    SqlCursor,
    SqlDatabase,
    SqlTransaction,
    _check_statement,
    apply_feed,
)
from waltzctl.engine.errors import DeadlineError, InvalidRequestError, RefusedError
from waltzctl.formats.request_id import RequestId

Step = Callable[[str], None]


class Killed(BaseException):
    """The process ends."""


@dataclass
class Driver:
    """SQLite, whose every step the test can let fail: `step` is told in front of it and behind it."""

    path: Path
    step: Step = lambda _: None
    made: list[sqlite3.Connection] = field(default_factory=list)

    def connect(self) -> Connection:
        self.step("connect")
        self.made.append(sqlite3.connect(self.path, timeout=5))
        return Connection(self.made[-1], self)

    def end(self) -> None:
        """As when the process ends: what is not committed is gone."""
        for one in self.made:
            one.close()


@dataclass
class Connection:
    real: sqlite3.Connection
    driver: Driver

    def cursor(self) -> Cursor:
        return Cursor(self.real.cursor(), self.driver)

    def commit(self) -> None:
        self.driver.step("before commit")
        self.real.commit()
        self.driver.step("after commit")

    def rollback(self) -> None:
        self.driver.step("rollback")
        self.real.rollback()

    def close(self) -> None:
        self.real.close()


@dataclass
class Cursor:
    real: sqlite3.Cursor
    driver: Driver

    def execute(self, statement: str, *parameters: Any) -> None:
        self.driver.step(f"before {statement[:6]}")
        self.real.execute(statement, *parameters)
        self.driver.step(f"after {statement[:6]}")

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)


def made(path: Path) -> Path:
    """A database."""
    with contextlib.closing(sqlite3.connect(path / "db", isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("CREATE TABLE HIGH_WATER_MARKS (PARTITION_ID INTEGER PRIMARY KEY, HIGH_WATER_MARK BIGINT)")
        connection.execute("CREATE TABLE applied (id INTEGER, data BLOB)")
    return path / "db"


def database(driver: Driver, **more: Any) -> SqlDatabase:
    options = {"timeout": 5.0, "first_retry": 0.001, "longest_retry": 0.002, **more}
    return SqlDatabase(driver.connect, sqlite3.Error, sqlite3.paramstyle, **options)


def insert(sql: SqlTransaction, transaction: Transaction, data: bytes) -> None:
    cursor = sql.cursor()
    cursor.execute("INSERT INTO applied VALUES (?, ?)", (transaction.transaction_id, data))


def number(transaction_id: int, partition: int = 0) -> Transaction:
    return Transaction(partition, transaction_id, RequestId(1, 1, partition, transaction_id), 0)


def applied(path: Path) -> list[int]:
    connection = sqlite3.connect(path)
    found = [row[0] for row in connection.execute("SELECT id FROM applied ORDER BY rowid")]
    connection.close()
    return found


def mark(path: Path) -> int:
    connection = sqlite3.connect(path)
    (found,) = connection.execute("SELECT HIGH_WATER_MARK FROM HIGH_WATER_MARKS WHERE PARTITION_ID = 0").fetchone()
    connection.close()
    return int(found)


def apply_three(driver: Driver, apply: Any = insert, **more: Any) -> list[bool]:
    applier = SqlApplier(database(driver, **more), apply)
    first = applier.mark(0) + 1
    done = [applier.once(number(one), b"%d" % one) for one in range(first, 3)]
    applier.close()
    return done


def steps_of(path: Path) -> list[str]:
    steps: list[str] = []
    apply_three(Driver(path, steps.append))
    return steps


def test_each_is_applied_once_wherever_the_process_ends(tmp_path: Path) -> None:
    (tmp_path / "whole").mkdir()
    steps = steps_of(made(tmp_path / "whole"))
    assert steps.count("after commit") == 4
    assert steps.count("before INSERT") == 4
    for end in range(len(steps)):
        directory = tmp_path / str(end)
        directory.mkdir()
        path, left = made(directory), [end]

        def step(_name: str, left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] < 0:  # and nothing is done after it
                raise Killed

        driver = Driver(path, step)
        with pytest.raises(Killed):
            apply_three(driver)
        driver.end()
        apply_three(Driver(path))
        assert applied(path) == [0, 1, 2], f"ended at {steps[end]}, step {end}"
        assert mark(path) == 2


def test_an_sql_error_at_any_step_is_tried_again(tmp_path: Path) -> None:
    (tmp_path / "whole").mkdir()
    steps = steps_of(made(tmp_path / "whole"))
    for wrong in range(len(steps)):
        directory = tmp_path / str(wrong)
        directory.mkdir()
        path, left = made(directory), [wrong]

        def step(_name: str, left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] == -1:
                raise sqlite3.OperationalError("gone")

        apply_three(Driver(path, step))
        assert applied(path) == [0, 1, 2], f"failed at {steps[wrong]}, step {wrong}"
        assert mark(path) == 2


def test_a_connection_that_broke_is_not_used_again(tmp_path: Path) -> None:
    path, broken = made(tmp_path), [False]

    def step(name: str) -> None:
        if name == "connect":
            broken[0] = False
        elif broken[0] and name != "rollback":  # which some drivers do without the database
            raise sqlite3.OperationalError("the connection is broken")

    def apply(sql: SqlTransaction, transaction: Transaction, data: bytes) -> None:
        insert(sql, transaction, data)
        if len(driver.made) == transaction.transaction_id + 1:
            broken[0] = True

    driver = Driver(path, step)
    assert apply_three(driver, apply) == [True] * 3
    assert len(driver.made) == 4
    assert applied(path) == [0, 1, 2]


def test_what_could_not_be_rolled_back_is_not_committed_later(tmp_path: Path) -> None:
    path, wrong = made(tmp_path), [True]

    def step(name: str) -> None:
        if name == "rollback" and len(driver.made) == 1 and tried:
            raise sqlite3.OperationalError("the connection is broken")

    def apply(sql: SqlTransaction, transaction: Transaction, data: bytes) -> None:
        tried.append(transaction)
        insert(sql, transaction, data)
        if wrong[0]:
            raise ZeroDivisionError

    driver, tried = Driver(path, step), []
    applier = SqlApplier(database(driver), apply)
    applier.mark(0)
    with pytest.raises(ZeroDivisionError):
        applier.once(number(0), b"")
    wrong[0] = False
    assert applier.once(number(0), b"")
    assert (applied(path), mark(path)) == ([0], 0)


def test_a_database_that_refuses_for_too_long_is_told(tmp_path: Path) -> None:
    path, tried = made(tmp_path), []

    def apply(sql: SqlTransaction, transaction: Transaction, data: bytes) -> None:
        tried.append(transaction.transaction_id)
        insert(sql, transaction, data)
        sql.execute("INSERT INTO nowhere VALUES (1)")

    with pytest.raises(DeadlineError, match=r"transaction 0 of partition 0.*no such table: nowhere"):
        apply_three(Driver(path), apply, timeout=0.02)
    assert len(tried) > 1
    assert applied(path) == []
    assert mark(path) == -1


def test_an_error_that_was_told_late_is_retried_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection whose server is gone without a word, or was closed while the process was stopped: the database is well."""
    path, now = made(tmp_path), [0.0]
    monkeypatch.setattr(sql_applier, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def apply(sql: SqlTransaction, transaction: Transaction, data: bytes) -> None:
        if not now[0]:
            now[0] = 1000.0
            raise sqlite3.OperationalError("connection timed out")
        insert(sql, transaction, data)

    assert apply_three(Driver(path), apply, timeout=60.0) == [True, True, True]
    assert applied(path) == [0, 1, 2]


def test_what_the_application_raises_propagates_and_leaves_nothing(tmp_path: Path) -> None:
    path, tried = made(tmp_path), []

    def apply(sql: SqlTransaction, transaction: Transaction, data: bytes) -> None:
        insert(sql, transaction, data)
        tried.append(transaction.transaction_id)
        if tried == [0, 1]:
            raise ZeroDivisionError

    applier = SqlApplier(database(Driver(path)), apply)
    assert applier.mark(0) == -1
    assert applier.once(number(0), b"")
    with pytest.raises(ZeroDivisionError):
        applier.once(number(1), b"")
    assert (applied(path), mark(path)) == ([0], 0)
    assert applier.once(number(1), b"")
    assert (applied(path), mark(path)) == ([0, 1], 1)


@pytest.mark.turns(8)
@pytest.mark.parametrize(
    "wrong",
    [
        lambda sql: sql.commit(),
        lambda sql: sql.rollback(),
        lambda sql: sql.close(),
        lambda sql: sql.cursor().connection,
        lambda sql: sql.executescript("SELECT 1"),
        lambda sql: sql.cursor().executescript("SELECT 1"),
        lambda sql: sql.execute("commit"),
        lambda sql: sql.cursor().execute(" ROLLBACK"),
        lambda sql: sql.execute("SELECT 1").executemany("END", []),
        *(
            lambda sql, before=before: sql.execute(f"{before}COMMIT")
            for before in (
                *(
                    "/* x */ ",
                    "/**/",
                    "/* a\nb */-- c\n",
                    "-- x\n",
                    "-- x\r",
                    "--\n\n",
                    "# x\n",
                    ";",
                    " ; ;\n",
                    "\ufeff",
                ),
                *("/*!", "/*!40101 ", "/* /* */ */ ", "/*M! ", "/*M!100101 ", "/* a /* b */ c */ ", "/*/**//**/*/ ; "),
            )
        ),
        lambda sql: sql.execute("/**/" * 100 + "Begin"),
        *(
            lambda sql, text=text: sql.execute(text)
            for text in (
                "INSERT INTO applied VALUES (1, ''); COMMIT",
                "SELECT 1;;/* x */\nend ; SELECT 2",
                "SELECT ';'';' , \"'\", `'`, $a$ ' $a$ /* ' */ -- '\n; ROLLBACK",
                r"SELECT 'C:\'; COMMIT",
                r"SELECT 'it\'s'; COMMIT",
                "SELECT 1; /* a /* b */ c */ COMMIT AND CHAIN",
                "CREATE TEMP TABLE kept (event TEXT); COMMIT",
                "CREATE VIEW IF NOT EXISTS kept AS SELECT 1 AS event; COMMIT",
            )
        ),
    ],
)
def test_the_application_cannot_end_the_sql_transaction(tmp_path: Path, wrong: Callable[[Any], None]) -> None:
    path, tried = made(tmp_path), []

    def apply(sql: SqlTransaction, transaction: Transaction, data: bytes) -> None:
        tried.append(transaction)
        insert(sql, transaction, data)
        wrong(sql)

    with pytest.raises(InvalidRequestError, match="is not for the function"):
        apply_three(Driver(path), apply)
    assert len(tried) == 1  # it is no error of the database, which would be tried again
    assert (applied(path), mark(path)) == ([], -1)


class Composed:
    """As psycopg's: a statement of parts, which the driver makes a text of, for its connection."""

    def __init__(self, text: str) -> None:
        self.text = text

    def as_string(self, cursor: Any) -> str:
        assert isinstance(cursor, Taking)
        return self.text


class Taking:
    """A cursor that takes them."""

    def __init__(self) -> None:
        self.executed: list[Any] = []

    def execute(self, statement: Any) -> None:
        self.executed.append(statement)


@pytest.mark.parametrize("kind", [str, str.encode, Composed])
def test_statements_that_are_composed_or_bytes_are_looked_at_like_texts(kind: Callable[[str], Any]) -> None:
    real = Taking()
    cursor, fine = SqlCursor(real), kind("SELECT 'ü; COMMIT'")
    assert cursor.execute(fine) is cursor
    for wrong in ("COMMIT", "SELECT 'ü'; ROLLBACK"):
        with pytest.raises(InvalidRequestError, match="is not for the function"):
            cursor.execute(kind(wrong))
    with pytest.raises(InvalidRequestError, match="int: no SQL statement"):
        cursor.execute(1)
    assert real.executed == [fine]


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT '; COMMIT', '''; COMMIT' AS \"; COMMIT\" -- ; COMMIT",
        "SELECT 1 /* ; COMMIT */;",
        "CREATE TEMP TRIGGER kept AFTER INSERT ON applied BEGIN SELECT 1; SELECT 2; END",
    ],
)
def test_a_semicolon_in_a_text_a_comment_or_a_trigger_ends_no_statement(tmp_path: Path, statement: str) -> None:
    path = made(tmp_path)

    def apply(sql: SqlTransaction, transaction: Transaction, data: bytes) -> None:
        if transaction.transaction_id == 0:
            sql.execute(statement)
        insert(sql, transaction, data)

    assert apply_three(Driver(path), apply) == [True] * 3


@pytest.mark.parametrize(
    "statement",
    [
        "DO $$ BEGIN NULL; END $$",
        "IF 1 = 1 BEGIN SELECT 1; END",
        "DECLARE x INT; BEGIN x := 1; END;",
        "A; ROLLBACK TO a",
    ],
)
def test_blocks_of_other_databases_are_the_applications(statement: str) -> None:
    _check_statement(statement)


def test_a_coroutine_is_refused_and_not_taken_for_applied(tmp_path: Path) -> None:
    path = made(tmp_path)

    async def apply(sql: SqlTransaction, transaction: Transaction, data: bytes) -> None:
        insert(sql, transaction, data)

    with pytest.raises(InvalidRequestError, match="is a coroutine"):
        apply_three(Driver(path), apply)
    assert (applied(path), mark(path)) == ([], -1)


def test_a_generator_is_refused_and_not_taken_for_applied(tmp_path: Path) -> None:
    path = made(tmp_path)

    def one(sql: SqlTransaction, transaction: Transaction, data: bytes) -> Any:
        yield insert(sql, transaction, data)

    async def another(sql: SqlTransaction, transaction: Transaction, data: bytes) -> Any:
        yield insert(sql, transaction, data)

    for apply in (one, another):
        with pytest.raises(InvalidRequestError, match="is a generator"):
            apply_three(Driver(path), apply)
    assert (applied(path), mark(path)) == ([], -1)


@dataclass
class Failing(Driver):
    """As PostgreSQL: an error fails the SQL transaction, whoever catches it, and its commit rolls back."""

    failed: bool = False

    def connect(self) -> Connection:
        self.step = self.refuse_when_failed
        return super().connect()

    def refuse_when_failed(self, step: str) -> None:
        if self.failed and step.startswith("before "):
            if step != "before commit":
                raise sqlite3.OperationalError("current transaction is aborted")
            self.made[-1].rollback()
        if step in ("rollback", "before commit"):
            self.failed = False


def test_what_failed_is_not_taken_for_applied_though_the_application_caught_the_error(tmp_path: Path) -> None:
    path, calls = made(tmp_path), []
    driver = Failing(path)

    def apply(sql: SqlTransaction, transaction: Transaction, data: bytes) -> None:
        insert(sql, transaction, data)
        calls.append(transaction.transaction_id)
        driver.failed = len(calls) == 1  # as after an INSERT of what is there already, whose error was caught

    assert apply_three(driver, apply) == [True] * 3
    assert (calls, applied(path), mark(path)) == ([0, 0, 1, 2], [0, 1, 2], 2)


def test_an_application_that_changes_the_mark_is_told(tmp_path: Path) -> None:
    path = made(tmp_path)

    def apply(sql: SqlTransaction, transaction: Transaction, data: bytes) -> None:
        sql.execute("UPDATE HIGH_WATER_MARKS SET HIGH_WATER_MARK = 7")

    with pytest.raises(
        InvalidRequestError, match="partition 0 is at 7 in the SQL transaction in which it was raised to 0"
    ):
        apply_three(Driver(path), apply)
    assert (applied(path), mark(path)) == ([], -1)


def test_savepoints_and_queries_are_the_applications(tmp_path: Path) -> None:
    path, seen = made(tmp_path), []

    def apply(sql: SqlTransaction, transaction: Transaction, data: bytes) -> None:
        sql.cursor().executemany("INSERT INTO applied VALUES (?, ?)", [(transaction.transaction_id, data)])
        sql.execute("SAVEPOINT here")
        sql.execute("INSERT INTO applied VALUES (99, NULL)")
        sql.execute("ROLLBACK TO here")
        seen.append([*sql.execute("/* COMMIT; */ -- COMMIT\n SELECT id FROM applied" + " -- COMMIT")])
        sql.execute("/**/" * 100 + "SELECT 1")
        sql.execute("/* /* */ SELECT 1")
        seen.append(sql.execute("SELECT count(*) FROM applied").fetchone())

    assert apply_three(Driver(path), apply) == [True] * 3
    assert seen[-2:] == [[(0,), (1,), (2,)], (3,)]


def test_two_at_a_time_apply_each_once(tmp_path: Path) -> None:
    path, count = made(tmp_path), 60
    both, errors, did = threading.Barrier(2), [], []

    def work() -> None:
        try:
            applier = SqlApplier(database(Driver(path)), insert)
            applier.mark(0)
            both.wait()
            did.extend([applier.once(number(one), b"") for one in range(count)])
            applier.close()
        except BaseException as error:
            errors.append(error)
            both.abort()

    threads = [threading.Thread(target=work) for _ in range(2)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert errors == []
    assert applied(path) == [*range(count)]
    assert did.count(True) == count


def test_one_that_was_overtaken_skips_and_goes_on(tmp_path: Path) -> None:
    path = made(tmp_path)
    slow, quick = (SqlApplier(database(Driver(path)), insert) for _ in range(2))
    assert slow.mark(0) == quick.mark(0) == -1
    assert [quick.once(number(one), b"") for one in range(3)] == [True] * 3
    assert not slow.once(number(0), b"")
    assert slow.is_done(number(2))  # it has read the mark anew
    assert [slow.once(number(one), b"") for one in range(1, 5)] == [False, False, True, True]
    assert applied(path) == [*range(5)]


def test_a_transaction_in_front_of_it_must_be_there(tmp_path: Path) -> None:
    path = made(tmp_path)
    applier = SqlApplier(database(Driver(path)), insert)
    applier.mark(0)
    with pytest.raises(RefusedError, match="partition 0 is at -1, and transaction 1"):
        applier.once(number(1), b"")
    assert applied(path) == []


def test_connections_that_commit_by_themselves_are_refused(tmp_path: Path) -> None:
    path = made(tmp_path)
    by_itself = SqlDatabase(lambda: sqlite3.connect(path, isolation_level=None), sqlite3.Error, "qmark")
    with pytest.raises(InvalidRequestError, match="autocommit off"):
        SqlApplier(by_itself, insert).mark(0)


class Plain(Connection):
    """Of a driver that tells nothing of it."""


class Told(Plain):
    """As PyMySQL's and mysqlclient's."""

    def autocommit(self, on: bool) -> None:
        self.real.isolation_level = None if on else ""

    def get_autocommit(self) -> bool:
        return self.real.isolation_level is None


class Numbered(Plain):
    """As cx_Oracle's; sqlite3 of Python 3.12 has -1 there, too."""

    autocommit = 0


@pytest.mark.parametrize(("kind", "number_of"), [(Plain, 0), (Told, 0), (Numbered, 0), (Numbered, -1)])
def test_connections_of_every_driver_that_tells_are_believed(tmp_path: Path, kind: type[Plain], number_of: int) -> None:
    path = made(tmp_path)

    def connect(*, by_itself: bool) -> Plain:
        one = kind(sqlite3.connect(path, isolation_level=None if by_itself else ""), Driver(path))
        if isinstance(one, Numbered):
            one.autocommit = 1 if by_itself else number_of
        return one

    fine = SqlApplier(SqlDatabase(lambda: connect(by_itself=False), sqlite3.Error, "qmark"), insert)
    assert (fine.mark(0), fine.once(number(0), b"")) == (-1, True)
    fine.close()
    if kind is not Plain:
        with pytest.raises(InvalidRequestError, match="autocommit off"):
            SqlApplier(SqlDatabase(lambda: connect(by_itself=True), sqlite3.Error, "qmark"), insert).mark(0)


def test_every_way_of_the_drivers_to_write_parameters(tmp_path: Path) -> None:
    base = database(Driver(tmp_path))
    found = {
        style: SqlApplier(replace(base, paramstyle=style), insert)._sql("{table} {0} {1}", 5, 6)
        for style in ("qmark", "numeric", "named", "format", "pyformat")
    }
    assert found == {
        "qmark": ("HIGH_WATER_MARKS ? ?", (5, 6)),
        "numeric": ("HIGH_WATER_MARKS :1 :2", (5, 6)),
        "named": ("HIGH_WATER_MARKS :a :b", {"a": 5, "b": 6}),
        "format": ("HIGH_WATER_MARKS %s %s", (5, 6)),
        "pyformat": ("HIGH_WATER_MARKS %s %s", (5, 6)),
    }
    with pytest.raises(InvalidRequestError, match="no paramstyle"):
        replace(base, paramstyle="dollar")
    with pytest.raises(InvalidRequestError, match="no name of a table"):
        replace(base, table="marks; DROP TABLE applied")


def test_a_feed_is_applied_from_the_stored_mark_on(tmp_path: Path) -> None:
    (tmp_path / "sql").mkdir()
    path = made(tmp_path / "sql")

    async def test(around: Around) -> None:
        client, driver = around.client, Driver(path)
        for n in range(4):
            await client.append(PARTITION, Draft(b"%d" % n))
        assert await apply_feed(client, [PARTITION], database(driver), insert, until=lambda _: 1) == 2
        assert await apply_feed(client, [PARTITION], database(driver), insert, until=lambda _: 3) == 2
        assert await apply_feed(client, [PARTITION], database(driver), insert, until=lambda _: 3) == 0
        assert applied(path) == [*range(4)]

    run(tmp_path / "log", test)


def test_a_feed_waits_for_data_as_long_as_it_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sql").mkdir()
    path, late = made(tmp_path / "sql"), [2]

    async def test(around: Around) -> None:
        client = around.client
        await client.append(PARTITION, Draft(b"0"))
        real = client.data

        async def data(*which: int) -> bytes:
            late[0] -= 1
            if late[0] >= 0:
                raise DeadlineError("the cluster", "no answer")
            return await real(*which)

        monkeypatch.setattr(client, "data", data)
        assert await apply_feed(client, [PARTITION], database(Driver(path)), insert, until=lambda _: 0) == 1
        assert applied(path) == [0]

    run(tmp_path / "log", test)


def test_a_feed_that_is_cancelled_leaves_no_thread_and_no_transaction(tmp_path: Path) -> None:
    (tmp_path / "sql").mkdir()
    path, begun = made(tmp_path / "sql"), threading.Event()

    def apply(sql: SqlTransaction, transaction: Transaction, data: bytes) -> None:
        insert(sql, transaction, data)
        begun.set()
        raise sqlite3.OperationalError("busy")

    async def test(around: Around) -> None:
        await around.client.append(PARTITION, Draft(b"0"))
        feeding = asyncio.ensure_future(
            apply_feed(around.client, [PARTITION], database(Driver(path), timeout=600.0), apply)
        )
        await asyncio.to_thread(begun.wait)
        feeding.cancel()
        with pytest.raises(asyncio.CancelledError):
            await feeding

    run(tmp_path / "log", test)
    assert not [one for one in threading.enumerate() if one.name.startswith("waltz-sql") and one.is_alive()]
    assert applied(path) == []


def test_a_connection_whose_look_was_cut_short_is_not_used(tmp_path: Path) -> None:
    """Whether it commits by itself is not known; the next attempt took it as it was."""
    path, cut = made(tmp_path), ["before UPDATE"]

    def step(name: str) -> None:
        if name in cut:
            cut.remove(name)
            raise Killed

    driver = Driver(path, step)
    applier = SqlApplier(database(driver), insert)
    with pytest.raises(Killed):
        applier.mark(0)
    assert applier.mark(0) == -1
    assert len(driver.made) == 2


def test_what_could_not_be_rolled_back_for_another_reason_is_not_committed_later(tmp_path: Path) -> None:
    path, cut = made(tmp_path), list[str]()

    def step(name: str) -> None:
        if name in cut:
            cut.remove(name)
            raise Killed

    def apply(sql: SqlTransaction, transaction: Transaction, data: bytes) -> None:
        insert(sql, transaction, data)
        if cut:
            raise ZeroDivisionError

    driver = Driver(path, step)
    applier = SqlApplier(database(driver), apply)
    applier.mark(0)
    cut.append("rollback")
    with pytest.raises(Killed):
        applier.once(number(0), b"")
    assert applier.once(number(0), b"")
    assert (applied(path), mark(path), len(driver.made)) == ([0], 0, 2)


@pytest.mark.parametrize("wrong", [{"timeout": float("nan")}, {"first_retry": -1.0}, {"longest_retry": -0.1}])
def test_times_that_cannot_be_meant_are_refused(tmp_path: Path, wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidRequestError, match=rf"{next(iter(wrong))}=.*no less than 0"):
        database(Driver(tmp_path / "db"), **wrong)
