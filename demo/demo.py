"""A tour of waltzctl on generated data: from create over damage and repair to nodes, backups, a cluster and a pipeline.

``make demo``, or ``python demo/demo.py [--keep] [--directory DIR]`` where waltzctl is installed.  Every command is run as a
user would run it; what it says and its exit status are shown, and the demonstration ends with status 1 as soon as anything
is not as it should be.  Takes some minutes; the pipeline is left out where PySpark is not installed.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib.util
import json
import os
import random
import shutil
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import side_by_side
from stage import (
    BOLD,
    CLEAN,
    DAMAGE_REMAINS,
    DAMAGED,
    PROJECT,
    RED,
    REFUSED,
    REPAIRABLE,
    Stage,
    UnexpectedError,
    by_id,
    colour,
    digests,
    flip,
    orders,
    require,
    segments,
    tell,
    title,
)  # fmt: skip

sys.path.insert(0, str(PROJECT))

from tests.reserved_ports import reserved_ports

PARTITIONS = 4
RECORDS = 25_000
"""Records appended to each partition."""
SESSIONS = (20_000, 5_000)
"""The same by session: what the first one wrote is below the low-water mark once the second has begun."""


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
    (end,) = by_id(stage.run("dump served-1 --partition 0 --reverse --limit 1 --format ndjson"))
    require(end >= RECORDS, f"the killed node holds {end + 1 - RECORDS:,} transactions of the load, and verified clean")


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
CLUSTER_LOCKED = 150
"""Transactions that each of two clients appends under one lock meanwhile."""


def cluster(stage: Stage) -> None:
    """Metadata, three nodes, two log servers, clients, a Spark stream; a node and a server are killed."""
    title("10. A cluster: three nodes, two servers, clients, a stream; a node and a server are killed")
    with _metadata(stage) as metadata:
        stage.environment["WALTZCTL_METADATA"] = metadata
        _cluster(stage, metadata)
        del stage.environment["WALTZCTL_METADATA"]


@contextlib.contextmanager
def _metadata(stage: Stage) -> Iterator[str]:
    """Where the cluster's metadata is: in ZooKeeper, whose jars come with PySpark; without them in one file."""
    if importlib.util.find_spec("pyspark") is None or importlib.util.find_spec("pytest") is None:
        tell("The metadata is in one file: ZooKeeper comes with PySpark, which is not installed.")
        yield str(stage.root / "cluster.meta")
        return
    from tests.zookeeper import running

    with running(stage.root / "zookeeper") as server:
        tell(f"ZooKeeper, of the jars that PySpark has, answers at {server.connect_string}.")
        yield f"zk://{server.connect_string}/demo"


def _cluster(stage: Stage, metadata: str) -> None:
    """The scene `cluster`, with its metadata there."""
    stage.run(f"create-cluster c-1 c-2 c-3 --partitions 2 --metadata {metadata} --name demo")
    names = ("c-1", "c-2", "c-3")
    free = reserved_ports(2 * len(names))  # a node that was killed is found again where it was
    ports = dict(zip(names, zip(free[::2], free[1::2], strict=True), strict=True))
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
        streamed = None
        if importlib.util.find_spec("pyspark") is not None:
            streamed = running.enter_context(stage.streaming(metadata))
        lines = b"".join(b"order %d\n" % number for number in range(CLUSTER_RECORDS))
        (stage.root / "orders").write_bytes(lines)
        validating = running.enter_context(
            stage.beside(f"log validate --plaintext --partition 0 --clients 2 --transactions {CLUSTER_LOCKED}")
        )
        appending = running.enter_context(
            stage.beside("log append --plaintext --partition 1 --progress-ids -q --in-flight 16", "orders")
        )
        while stage.acknowledged("log append") < CLUSTER_RECORDS // 10:
            time.sleep(0.02)
        nodes["c-3"].kill()
        while stage.acknowledged("log append") < CLUSTER_RECORDS // 4:
            time.sleep(0.02)
        print(f"\n  {colour(BOLD, f'$ kill -9 {first.pid}')}   (a log server)")
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
        if streamed is not None:
            rows = streamed()
            require(
                [(number, line) for partition, number, line in rows if partition == 1] == [*enumerate(found)],
                "the stream wrote each of them once, through both deaths",
            )
            require(
                [number for partition, number, _ in rows if partition == 0] == [*range(2 * CLUSTER_LOCKED)],
                "and each transaction of the two clients once",
            )
        stage.run("cluster top --plaintext --once")
    stage.run("compare c-1 c-2 c-3")
    stage.run("verify c-1 c-2 c-3")


