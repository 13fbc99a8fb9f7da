"""A tour of waltzctl on generated data: create, append, damage, verify, recover, undo, rebuild, salvage, serve, a cluster.

``make demo``, or ``python demo/demo.py [--keep] [--directory DIR]`` where waltzctl is installed.  Every command is run as a
user would run it; what it says and its exit status are shown, and the demonstration ends with status 1 as soon as anything
is not as it should be.  Takes one to two minutes.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import random
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

PROJECT = Path(__file__).resolve().parents[1]
PARTITIONS = 4
RECORDS = 25_000
"""Records appended to each partition."""
SESSIONS = (20_000, 5_000)
"""The same by session: what the first one wrote is below the low-water mark once the second has begun."""
CLEAN, REPAIRABLE, DAMAGED, DAMAGE_REMAINS, REFUSED, IO_ERROR = 0, 3, 4, 5, 13, 14
WIDTH = 100
SHOWN_LINES = 16
DIM, BOLD, RED, GREEN, PLAIN = "\033[2m", "\033[1m", "\033[31m", "\033[32m", "\033[0m"


WRITER = """
import asyncio, sys
from waltzctl.engine.client.storage_client import StorageClient
from waltzctl.engine.errors import PeerError
from waltzctl.engine.net.tls import client_context
from waltzctl.engine.net.tls_options import TlsOptions
from waltzctl.formats.request_id import RequestId
from waltzctl.formats.wire.records import WireRecord

async def main(host, port, partition, session, first):
    trust = client_context(TlsOptions(), trust_all=True)
    async with await StorageClient.connect(host, port, ssl_context=trust) as node:
        await node.set_low_water_mark(session, partition, first - 1)
        while True:
            number = RequestId(7, 0, partition, first % 2**31)
            await node.append(session, partition, [WireRecord.make(first, number, 0, b"order %d" % first)])
            print(first, flush=True)
            first += 1

host, _, port = sys.argv[1].partition(":")
try:
    asyncio.run(main(host, int(port), *map(int, sys.argv[2:])))
except PeerError as error:
    print(error, file=sys.stderr)
"""
"""A client of a node's data port, one transaction at a time: it prints the number of each as soon as it is acknowledged."""


class UnexpectedError(Exception):
    """Something is not as the demonstration says; the message tells what."""


def require(truth: bool, what: str) -> None:
    """Stop the demonstration unless `truth`; say what was found to be so."""
    if not truth:
        raise UnexpectedError(f"not so: {what}")
    print(f"  {_colour(GREEN, 'ok')}  {what}")


def _colour(code: str, text: str) -> str:
    return f"{code}{text}{PLAIN}" if sys.stdout.isatty() and "NO_COLOR" not in os.environ else text


def title(text: str) -> None:
    """Begin a scene."""
    print(f"\n{_colour(BOLD, text)}\n{_colour(DIM, '-' * len(text))}")


def tell(text: str) -> None:
    """A paragraph of narration."""
    print("\n" + textwrap.fill(" ".join(text.split()), WIDTH))


@dataclass
class Node:
    """A running node: the addresses of its ports."""

    process: subprocess.Popen[bytes]
    data: str
    admin: str
    killed: bool = False

    def kill(self) -> None:
        """SIGKILL, as a crash would."""
        print(f"\n  {_colour(BOLD, f'$ kill -9 {self.process.pid}')}")
        self.process.kill()
        self.process.wait()
        self.killed = True


