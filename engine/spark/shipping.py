"""Shipping of our code to executors: a zip archive of our packages, which a session sends with its jobs.

Executors of a cluster have the libraries (NumPy, Numba, construct and so on) in their own environment.  Our packages change more
often, and are sent with the session.
"""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Iterator
from pathlib import Path

PACKAGES = ("waltzctl/formats", "waltzctl/engine")
MODULES = ("pyspark_waltz.py", "pyspark_waltz_pipeline.py", "waltzctl/__init__.py")


def root() -> Path:
    """The directory with our packages, which must be on ``sys.path`` to import them.

    Derived from the path of this module as it was imported; symbolic links are not resolved, since they lead out of the package.
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
    """`write_archive` into a directory, under a name that contains a checksum: a Spark application accepts a file name once."""
    archive = write_archive(directory / "code.zip")
    return archive.rename(directory / f"waltzctl-code-{hashlib.sha256(archive.read_bytes()).hexdigest()[:16]}.zip")


def _sources() -> Iterator[Path]:
    for name in MODULES:
        yield root() / name
    for package in PACKAGES:
        yield from sorted((root() / package).rglob("*.py"))
