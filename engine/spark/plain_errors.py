"""What Spark says of an error of ours: the sentence, without the stack of the Python process in which it was raised.

Spark hands on what a worker's Python printed, and the one line that says what to do would stand under twenty of a stack that
helps nobody who named a wrong path.  A worker leaves the stack out where its environment has ``SPARK_HIDE_TRACEBACK``.  It is
set when an error of ours leaves a method that Spark has called, and goes with that error: the errors of other sources, which
may be read by the same process, keep their stacks, and so does everything that is not an error of ours.
"""

from __future__ import annotations

import contextlib
import functools
import os
import weakref
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from waltzctl.engine.errors import WaltzError

HIDING = "SPARK_HIDE_TRACEBACK"
_CALLED = (
    "schema", "reader", "streamReader", "writer", "streamWriter", "partitions", "pushFilters", "initialOffset", "latestOffset",
    "reportLatestOffset", "prepareForTriggerAvailableNow",
)  # fmt: skip
"""Methods that Spark calls, beside `read`, whose rows come one after another."""
K = TypeVar("K", bound=type)


class RefusedStream(DataSourceStreamReader):
    """Stands for a stream that cannot be: every method raises the error.

    Where a stream's reader cannot even be made, Spark (4.1 to 4.3) stumbles in cleaning up, and tells of that instead
    (``UnboundLocalError: reader``).
    """

    def __init__(self, error: WaltzError) -> None:
        self._error = error

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  # Spark's name
        """Raises the error."""
        with _without_stack():
            raise self._error

    def latestOffset(self, start: dict[str, Any] | None = None, limit: Any = None) -> dict[str, Any]:  # noqa: N802
        """Raises the error."""
        return self.initialOffset()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Any:
        """Raises the error."""
        return self.initialOffset()

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Raises the error."""
        yield self.initialOffset()


def stream_or_refusal(make: Callable[..., DataSourceStreamReader]) -> Callable[..., DataSourceStreamReader]:
    """A method that makes a stream, with errors that come when Spark can tell them."""

    @functools.wraps(make)
    def made(*arguments: Any, **named: Any) -> DataSourceStreamReader:
        try:
            return make(*arguments, **named)
        except WaltzError as error:
            return RefusedStream(error)

    return made


@contextlib.contextmanager
def _without_stack() -> Iterator[None]:
    try:
        yield
    except WaltzError as error:
        if HIDING not in os.environ:
            os.environ[HIDING] = "1"
            weakref.finalize(error, os.environ.pop, HIDING, None)
        raise


def plain_errors(kind: K) -> K:
    """A class that Spark calls, with errors that are told in one line."""
    for name, method in list(vars(kind).items()):
        if name in _CALLED:
            setattr(kind, name, _plain(method))
        elif name == "read":
            setattr(kind, name, _plain_rows(method))
    return kind


def _plain(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def called(*arguments: Any, **named: Any) -> Any:
        with _without_stack():
            return method(*arguments, **named)

    return called


def _plain_rows(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def called(*arguments: Any, **named: Any) -> Iterator[Any]:
        with _without_stack():
            yield from method(*arguments, **named)

    return called