@dataclass
class Stage:
    """The working directory, and how commands are run in it."""

    root: Path
    commands: int = 0
    environment: dict[str, str] = field(default_factory=dict)
    originals: dict[int, dict[int, bytes]] = field(default_factory=dict)
    """The records of node 1, by partition and id, as they were dumped in the beginning."""

    def __post_init__(self) -> None:
        path = [str(PROJECT), *filter(None, [os.environ.get("PYTHONPATH")])]
        self.environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path), "COLUMNS": str(WIDTH), "NO_COLOR": "1"}

    def run(self, line: str, expected: int | None = CLEAN, *, stdin: bytes | None = None, show: bool = True) -> bytes:
        """Run ``waltzctl LINE``, show it with what it says, and insist on its exit status.  Returns its stdout.

        With None either nothing is wrong or only what can be repaired without loss, as after a crash.
        """
        words = shlex.split(line)
        shown = words if "--format" in words else [*words, "--format", "table"]
        self.commands += 1
        done = subprocess.run(
            [sys.executable, "-m", "waltzctl", *shown], cwd=self.root, env=self.environment, input=stdin,
            capture_output=True, check=False,
        )  # fmt: skip
        print(f"\n  {_colour(BOLD, '$ waltzctl ' + line)}")
        if show:
            self._show((done.stdout + done.stderr).decode(errors="replace").splitlines())
        print(f"  {_colour(DIM, f'exit status {done.returncode}')}")
        if done.returncode not in ((CLEAN, REPAIRABLE) if expected is None else (expected,)):
            lines = (done.stdout + done.stderr).decode(errors="replace").splitlines()
            text = "\n".join(line[:WIDTH] for line in lines[-40:])
            raise UnexpectedError(f"`waltzctl {line}` ended with {done.returncode}, not {expected}:\n{text}")
        return done.stdout

    def quietly(self, line: str) -> str:
        """What a command that is asked again and again says."""
        command = [sys.executable, "-m", "waltzctl", *shlex.split(line)]
        return subprocess.run(
            command, cwd=self.root, env=self.environment, capture_output=True, check=False
        ).stdout.decode()

    @contextlib.contextmanager
    def beside(self, line: str, stdin: str | None = None) -> Iterator[subprocess.Popen[bytes]]:
        """A command beside the others, until the end of the block; its output goes to a file."""
        self.commands += 1
        print(f"\n  {_colour(BOLD, f'$ waltzctl {line} &')}")
        out = self.root / " ".join(line.split()[:2])
        with contextlib.ExitStack() as files:
            given = subprocess.DEVNULL if stdin is None else files.enter_context((self.root / stdin).open("rb"))
            process = subprocess.Popen(
                [sys.executable, "-m", "waltzctl", *shlex.split(line)], cwd=self.root, env=self.environment,
                stdin=given, stdout=files.enter_context(out.open("wb")), stderr=subprocess.STDOUT,
            )  # fmt: skip
            try:
                yield process
            finally:
                if process.poll() is None:
                    process.kill()
                    process.wait()

    def acknowledged(self, name: str) -> int:
        """How many lines a command beside the others has said so far."""
        return (self.root / name).read_bytes().count(b"\n")

    def _show(self, lines: Sequence[str]) -> None:
        """The beginning, and the end, where the conclusion stands."""
        left_out = len(lines) - SHOWN_LINES
        shown = [*lines[: SHOWN_LINES - 3], f"... {left_out} more lines ...", *lines[-3:]] if left_out > 1 else lines
        for line in shown:
            print(f"    {line}")

    @contextlib.contextmanager
    def serve(self, directory: str, ports: str = "--port 0") -> Iterator[Node]:
        """Run a node of a directory on free ports of this machine, until the end of the block."""
        with self.start(directory, f"serve {directory} {ports}") as (process, told):
            node = Node(process, f"127.0.0.1:{told['port']}", f"127.0.0.1:{told['admin_port']}")
            print(f"    data port {node.data}, admin port {node.admin}")
            yield node

    @contextlib.contextmanager
    def start(self, name: str, line: str) -> Iterator[tuple[subprocess.Popen[bytes], dict[str, object]]]:
        """Run a process that serves, with what it says when it is ready, until the end of the block; it may be killed before."""
        line = f"{line} --ready-file {name}.ready"
        print(f"\n  {_colour(BOLD, '$ waltzctl ' + line + ' &')}")
        self.commands += 1
        ready = self.root / f"{name}.ready"
        with (self.root / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "waltzctl", *shlex.split(line)],
                cwd=self.root, env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        try:
            while not (ready.exists() and (told := json.loads(ready.read_bytes()))["pid"] == process.pid):
                if process.poll() is not None:
                    raise UnexpectedError(f"`waltzctl {line}` ended with {process.returncode}; see {log.name}")
                time.sleep(0.05)
            yield process, told
            if process.poll() is None:
                process.terminate()
                require(process.wait() == CLEAN, f"{name} ended cleanly")
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()

    def load(self, node: Node, bench: str, partition: int, first: int, seconds: float) -> int:
        """Load from two sides for so many seconds, then kill the node; the last transaction acknowledged to a writer.

        `bench` runs with a number of requests under way; the writer appends to another partition from `first` on, in session 2.
        """
        self.commands += 1
        print(f"\n  {_colour(BOLD, f'$ waltzctl {bench} &')}")
        notes = self.root / "acknowledged"
        with contextlib.ExitStack() as ending:
            loader = ending.enter_context(
                self._started(["-m", "waltzctl", *shlex.split(bench), "--format", "table"], subprocess.PIPE)
            )
            out = ending.enter_context(notes.open("wb"))
            writer = ending.enter_context(
                self._started(["-c", WRITER, node.data, str(partition), "2", str(first)], out)
            )
            while not notes.stat().st_size and writer.poll() is None:
                time.sleep(0.05)
            time.sleep(seconds)
            node.kill()
            said = b"".join(loader.communicate(timeout=60))
            _, reason = writer.communicate(timeout=60)
        self._show(said.decode(errors="replace").splitlines())
        print(f"  {_colour(DIM, f'exit status {loader.returncode}')}")
        require(loader.returncode == IO_ERROR, "the load says that its node is gone")
        print(f"    the writer says: {reason.decode(errors='replace').strip()}")
        acknowledged = notes.read_text().split()
        require(bool(acknowledged), f"{len(acknowledged):,} transactions were acknowledged to it")
        return int(acknowledged[-1])

    @contextlib.contextmanager
    def _started(self, program: Sequence[str], out: int | IO[bytes]) -> Iterator[subprocess.Popen[bytes]]:
        """A Python program beside this one, until the end of the block."""
        process = subprocess.Popen(
            [sys.executable, *program], cwd=self.root, env=self.environment,
            stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.PIPE,
        )  # fmt: skip
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()

    def findings(self, directory: str, expected: int) -> list[dict[str, object]]:
        """What verify finds, as a script would read it."""
        output = self.run(f"verify {directory} --format ndjson", expected, show=False)
        return [one for one in map(json.loads, output.splitlines()) if one["type"] == "finding"]

    def copy(self, name: str) -> Path:
        """A fresh copy of node 1 to damage."""
        target = self.root / name
        print(f"\n  {_colour(BOLD, f'$ cp -a node-1 {name}')}")
        shutil.copytree(self.root / "node-1", target)
        return target

    def records(self, directory: str, partition: int, expected: int = CLEAN) -> dict[int, bytes]:
        """Every record of a partition as dump gives it, by id."""
        return by_id(self.run(f"dump {directory} --partition {partition} --format ndjson", expected, show=False))


