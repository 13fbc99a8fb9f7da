"""Small files that a configuration names or is: read as a whole, up to a bound, with errors that say which file has to change."""

from __future__ import annotations

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


def read_first_line(path: Path, source: str) -> str:
    """The password that a file's first line is; `source`, who named the file, begins every message.

    An empty line is a password, too: stores with one exist.  Raises InvalidRequestError where there is none, DiskReadError where
    the system refuses.
    """
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_LINE + 1)
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
        raise InvalidRequestError(f"{source}: {path}: cannot read the password: {error.strerror}") from None
    except OSError as error:
        raise DiskReadError(path, None, error, doing="read the password") from error
    line = data.splitlines()[0] if data else b""
    if not data or len(line) > MAX_LINE:
        raise InvalidRequestError(f"{source}: {path}: holds no password in its first line")
    try:
        return line.decode()
    except UnicodeDecodeError:
        raise InvalidRequestError(f"{source}: {path}: the password is not UTF-8") from None
