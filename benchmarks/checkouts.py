"""Another checkout of this project beside this one, in one run: opening, appending, verifying, dumping and reading for Spark.

    git worktree add /tmp/before SOME_COMMIT
    python benchmarks/checkouts.py /tmp/before [--size MiB] [--rounds N] [--json] [--directory DIR]

Each cell runs in a process of its own with the code of one checkout and the interpreter of this one, both in turn, the other
checkout first in every second round, on the same files (copies of their own where a cell changes them).  A process does its work
`REPEAT` times and prints the fastest, without its start and without what a first call compiles; of the rounds the median counts.
The ratio is this checkout's time by the other's: 1.03 is three per cent slower.  Spark's reader runs without a JVM: its splits
are planned and read into Arrow batches as a worker does it.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from generated import make_storage, workplace
from measuring import PROJECT, environment

from waltzctl.formats.segment import RECORD_OVERHEAD

DATA_SIZES = (100, 1024)
"""Bytes of data of a record."""
REPEAT = 5
_TIMED = """
import sys, time
from pathlib import Path
place, repeat = Path(sys.argv[1]), int(sys.argv[2])
{setup}
best = None
for turn in range(repeat + 1):
    {before}
    begin = time.perf_counter()
    {work}
    took = time.perf_counter() - begin
    {after}
    if turn:  # the first compiles and fills caches
        best = took if best is None else min(best, took)
print("BEST", best)
"""
_OPEN = {
    "setup": "from waltzctl.engine.storage.directory import StorageDirectory, StorageOptions",
    "before": "pass",
    "work": "storage = StorageDirectory.open(place, options=StorageOptions(2 << 30))",
    "after": "storage.close()",
}
_APPEND = {
    "setup": """
from waltzctl.engine.storage.directory import StorageDirectory, StorageOptions
from waltzctl.formats.request_id import RequestId
from waltzctl.formats.segment import Record
storage = StorageDirectory.open(place, options=StorageOptions(2 << 30))
partition = storage.partition(0)
""",
    "before": """
    first = partition.next_transaction_id
    made = [Record.make(first + n, RequestId(7, 1, 0, n), 0, bytes({size})) for n in range({count} * {batches})]
    lots = [made[n : n + {count}] for n in range(0, len(made), {count})]
""",
    "work": """
    for lot in lots:
        partition.append(lot)
""",
    "after": "pass",
}
CELLS: dict[str, dict[str, str]] = {
    "open": _OPEN,
    "append 1 record": {
        name: text.replace("{count}", "1").replace("{batches}", "200") for name, text in _APPEND.items()
    },
    "append 1000": {name: text.replace("{count}", "1000").replace("{batches}", "20") for name, text in _APPEND.items()},
    "verify": {
        "setup": "from waltzctl.engine.inspect.verify import verify",
        "before": "pass",
        "work": "found = list(verify([place]))",
        "after": "assert len(found) == 1, found",
    },
    "verify quick": {
        "setup": "from waltzctl.engine.inspect.verify import VerifyOptions, verify",
        "before": "pass",
        "work": "found = list(verify([place], VerifyOptions(quick=True)))",
        "after": "assert len(found) == 1, found",
    },
    "dump": {
        "setup": "from waltzctl.engine.inspect.dump import dump_records",
        "before": "pass",
        "work": "count = sum(1 for _ in dump_records(place, limit=100_000))",
        "after": "assert count",
    },
    "Spark's reader": {
        "setup": """
from pyspark_waltz import WaltzDataSource
source = WaltzDataSource({"path": str(place)})
schema = source.schema()
""",
        "before": "pass",
        "work": """
    reader = source.reader(schema)
    rows = sum(batch.num_rows for part in reader.partitions() for batch in reader.read(part))
""",
        "after": "assert rows",
    },
}
CHANGING = frozenset(name for name in CELLS if name.startswith("append"))


@dataclass(frozen=True, slots=True)
class Row:
    """Medians of a cell, in milliseconds."""

    cell: str
    data_size: int
    other_ms: float
    this_ms: float

    @property
    def ratio(self) -> float:
        """This checkout's time by the other's."""
        return self.this_ms / self.other_ms


def best_ms(checkout: Path, cell: str, data_size: int, place: Path) -> float:
    """What one process with the code of `checkout` needs, in milliseconds."""
    program = _TIMED
    for name, text in CELLS[cell].items():
        program = program.replace("{" + name + "}", text.strip("\n").lstrip() if name != "setup" else text)
    program = program.replace("{size}", str(data_size))
    command = [sys.executable, "-c", program, str(place), str(REPEAT)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(checkout), cwd=checkout, check=False)
    found = re.search(r"BEST ([0-9.e-]+)", done.stdout)
    if done.returncode or not found:
        raise SystemExit(f"{checkout}: {cell}: {done.stderr}")
    return float(found[1]) * 1e3


def measure(other: Path, cell: str, data_size: int, source: Path, rounds: int) -> Row:
    """Both checkouts in turn."""
    times: dict[Path, list[float]] = {other: [], PROJECT: []}
    for turn in range(rounds):
        for checkout in (other, PROJECT) if turn % 2 else (PROJECT, other):
            place = source
            if cell in CHANGING:
                place = source.with_name("copy")
                shutil.rmtree(place, ignore_errors=True)
                shutil.copytree(source, place)
                os.sync()
            times[checkout].append(best_ms(checkout, cell, data_size, place))
    return Row(cell, data_size, statistics.median(times[other]), statistics.median(times[PROJECT]))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("other", type=Path, help="the other checkout")
    parser.add_argument("--size", type=int, default=128, help="MiB of the partition")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cell", action="append", choices=list(CELLS), help="only this one (again for more)")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--directory", type=Path)
    arguments = parser.parse_args()
    other = arguments.other.resolve()
    if not (other / "waltzctl").is_dir():
        raise SystemExit(f"{other}: no checkout of this project")
    rows = []
    size = arguments.size << 20
    with workplace(arguments.directory, size * 3) as place:
        for data_size in DATA_SIZES:
            source = place / "source"
            make_storage(source, size=size, record_size=data_size + RECORD_OVERHEAD, segment_size=64 << 20)
            if not arguments.json:
                print(f"records of {data_size} bytes of data; milliseconds")
                print(f"{'':18}{'other':>10}{'this':>10}{'ratio':>8}")
            for cell in arguments.cell or CELLS:
                row = measure(other, cell, data_size, source, arguments.rounds)
                rows.append(row)
                if not arguments.json:
                    print(f"{cell:18}{row.other_ms:10.2f}{row.this_ms:10.2f}{row.ratio:8.3f}", flush=True)
            shutil.rmtree(source)
    if arguments.json:
        print(json.dumps({"benchmark": "checkouts", "rows": [{**asdict(row), "ratio": row.ratio} for row in rows]}))


if __name__ == "__main__":
    main()