def by_id(dumped: bytes) -> dict[int, bytes]:
    """The records of a dump by id; place and segment left out."""
    found = {}
    for line in dumped.splitlines():
        one = json.loads(line)
        if one["type"] == "record":
            for place in ("segment", "offset"):
                del one[place]
            found[one["transaction_id"]] = json.dumps(one, sort_keys=True).encode()
    return found


def digests(storage: Path) -> dict[str, str]:
    """SHA-256 of every file of a storage directory but for waltzctl's own."""
    return {
        str(path.relative_to(storage)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(storage.rglob("*"))
        if path.is_file() and ".waltzctl" not in path.parts
    }


def segments(storage: Path, partition: int) -> list[Path]:
    """Data files of a partition, in order."""
    return sorted((storage / str(partition)).glob("*.seg"))


def flip(path: Path, offset: int, bit: int = 3) -> None:
    """Flip one bit of a file, as a failing disk would."""
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 1 << bit]))


def orders(partition: int, first: int, count: int) -> bytes:
    """Lines to append: something that a person recognises."""
    source = random.Random(partition * 1_000_003 + first)
    items = ("tea", "a lamp", "two chairs", "a bicycle", "paper", "an umbrella with a wooden handle")
    lines = [
        f"order {number}: {source.choice(items)} for customer {source.randrange(10_000)}, {source.randrange(100, 99_999)} cents"
        for number in range(first, first + count)
    ]
    return "\n".join(lines).encode() + b"\n"


