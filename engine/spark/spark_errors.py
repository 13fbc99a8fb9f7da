"""Errors of Spark, Java and Spark's Python workers: distinguished from our own errors, and reduced to one line."""

from __future__ import annotations

_TRACE = "Traceback (most recent call last):"
_OF_WORKER = "An exception was thrown from the Python worker:"


def of_spark(error: BaseException) -> bool:
    """Whether an error comes from Spark, or from the connection to it."""
    from pyspark.errors import PySparkException

    return isinstance(error, PySparkException) or type(error).__module__.startswith(("py4j", "grpc"))


def first_line(error: BaseException) -> str:
    """The message of a Java or Spark error, without the stack trace."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    if _TRACE in lines:  # a traceback of a Python worker: the exception is after the indented lines
        below = lines[lines.index(_TRACE) + 1 :]
        return next((line for line in below if not line[0].isspace()), lines[0])
    if (
        lines and lines[0].strip() == _OF_WORKER and len(lines) > 1
    ):  # the same without a traceback (SPARK_HIDE_TRACEBACK)
        return lines[1].strip()
    said = [line.strip() for line in lines if line.strip().startswith("Caused by:")]
    if not said:  # py4j: the call, then a colon and Java's exception
        said = [line.removeprefix(": ") for line in lines if line.startswith(": ")] or lines[:1]
    return said[-1].strip() if said else type(error).__name__


def said_at_start(error: BaseException) -> str:
    """The line with the reason, of Java's output when it failed to start."""
    lines = [line.strip() for note in getattr(error, "__notes__", ()) for line in note.splitlines() if line.strip()]
    telling = [line for line in lines if "Exception" in line or "rror" in line or "nvalid" in line]
    return f" {telling[0]}" if telling else ""