def _settle(stage: Stage) -> None:
    """Wait until the cluster is as its metadata says."""
    until = time.monotonic() + 60
    while "finding" in (said := stage.quietly("cluster verify --plaintext --format ndjson")):
        if time.monotonic() > until:
            raise UnexpectedError(f"the cluster does not settle: {said}")
        time.sleep(0.2)


def _at(ports: tuple[int, int]) -> str:
    return f"--port {ports[0]} --admin-port {ports[1]} --http-port off --plaintext"


DECODER = """\
import re

SCHEMA = "customer INT, item STRING, cents INT"
KEY = ("customer",)


def decode(header, data):
    number, item, customer, cents = re.fullmatch(r"order (\\d+): (.+) for customer (\\d+), (\\d+) cents", data.decode()).groups()
    return {"customer": int(customer), "item": item, "cents": int(cents)}
"""
"""What an order says, for the pipeline."""


def pipeline(stage: Stage) -> None:
    """The log as tables, of two replicas of which one is damaged."""
    title("11. The log as tables: a pipeline over two replicas, one of them damaged")
    if importlib.util.find_spec("pyspark") is None:
        tell("Left out: PySpark is not installed (pip install 'waltzctl[spark]').")
        return
    import pyarrow.parquet as parquet

    flip(segments(stage.copy("damaged"), 1)[0], 200_000)
    (found,) = stage.findings("damaged", DAMAGED)
    lost = found["transaction_id"]
    (stage.root / "orders.py").write_text(DECODER)
    tell("What an order says is one function: text in, columns out. The rest of the project is written by init.")
    print(textwrap.indent(DECODER, "    "))
    stage.run("pipeline init lake --source damaged --source node-2 --decoder orders.py")
    said = stage.run("pipeline run lake --require complete --format ndjson", REPAIRABLE)
    gaps = [json.loads(line) for line in said.splitlines() if b"pipeline-gap" in line]
    require(
        [(one["node"], one["partition"], one["first_transaction_id"]) for one in gaps]
        == [(str(stage.root / "damaged"), 1, lost)],
        f"one gap is named: transaction {lost} of partition 1, of the damaged replica",
    )
    agreed = parquet.read_table(
        stage.root / "lake" / "transactions", columns=["partition", "transaction_id", "replicas"]
    )
    once = {(one["partition"], one["transaction_id"]): one["replicas"] for one in agreed.to_pylist()}
    require(
        len(once) == agreed.num_rows == PARTITIONS * SESSIONS[0],
        f"{agreed.num_rows:,} transactions are up to the low-water marks, each once",
    )
    require(
        [place for place, replicas in once.items() if replicas != 2] == [(1, lost)],
        "both replicas agreed on each but that one, which the other replica gave",
    )
    state = parquet.read_table(stage.root / "lake" / "state").to_pylist()
    last = {
        (one["customer"], partition): number
        for partition in range(PARTITIONS)
        for number, line in enumerate(orders(partition, 0, SESSIONS[0]).decode().splitlines())
        if (one := {"customer": int(line.split("customer ")[1].split(",")[0])})
    }
    require(
        {(one["customer"], one["partition"]): one["transaction_id"] for one in state} == last,
        f"the last order of each of {len(last):,} customers by partition is in the table state",
    )
    remedies = parquet.read_table(stage.root / "lake" / "quarantine").to_pylist()
    require(len(remedies) == 1, f"quarantine says what to do: {remedies[0]['remedy']}")
    stage.run("recover damaged --from node-2 --yes", show=False)
    tell("What was read is not read again, so the table is told to begin anew; what is made of it follows.")
    stage.run("pipeline run lake --full-refresh records --require complete")


SCENES: tuple[Callable[[Stage], None], ...] = (
    fill, flipped_bit, torn_tail, indexes, control_struct, lost_segment, raw_image, nodes, backups, cluster, pipeline,
)  # fmt: skip


def play(stage: Stage) -> None:
    """Every scene, after the first as many at once as there are processors; at the end the original must be what it was."""
    begun = time.monotonic()
    print(f"Working in {stage.root}")
    SCENES[0](stage)
    before = digests(stage.root / "node-1"), digests(stage.root / "node-2")
    side_by_side.play(stage, SCENES[1:], begin_with=pipeline, at_once=max(1, os.cpu_count() or 1))
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
        print(f"\n{colour(RED, 'FAILED')}  {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return 130
    finally:
        if arguments.keep:
            print(f"The data is kept in {root}")
        else:
            shutil.rmtree(root)
    return 0


if __name__ == "__main__":
    sys.exit(main())