def fill(stage: Stage) -> None:
    """Two replicas of a cluster with 100,000 transactions."""
    title(f"1. A cluster with {PARTITIONS * RECORDS:,} transactions")
    stage.run(f"create-cluster node-1 node-2 --partitions {PARTITIONS}")
    tell("""Each append is a session of its own: what the first one wrote is known to be durable when the second begins, and is
         guarded by the low-water mark from then on. Small segments, so that there are several.""")
    for partition in range(PARTITIONS):
        first = 0
        for count in SESSIONS:
            stage.run(
                f"append node-1 --partition {partition} --segment-size 512KiB",
                stdin=orders(partition, first, count),
                show=partition == 0,
            )
            first += count
    stage.run("status node-1")
    stage.run("verify node-1")
    tell("The second replica gets the same records through a pipe: dump on one side, append on the other.")
    for partition in range(PARTITIONS):
        records = stage.run(f"dump node-1 --partition {partition} --format ndjson", show=False)
        stage.originals[partition] = by_id(records)
        stage.run(
            f"append node-2 --partition {partition} --input-format ndjson --segment-size 300KiB",
            stdin=records,
            show=partition == 0,
        )
    stage.run("verify node-2")
    tell("A manifest keeps the hash of every file, for the end.")
    stage.run("verify node-1 --manifest node-1.manifest")


def flipped_bit(stage: Stage) -> None:
    """One bit of a sealed segment."""
    title("2. A bit flips in a sealed segment")
    storage = stage.copy("flipped")
    whole = digests(storage)
    victim = segments(storage, 1)[0]
    flip(victim, 200_000)
    damaged = digests(storage)
    stage.run("verify flipped", DAMAGED)
    (found,) = stage.findings("flipped", DAMAGED)
    lost = int(str(found["transaction_id"]))
    require(found["code"] == "record-checksum", f"exactly one record is named: transaction {lost}")
    tell("dump shows every other record, and the damage in its place:")
    stage.run(f"dump flipped --partition 1 --from {lost - 1} --to {lost + 1} --data utf8", DAMAGED)
    tell("The other replica has the record. The plan comes first; nothing is changed by looking at it.")
    stage.run("recover flipped --from node-2 --dry-run", DAMAGED)
    require(digests(storage) == damaged, "a dry run changes nothing")
    stage.run("recover flipped --from node-2 --yes")
    require(digests(storage) == whole, "every file is again what it was before the damage, byte for byte")
    stage.run("undo flipped --yes", DAMAGED)
    require(digests(storage) == damaged, "undo brought the damaged directory back, byte for byte")
    tell("Without a replica the segment can be split around the loss, so that everything else reads again. That loses a record,"
         " so it must be asked for, and the gap stays a finding.")  # fmt: skip
    stage.run("recover flipped --yes", DAMAGED)
    stage.run("recover flipped --allow-data-loss --yes", DAMAGE_REMAINS)
    left = stage.findings("flipped", DAMAGED)
    require(
        sorted(str(one["code"]) for one in left) == ["loss-accepted", "segment-gap"],
        "all that is left is a gap with a name, and the ledger's word that it was accepted",
    )
    kept, original = stage.records("flipped", 1, DAMAGED), stage.originals[1]
    require(original.keys() - kept.keys() == {lost}, f"transaction {lost} is lost, and no other")
    require(all(kept[number] == original[number] for number in kept), "all the others are what they were")
    stage.run("undo flipped --yes", DAMAGED)
    require(digests(storage) == damaged, "undo brought the damaged directory back, byte for byte")


