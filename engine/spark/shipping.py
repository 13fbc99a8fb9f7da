"""How the code reaches executors: one archive of our packages, made anew for each session that needs it.

Executors of a cluster need the libraries (NumPy, Numba, construct and so on) from their own environment; ours, which change
more often, travel with the session.
"""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Iterator
from pathlib import Path

PACKAGES = ("waltzctl/formats", "waltzctl/engine")
MODULES = ("pyspark_waltz.py", "pyspark_waltz_pipeline.py", "waltzctl/__init__.py")


def root() -> Path:
    """The directory that holds our packages: what has to be on the path of a Python that imports them.

    By the name under which this module was imported: links are not followed, as the package's links lead out of it.
    """
    return Path(__file__).absolute().parents[3]


def write_archive(target: Path) -> Path:
    """Write the packages that executors need into a zip file at `target`, the same bytes for the same code."""
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in _sources():
            entry = zipfile.ZipInfo(str(path.relative_to(root())), (1980, 1, 1, 0, 0, 0))
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, path.read_bytes(), zipfile.ZIP_DEFLATED)
    return target


def named_archive(directory: Path) -> Path:
    """The same, in a directory, under a name that tells its contents: a Spark application takes a file's name once."""
    archive = write_archive(directory / "code.zip")
    return archive.rename(directory / f"waltzctl-code-{hashlib.sha256(archive.read_bytes()).hexdigest()[:16]}.zip")


def _sources() -> Iterator[Path]:
    for name in MODULES:
        yield root() / name
    for package in PACKAGES:
        yield from sorted((root() / package).rglob("*.py"))
