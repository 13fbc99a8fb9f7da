"""How long a storage directory takes to open: ours against the released storage manager, in turn, on copies of the same bytes.

    WALTZ_CLASSPATH=... python benchmarks/open.py [--size MiB] [--rounds N] [--cold] [--json] [--directory DIR]

One partition of one segment, records of 100 B and 1 KiB of data, as it was closed and as a crash may leave it: the last record
torn, and the index cut back (by 500 entries, by half, to its header).  Both programs time the opening alone, without the start
of a process: `StorageDirectory.open`, and the storage manager through the Java driver `OpenDir DIR THRESHOLD`, which must be
on the class path together with the release.  Without ``WALTZ_CLASSPATH`` only ours is measured.  With ``--cold`` the files are
dropped from the system's memory first.  Wanted: at most half of the release's time.
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
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from generated import data_files, make_storage, total_bytes, workplace
from measuring import environment

from waltzctl.engine.scan.kernels import choose
from waltzctl.formats.segment import ENTRY_SIZE, HEADER_SIZE, RECORD_OVERHEAD

WANTED = 0.5
"""Of the release's time, at most."""
THRESHOLD = 2 << 30
CLASSPATH = "WALTZ_CLASSPATH"
_OURS = """
import sys, time
from pathlib import Path
from waltzctl.engine.storage.directory import StorageDirectory, StorageOptions
begin = time.perf_counter()
storage = StorageDirectory.open(Path(sys.argv[1]), options=StorageOptions(int(sys.argv[2])))
print("OPENED ms=%.2f" % ((time.perf_counter() - begin) * 1e3), storage.partition(0).next_transaction_id, end=" ")
print(int(storage.partition(0).quarantined))
storage.close()
"""


def _cut_index(entries: Callable[[int], int]) -> Callable[[Path], None]:
    def spoil(path: Path) -> None:
        index = sorted(path.glob("0/*.idx"))[-1]
        count = (index.stat().st_size - HEADER_SIZE) // ENTRY_SIZE
        os.truncate(index, HEADER_SIZE + ENTRY_SIZE * entries(count))

    return spoil


def _tear(path: Path) -> None:
    data = sorted(path.glob("0/*.seg"))[-1]
    os.truncate(data, data.stat().st_size - 50)


CASES: dict[str, Callable[[Path], None]] = {
    "clean": lambda _: None,
    "torn tail": _tear,
    "index cut by 500": _cut_index(lambda count: count - 500),
    "index cut by half": _cut_index(lambda count: count // 2),
    "index of no entries": _cut_index(lambda _: 0),
}


@dataclass(frozen=True, slots=True)
class Row:
    """Medians of one case, in milliseconds."""

    data_size: int
    case: str
    ours_ms: float
    release_ms: float | None

    @property
    def ratio(self) -> float | None:
        """Of the release's time."""
        return None if self.release_ms is None else self.ours_ms / self.release_ms


def fresh_copy(source: Path, target: Path, spoil: Callable[[Path], None], *, cold: bool) -> None:
    """A copy of its own, durable, so that the opening pays for nothing but itself."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)
    spoil(target)
    os.sync()
    for file in data_files(target):
        descriptor = os.open(file, os.O_RDONLY)
        os.fsync(descriptor)
        if cold:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def opened_ms(*command: str) -> float:
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), check=False)
    found = re.search(r"OPENED ms=([0-9.]+)", done.stdout)
    if done.returncode or not found or done.stdout.rstrip().endswith("1\n"):
        raise SystemExit(f"not opened: {done.stdout}{done.stderr}")
    return float(found[1])


def measure(source: Path, copy: Path, case: str, rounds: int, classpath: str | None, *, cold: bool) -> Row:
    programs = {"ours": (sys.executable, "-c", _OURS, str(copy), str(THRESHOLD))}
    if classpath:
        programs["release"] = ("java", "-cp", classpath, "OpenDir", str(copy), str(THRESHOLD))
    times: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(rounds):
        for name, command in programs.items():
            fresh_copy(source, copy, CASES[case], cold=cold)
            times[name].append(opened_ms(*command))
    medians = {name: statistics.median(values) for name, values in times.items()}
    return Row(0, case, medians["ours"], medians.get("release"))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--size", type=int, default=1024, help="MiB of the partition")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--directory", type=Path)
    arguments = parser.parse_args()
    classpath = os.environ.get(CLASSPATH)
    print(
        f"scan kernel: {choose(1 << 40, compiled=True).name}", file=sys.stderr
    )  # compiled now, if never on this machine
    rows = []
    size = arguments.size << 20
    with workplace(arguments.directory, size * 5 // 2) as place:
        for data_size in (100, 1024):
            source = place / "source"
            make_storage(source, size=size, record_size=data_size + RECORD_OVERHEAD, segment_size=THRESHOLD)
            if not arguments.json:
                print(
                    f"{total_bytes(source) >> 20} MiB, records of {data_size} bytes of data; milliseconds", flush=True
                )
                print(f"{'':22}{'ours':>10}{'release':>10}{'ratio':>8}")
            for case in CASES:
                found = measure(source, place / "copy", case, arguments.rounds, classpath, cold=arguments.cold)
                row = Row(data_size, case, found.ours_ms, found.release_ms)
                rows.append(row)
                if not arguments.json:
                    ratio = "" if row.ratio is None else f"{row.ratio:8.3f}"
                    other = "" if row.release_ms is None else f"{row.release_ms:10.1f}"
                    print(f"{case:22}{row.ours_ms:10.1f}{other:>10}{ratio:>8}", flush=True)
            shutil.rmtree(source)
    if arguments.json:
        print(
            json.dumps({"benchmark": "open", "wanted": WANTED, "rows": [{**asdict(r), "ratio": r.ratio} for r in rows]})
        )
    elif classpath:
        worst = max(row.ratio or 0 for row in rows)
        print(f"wanted: at most {WANTED} of the release's time; the worst is {worst:.3f}")
    else:
        print(f"{CLASSPATH} is not set: the release was not measured")


if __name__ == "__main__":
    main()