def torn_tail(stage: Stage) -> None:
    """What a crash during an append leaves."""
    title("3. A crash in the middle of an append")
    storage = stage.copy("torn")
    last = segments(storage, 2)[-1]
    os.truncate(last, last.stat().st_size - 30)
    damaged = digests(storage)
    stage.run("verify torn", REPAIRABLE)
    stage.run("recover torn --yes")
    kept, original = stage.records("torn", 2), stage.originals[2]
    require(original.keys() - kept.keys() == {RECORDS - 1}, "only the record that was being written is gone")
    stage.run("undo torn --yes", REPAIRABLE)
    require(digests(storage) == damaged, "undo brought the torn tail back, byte for byte")
    tell("The same below the low-water mark is another matter: those records were acknowledged.")
    stage.run(f"truncate torn --partition 2 --after {SESSIONS[0] - 100} --yes", REFUSED)
    require(digests(storage) == damaged, "refused, and nothing was changed")


def indexes(stage: Stage) -> None:
    """Indexes are made of the data."""
    title("4. Indexes: one deleted, one damaged, one without its data file")
    storage = stage.copy("indexes")
    whole = digests(storage)
    segments(storage, 0)[1].with_suffix(".idx").unlink()
    flip(segments(storage, 3)[0].with_suffix(".idx"), 128 + 8 * 1000 + 7)
    stage.run("verify indexes", REPAIRABLE)
    stage.run("rebuild-index indexes --yes")
    require(digests(storage) == whole, "the rebuilt indexes are the same bytes as those that were lost")
    orphan = storage / "0" / f"{RECORDS:019}.idx"
    orphan.write_bytes(segments(storage, 0)[0].with_suffix(".idx").read_bytes()[:128])
    tell("An index without a data file is what a crash during roll-over leaves.")
    stage.run("verify indexes", REPAIRABLE)
    stage.run("recover indexes --yes")
    require(not orphan.exists(), "the orphan is gone")
    stage.run("append indexes --partition 0 --segment-size 1KiB", stdin=orders(0, RECORDS, 50))
    stage.run("verify indexes")


def control_struct(stage: Stage) -> None:
    """One of a pair is what the pair is for."""
    title("5. A torn write in the control file")
    storage = stage.copy("control")
    control = storage / "waltz-storage.ctl"
    flip(control, 128 + 60 * 3 + 4 + 12)
    damaged = digests(storage)
    stage.run("verify control", REPAIRABLE)
    stage.run("recover control --yes")
    stage.run("verify control")
    stage.run("undo control --yes", REPAIRABLE)
    require(digests(storage) == damaged, "undo brought the torn struct back, byte for byte")
    tell("Release 0.13.2 reads another layout of the control file than the documented one.")
    stage.run("recover control --yes", show=False)
    stage.run("convert control --layout released --yes")
    stage.run("verify control --for released")
    stage.run("undo control --yes", show=False)


def lost_segment(stage: Stage) -> None:
    """A whole segment is gone."""
    title("6. A whole segment is lost")
    storage = stage.copy("lost")
    victim = segments(storage, 3)[1]
    victim.with_suffix(".idx").unlink()
    victim.unlink()
    damaged = digests(storage)
    stage.run("verify lost", DAMAGED)
    stage.run("recover lost --yes", DAMAGED)
    tell("Only the other replica has these transactions. Its segments begin elsewhere; that is no hindrance.")
    stage.run("recover lost --from node-2 --yes")
    require(stage.records("lost", 3) == stage.originals[3], "every record of the partition is back")
    stage.run("undo lost --yes", DAMAGED)
    require(digests(storage) == damaged, "undo took it all away again, byte for byte")


