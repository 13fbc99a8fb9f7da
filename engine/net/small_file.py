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
