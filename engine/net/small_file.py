"""Reading small files of a configuration (itself, passwords, keys) as a whole, with a bound and errors that name the file."""

from __future__ import annotations

import codecs
from pathlib import Path

from waltzctl.engine.errors import DiskReadError, InvalidRequestError


def read_small_file(path: Path, most: int, *, contents: str, kind: str) -> bytes:
    """The bytes of a file of at most `most` bytes.  `contents`, `kind`: of the file, for messages.

    Raises InvalidRequestError if the file does not exist or is longer, DiskReadError if the system cannot read it.
    """
    try:
        with open(path, "rb") as file:
            data = file.read(most + 1)
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
        raise InvalidRequestError(f"{path}: cannot read {contents}: {error.strerror}") from None
    except OSError as error:
        raise DiskReadError(path, None, error, doing=f"read {contents}") from error
    if len(data) > most:
        raise InvalidRequestError(f"{path}: more than {most} bytes; this is no {kind}")
    return data


MAX_LINE = 4096
"""Bytes; upper bound of a password's line, and of a key."""


SHORTEST_KEY = 16
"""Bytes; lower bound of a key."""


def _password_file(path: Path, source: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(MAX_LINE + 1)
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
        raise InvalidRequestError(f"{source}: {path}: cannot read the password: {error.strerror}") from None
    except OSError as error:
        raise DiskReadError(path, None, error, doing="read the password") from error


def read_first_line(path: Path, source: str) -> str:
    """The first line of a file, as a password.  `source`: the option or variable that names the file; begins every message.

    An empty line is a valid password, as stores with one exist.  Raises InvalidRequestError if the file is missing or empty, or
    the line is too long or not UTF-8; DiskReadError if the system cannot read the file.
    """
    return _first_line(_password_file(path, source), path, source)


def read_password_or_key(path: Path, source: str) -> bytes:
    """The first line of a text file as a password (UTF-8), or all bytes of any other file as a key.

    `source`: as in `read_first_line`.  Raises as `read_first_line`, and InvalidRequestError for a key of another length than
    `SHORTEST_KEY` to `MAX_LINE`.
    """
    data = _password_file(path, source)
    if _is_text(data):
        return _first_line(data, path, source).encode()
    if not SHORTEST_KEY <= len(data) <= MAX_LINE:
        raise InvalidRequestError(
            f"{source}: {path}: neither text nor a key of {SHORTEST_KEY} to {MAX_LINE} bytes",
            advice="a key is random bytes, as of head -c 32 /dev/urandom",
        )
    return data


def _is_text(data: bytes) -> bool:
    """Whether `data` is UTF-8 without NUL; its last character may be incomplete."""
    try:
        return "\0" not in codecs.getincrementaldecoder("utf-8")().decode(data)
    except UnicodeDecodeError:
        return False


def _first_line(data: bytes, path: Path, source: str) -> str:
    line = data.splitlines()[0] if data else b""
    if not data or len(line) > MAX_LINE:
        raise InvalidRequestError(f"{source}: {path}: holds no password in its first line")
    try:
        return line.decode()
    except UnicodeDecodeError:
        raise InvalidRequestError(f"{source}: {path}: the password is not UTF-8") from None