def raw_image(stage: Stage) -> None:
    """Nothing is left but bytes."""
    title("7. Nothing is left but the bytes of a disk")
    noise = random.Random(2)
    files = [path for path in sorted((stage.root / "node-1").rglob("*")) if path.suffix in (".seg", ".idx")]
    noise.shuffle(files)
    image = stage.root / "disk.img"
    with image.open("wb") as out:
        for path in files:
            out.write(noise.choice([b"", bytes(4096), noise.randbytes(3000)]))
            out.write(path.read_bytes())
    tell(f"""{len(files)} files of node 1, shuffled into one image with zeros and noise between them; no file names, no control
         file. And, for good measure, one flipped bit in the middle of the first record of one segment.""")
    size = image.stat().st_size
    victim = next(path for path in files if path.suffix == ".seg" and path.parent.name == "2")
    lost = int(victim.stem)
    flip(image, image.read_bytes().index(victim.read_bytes()[:4096]) + 128 + 50)
    before = hashlib.sha256(image.read_bytes()).hexdigest()
    stage.run(f"salvage disk.img --to salvaged --partitions {PARTITIONS}", DAMAGE_REMAINS)
    require(hashlib.sha256(image.read_bytes()).hexdigest() == before, f"the image of {size:,} bytes was only read")
    left = stage.findings("salvaged", DAMAGED)
    require([one["code"] for one in left] == ["segment-gap"], "verify finds nothing wrong with it but the gap")
    for partition in range(PARTITIONS):
        status = DAMAGED if partition == 2 else CLEAN
        found, original = stage.records("salvaged", partition, status), stage.originals[partition]
        missing = original.keys() - found.keys()
        if missing:
            require((partition, missing) == (2, {lost}), f"transaction {lost} of partition 2 is lost, and no other")
        require(
            all(found[number] == original[number] for number in found),
            f"partition {partition}: {len(found):,} records are right",
        )


def nodes(stage: Stage) -> None:
    """Running nodes: load, a kill, and a replica that catches up."""
    title("8. Nodes: load, a kill, and a replica that catches up")
    stage.copy("served-1")
    shutil.copytree(stage.root / "served-1", stage.root / "served-2")
    kept = SESSIONS[0] // 2
    tell(f"A second replica has lost the end of partition 2: everything behind transaction {kept - 1}.")
    stage.run(f"truncate served-2 --partition 2 --after {kept - 1} --allow-data-loss --yes")
    with stage.serve("served-1") as first:
        stage.run(f"node {first.admin} list")
        stage.run(f"bench {first.data} --partition 0 --batch 10 --duration 1s --yes")
        tell("""The same load once more, and a writer beside it that appends to partition 3, one transaction at a time, and
             remembers which were acknowledged. In the middle of both the node is killed.""")
        last = stage.load(first, f"bench {first.data} --partition 0 --batch 10 --duration 1m --yes", 3, RECORDS, 4.0)
    stage.run("verify served-1", None)
    with stage.serve("served-1") as first, stage.serve("served-2") as second:
        stage.run(f"verify waltz://{first.admin}")
        behind = f"node {second.admin} --data-port {second.data.split(':')[1]}"
        stage.run(f"{behind} recover-partition --partition 2 --from {first.admin} --offline-first --yes")
        stage.run(f"{behind} max-transaction-id --partition 2")
    stage.run("verify served-1 served-2")
    written = stage.records("served-1", 3)
    require(set(written) >= set(range(last + 1)), f"every transaction that was acknowledged, up to {last}, is there")
    require(len(written) <= last + 2, "and at most one that was under way when the node died")
    caught_up = {number: record for number, record in stage.originals[2].items() if number < SESSIONS[0]}
    require(stage.records("served-2", 2) == caught_up, "the replica has every acknowledged record of partition 2 again")
    require(stage.records("served-1", 2) == stage.originals[2], "the other one is what it was")
    appended = len(stage.records("served-1", 0)) - RECORDS
    require(appended > 0, f"the killed node holds {appended:,} transactions of the load, and verifies clean")


