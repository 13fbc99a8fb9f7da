"""Small files that a configuration names or is: read as a whole, up to a bound, with errors that say which file has to change."""

from __future__ import annotations

import codecs
from pathlib import Path

from waltzctl.engine.errors import DiskReadError, InvalidRequestError


def read_small_file(path: Path, most: int, *, contents: str, kind: str) -> bytes:
    """All bytes of a file of at most `most`; `contents` and `kind` name in messages what is read, and what a larger file is not.

    Raises InvalidRequestError where there is no such file or it is too large, DiskReadError where the system refuses.
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
"""Bytes; a first line beyond that is no password."""


SHORTEST_KEY = 16
"""Bytes; a file of fewer that is no text is no key."""


def _password_file(path: Path, source: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(MAX_LINE + 1)
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
        raise InvalidRequestError(f"{source}: {path}: cannot read the password: {error.strerror}") from None
    except OSError as error:
        raise DiskReadError(path, None, error, doing="read the password") from error


def read_first_line(path: Path, source: str) -> str:
    """The password that a file's first line is; `source`, who named the file, begins every message.

    An empty line is a password, too: stores with one exist.  Raises InvalidRequestError where there is none, DiskReadError where
    the system refuses.
    """
    return _first_line(_password_file(path, source), path, source)


def read_password_or_key(path: Path, source: str) -> bytes:
    """The password that a text file's first line is, in UTF-8, or the key that all bytes of another file are.

    `source`: who named the file, begins every message.  Raises as `read_first_line`.
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
    """Whether it is UTF-8 without NUL; what was cut within a character at its end still is."""
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
