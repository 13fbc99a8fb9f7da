"""Our errors without a traceback in Spark's messages.

Spark passes on what a Python worker printed, and the one line with the advice would follow some twenty lines of traceback,
which do not help a user with a wrong path.  A worker omits the traceback if its environment has ``SPARK_HIDE_TRACEBACK``.  The
variable is set when one of our errors leaves a method that Spark called, and removed when that error is freed: errors of other
data sources in the same process, and all other exceptions, keep their tracebacks.
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
"""Methods that Spark calls; `read`, a generator, is treated separately."""
K = TypeVar("K", bound=type)


class RefusedStream(DataSourceStreamReader):
    """Takes the place of a stream whose creation failed: every method raises the error.

    When creating a stream's reader raises an error, Spark (4.1 to 4.3) fails in its cleanup, and reports only that
    (``UnboundLocalError: reader``).
    """

    def __init__(self, error: WaltzError) -> None:
        self._error = error

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  # Spark's name
        """Raises the error."""
        with _hidden_traceback():
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
    """A decorator of a method that creates a stream: its errors are raised later, when Spark can report them."""

    @functools.wraps(make)
    def made(*arguments: Any, **named: Any) -> DataSourceStreamReader:
        try:
            return make(*arguments, **named)
        except WaltzError as error:
            return RefusedStream(error)

    return made


@contextlib.contextmanager
def _hidden_traceback() -> Iterator[None]:
    try:
        yield
    except WaltzError as error:
        if HIDING not in os.environ:
            os.environ[HIDING] = "1"
            weakref.finalize(error, os.environ.pop, HIDING, None)
        raise


def plain_errors(kind: K) -> K:
    """A class decorator: our errors from methods that Spark calls have no traceback in Spark's message."""
    for name, method in list(vars(kind).items()):
        if name in _CALLED:
            setattr(kind, name, _hide_traceback(method))
        elif name == "read":
            setattr(kind, name, _hide_traceback_of_rows(method))
    return kind


def _hide_traceback(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def called(*arguments: Any, **named: Any) -> Any:
        with _hidden_traceback():
            return method(*arguments, **named)

    return called


def _hide_traceback_of_rows(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def called(*arguments: Any, **named: Any) -> Iterator[Any]:
        with _hidden_traceback():
            yield from method(*arguments, **named)

    return called