def backups(stage: Stage) -> None:
    """A vault: two replicas in the room of one, a damaged vault that a replica mends, and everything restored."""
    title("9. Backups: two replicas in the room of one")
    shutil.copytree(stage.root / "node-1", stage.root / "grown")
    stage.run("backup init vault")
    stage.run("backup create vault grown --tag before")
    stage.run("backup create vault node-2")
    first, second = (
        json.loads(line) for line in stage.run("backup list vault --format ndjson", show=False).splitlines()
    )
    require(second["new_pages"] == 0, "the second replica brought nothing that the vault did not have")
    stage.run("append grown --partition 0", stdin=b"one more\n" * 1000)
    stage.run("backup create vault grown --tag after")
    stage.run(f"backup diff vault {first['id']} latest")
    tell("A backup is read where it is. Nothing has to be restored to look into it:")
    stage.run(f"compare vault:vault::{first['id']} node-2")
    stage.run("dump vault:vault::latest --partition 0 --from 0 --to 1 --data utf8")
    blob = max((stage.root / "vault" / "blob").iterdir(), key=lambda path: path.stat().st_size)
    flip(blob, blob.stat().st_size // 3)
    tell("One bit of the vault flips. What it costs is told for each backup, and another replica has what was lost:")
    stage.run("backup verify vault", DAMAGED)
    stage.run("backup restore vault latest --to restored", DAMAGED)
    require(not (stage.root / "restored").exists(), "what cannot be restored whole is not restored")
    stage.run("backup repair vault --from node-2")
    stage.run("backup verify vault")
    stage.run("backup forget vault --keep-last 1 --prune --yes")
    stage.run("backup restore vault latest --to restored")
    require(
        digests(stage.root / "restored") == digests(stage.root / "grown"), "every file is what it was, byte for byte"
    )
    stage.run(f"backup restore vault latest --to earlier --until 0:{RECORDS - 1}")
    require(stage.records("earlier", 0) == stage.originals[0], "up to a transaction, and not one further")


CLUSTER_RECORDS = 2_000
"""Transactions that a client appends to the cluster while a node and a server are killed."""


def cluster(stage: Stage) -> None:
    """Metadata, three nodes, two log servers, clients; a node and a server are killed."""
    title("10. A cluster: three nodes, two servers, clients; a node and a server are killed")
    stage.environment["WALTZCTL_METADATA"] = str(stage.root / "cluster.meta")
    stage.run("create-cluster c-1 c-2 c-3 --partitions 2 --metadata cluster.meta --name demo")
    names = ("c-1", "c-2", "c-3")
    ports = {name: _free_ports() for name in names}
    with contextlib.ExitStack() as running:
        nodes = {name: running.enter_context(stage.serve(name, _at(ports[name]))) for name in names}
        for number, name in enumerate(names):
            data, admin = ports[name]
            stage.run(f"cluster add-node 127.0.0.1:{data} --admin-port {admin} --group {number} --yes", show=False)
            stage.run(f"cluster auto-assign --group {number} --yes", show=False)
        one = "log-server --plaintext --storage-plaintext --port 0 --http-port off"
        first, _ = running.enter_context(stage.start("server-1", one))
        running.enter_context(stage.start("server-2", one))
        _settle(stage)
        stage.run("cluster show")
        tell("""Two clients append under one lock, each what it must get if nobody was faster; another one appends line after
             line. In the middle of it a storage node is killed, and then a server.""")
        lines = b"".join(b"order %d\n" % number for number in range(CLUSTER_RECORDS))
        (stage.root / "orders").write_bytes(lines)
        validating = running.enter_context(
            stage.beside("log validate --plaintext --partition 0 --clients 2 --transactions 150")
        )
        appending = running.enter_context(
            stage.beside("log append --plaintext --partition 1 --progress-ids -q --in-flight 16", "orders")
        )
        while stage.acknowledged("log append") < CLUSTER_RECORDS // 10:
            time.sleep(0.02)
        nodes["c-3"].kill()
        while stage.acknowledged("log append") < CLUSTER_RECORDS // 4:
            time.sleep(0.02)
        print(f"\n  {_colour(BOLD, f'$ kill -9 {first.pid}')}   (a log server)")
        first.kill()
        first.wait()
        require(appending.wait(120) == CLEAN, "every line was committed, through both deaths")
        require(validating.wait(120) == CLEAN, "locks held, and nothing was lost or doubled")
        nodes["c-3"] = running.enter_context(stage.serve("c-3", _at(ports["c-3"])))
        running.enter_context(stage.start("server-1", one))
        _settle(stage)
        stage.run("cluster verify --plaintext")
        read = stage.run("log tail --plaintext --partition 1 --data utf8 --format ndjson", show=False)
        found = [json.loads(line)["data"] for line in read.splitlines()]
        require(
            found == lines.decode().split("\n")[:-1],
            f"all {len(found):,} acknowledged transactions are there, in order",
        )
        stage.run("cluster top --plaintext --once")
    stage.run("compare c-1 c-2 c-3", None)
    stage.run("verify c-1 c-2 c-3")
    del stage.environment["WALTZCTL_METADATA"]


def _settle(stage: Stage) -> None:
    """Wait until the cluster is as its metadata says."""
    until = time.monotonic() + 60
    while "finding" in (said := stage.quietly("cluster verify --plaintext --format ndjson")):
        if time.monotonic() > until:
            raise UnexpectedError(f"the cluster does not settle: {said}")
        time.sleep(0.2)


def _free_ports() -> tuple[int, int]:
    """Two that nobody listens at."""
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        return one.getsockname()[1], other.getsockname()[1]


def _at(ports: tuple[int, int]) -> str:
    return f"--port {ports[0]} --admin-port {ports[1]} --http-port off --plaintext"


SCENES: tuple[Callable[[Stage], None], ...] = (
    fill, flipped_bit, torn_tail, indexes, control_struct, lost_segment, raw_image, nodes, backups, cluster,
)  # fmt: skip


def play(stage: Stage) -> None:
    """Every scene; at the end the original must be what it was."""
    begun = time.monotonic()
    print(f"Working in {stage.root}")
    SCENES[0](stage)
    before = digests(stage.root / "node-1"), digests(stage.root / "node-2")
    for scene in SCENES[1:]:
        scene(stage)
    title("The end")
    require(
        before == (digests(stage.root / "node-1"), digests(stage.root / "node-2")),
        "both replicas are untouched by all of this",
    )
    stage.run("verify node-1 --manifest node-1.manifest")
    elapsed = time.monotonic() - begun
    print(f"\nEverything was as it should be: {stage.commands} commands in {elapsed:.0f} seconds.")


def main() -> int:
    """Play, clean up, and tell by the exit status whether everything was as it should be."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--keep", action="store_true", help="keep the data, to look around")
    parser.add_argument("--directory", type=Path, help="where to work; must not exist (default: a temporary directory)")
    arguments = parser.parse_args()
    if arguments.directory:
        arguments.directory.mkdir()
        root = arguments.directory.resolve()
    else:
        root = Path(tempfile.mkdtemp(prefix="waltzctl-demo-"))
    try:
        play(Stage(root))
    except UnexpectedError as error:
        print(f"\n{_colour(RED, 'FAILED')}  {error}", file=sys.stderr)
        return 1
    finally:
        if arguments.keep:
            print(f"The data is kept in {root}")
        else:
            shutil.rmtree(root)
    return 0


if __name__ == "__main__":
    sys.exit(main())
