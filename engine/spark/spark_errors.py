"""What Spark, with Java and Python behind it, says when something fails: told apart from errors of ours, and in one line."""

from __future__ import annotations

_TRACE = "Traceback (most recent call last):"
_OF_WORKER = "An exception was thrown from the Python worker:"


def of_spark(error: BaseException) -> bool:
    """Whether an error comes from Spark, or from the ways to it."""
    from pyspark.errors import PySparkException

    return isinstance(error, PySparkException) or type(error).__module__.startswith(("py4j", "grpc"))


def first_line(error: BaseException) -> str:
    """What a Java or Spark error says, without the trace that follows."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    if _TRACE in lines:  # of a worker's Python: what it raised stands below the indented lines
        below = lines[lines.index(_TRACE) + 1 :]
        return next((line for line in below if not line[0].isspace()), lines[0])
    if lines and lines[0].strip() == _OF_WORKER and len(lines) > 1:  # the same where somebody has the trace left out
        return lines[1].strip()
    said = [line.strip() for line in lines if line.strip().startswith("Caused by:")]
    if not said:  # py4j: what was called, then a colon and what Java raised
        said = [line.removeprefix(": ") for line in lines if line.startswith(": ")] or lines[:1]
    return said[-1].strip() if said else type(error).__name__


def said_at_start(error: BaseException) -> str:
    """Of what Java said while it did not start, the line that names the reason."""
    lines = [line.strip() for note in getattr(error, "__notes__", ()) for line in note.splitlines() if line.strip()]
    telling = [line for line in lines if "Exception" in line or "rror" in line or "nvalid" in line]
    return f" {telling[0]}" if telling else ""
