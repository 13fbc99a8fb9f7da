"""Our Java program that speaks through the release's networking library: built with Maven, once for each state of its sources.

The library and what it needs are in the public Maven repository.  What Maven has on this machine already is enough; else it
fetches them, and where it cannot, the tests are skipped and say so.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parent / "java" / "riff"
BUILT = Path(__file__).resolve().parents[2] / "build" / "riff"
MAIN = "waltzctl.interop.Dialogue"
PATIENCE = 300
"""Seconds for Maven and for each Java program; they take a few, unless everything must be fetched first."""
needs_maven = pytest.mark.skipif(
    any(shutil.which(name) is None for name in ("java", "javac", "mvn", "keytool")), reason="needs a JDK and Maven"
)
_PLUGINS = "org.apache.maven.plugins"
_UNREACHABLE = ("Could not transfer", "Could not resolve", "could not be resolved", "Unknown host", "offline mode")


@dataclass(frozen=True, slots=True)
class RiffProgram:
    """The compiled program: what to put on Java's class path."""

    classpath: str

    def command(self, *arguments: object) -> list[str]:
        """The command line that runs it."""
        options = ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData"]
        # as the release is started: its netty looks for a class there before it takes the other library
        options.append("--add-exports=java.base/sun.security.x509=ALL-UNNAMED")
        return ["java", *options, "-cp", self.classpath, MAIN, *(str(argument) for argument in arguments)]


def built() -> RiffProgram:
    """The program, compiled unless it was before.  Skips the test where Maven lacks something and cannot fetch it."""
    sources = sorted(path for path in PROJECT.rglob("*") if path.is_file())
    text = b"".join(str(path.relative_to(PROJECT)).encode() + b"\0" + path.read_bytes() for path in sources)
    place = BUILT / hashlib.sha256(text).hexdigest()[:16]
    listed = place / "classpath"
    if listed.exists():
        classpath = listed.read_text()
        if all(Path(one).exists() for one in classpath.split(os.pathsep)):
            return RiffProgram(classpath)
    place.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place) as own:  # tests in other processes may do the same now
        program = _build(Path(own))
        classes = place / "classes"
        shutil.copytree(Path(own) / "classes", classes, dirs_exist_ok=True)
        program = RiffProgram(program.classpath.replace(str(Path(own) / "classes"), str(classes)))
        (Path(own) / "listed").write_text(program.classpath)
        (Path(own) / "listed").replace(listed)
    return program


def _build(place: Path) -> RiffProgram:
    """Compile into `place`."""
    listed = place / "classpath.txt"
    for mode in (["--offline"], []):
        command = [
            "mvn",
            *mode,
            "--batch-mode",
            "--quiet",
            "-Dstyle.color=never",
            f"--file={PROJECT}",
            f"-Dplace={place}",
        ]
        goals = [f"{_PLUGINS}:maven-compiler-plugin:compile", f"{_PLUGINS}:maven-dependency-plugin:build-classpath"]
        try:
            done = subprocess.run(
                [*command, *goals, f"-Dmdep.outputFile={listed}"],
                capture_output=True,
                text=True,
                timeout=PATIENCE,
                check=False,
            )
        except subprocess.TimeoutExpired:
            pytest.skip(f"Maven did not fetch the library within {PATIENCE} s")
        if done.returncode == 0:
            return RiffProgram(f"{place / 'classes'}{os.pathsep}{listed.read_text().strip()}")
        said = done.stdout + done.stderr
        if not any(text in said for text in _UNREACHABLE):
            pytest.fail(f"Maven: {said}")
    pytest.skip(f"Maven cannot fetch the library: {said.strip().splitlines()[0]}")


@dataclass(frozen=True, slots=True)
class Stores:
    """A key store and a trust store that fit each other."""

    keys: Path
    trust: Path
    kind: str
    password: str

    @classmethod
    def make(cls, place: Path, kind: str) -> Stores:
        """One self-signed certificate, with its key and alone, as `kind` (JKS or PKCS12)."""
        stores = cls(place / "keys", place / "trust", kind, "dialogue")
        certificate = place / "certificate"
        _keytool("-genkeypair", stores.keys, stores, "-keyalg", "RSA", "-dname", "CN=localhost", "-validity", "2")
        _keytool("-exportcert", stores.keys, stores, "-file", certificate)
        _keytool("-importcert", stores.trust, stores, "-file", certificate, "-noprompt")
        return stores


def _keytool(task: str, store: Path, stores: Stores, *more: object) -> None:
    secret = ["-storepass", stores.password] + (["-keypass", stores.password] if task == "-genkeypair" else [])
    where = ["-alias", "node", "-keystore", str(store), "-storetype", stores.kind]
    command = ["keytool", "-J-XX:TieredStopAtLevel=1", task, *where, *secret, *(str(one) for one in more)]
    subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True)
