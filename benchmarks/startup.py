"""How long the command line takes to answer when there is hardly anything to do.

    python benchmarks/startup.py [--runs 20] [--records 1000] [--json] [--directory DIR]

Minimum and median of whole processes, as they are and as multiples of the bare interpreter's (``python -c pass``), which says
more on another machine; and the sum of all imports as ``-X importtime`` counts them.  The cases take turns, so that a
busy moment meets all of them.  Wanted: ``--help`` 5 times the bare interpreter, ``verify`` of a small directory 12.5 times
(0.10 s and 0.25 s where it takes 20 ms), the imports of ``--help`` below 150 ms.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path

from generated import make_storage, workplace
from measuring import environment

IMPORTS_LIMIT = 150.0
"""Milliseconds for the imports of ``--help``."""
WANTED = {"waltzctl --help": 5.0, "waltzctl verify": 12.5}
"""Multiples of the bare interpreter's time."""
BARE = "python -c pass"
RECORD_SIZE = 140


def run(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, env=environment(), check=True)


def milliseconds(runs: int, cases: dict[str, tuple[str, ...]]) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in cases}
    for words in cases.values():
        run(*words)  # compiles, and warms the cache
    for _ in range(runs):
        for name, words in cases.items():
            begin = time.perf_counter()
            run(*words)
            times[name].append((time.perf_counter() - begin) * 1000)
    return times


def imports(*arguments: str) -> float:
    """Milliseconds of all imports, each module's own time; the least of five runs."""
    totals = []
    for _ in range(5):
        text = run("-X", "importtime", *arguments).stderr.decode()
        totals.append(sum(map(int, re.findall(r"^import time:\s+(\d+) \|", text, re.M))) / 1000)
    return min(totals)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--records", type=int, default=1000)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--directory", type=Path)
    arguments = parser.parse_args()
    rows = []
    size = arguments.records * RECORD_SIZE
    with workplace(arguments.directory, size) as place:
        storage = str(place / "storage")
        make_storage(Path(storage), size=size, record_size=RECORD_SIZE)
        cases = {
            BARE: ("-c", "pass"),
            "waltzctl --help": ("-m", "waltzctl", "--help"),
            "waltzctl verify --help": ("-m", "waltzctl", "verify", "--help"),
            "waltzctl status": ("-m", "waltzctl", "status", storage),
            "waltzctl verify": ("-m", "waltzctl", "verify", storage),
            "waltzctl dump --limit 1": ("-m", "waltzctl", "dump", storage, "--limit", "1"),
        }
        measured = milliseconds(arguments.runs, cases)
        bare = min(measured[BARE]), statistics.median(measured[BARE])
        for name, words in cases.items():
            least, middle = min(measured[name]), statistics.median(measured[name])
            rows.append(
                {
                    "case": name,
                    "min_ms": least,
                    "median_ms": middle,
                    "min_ratio": least / bare[0],
                    "median_ratio": middle / bare[1],
                    "imports_ms": imports(*words),
                }
            )
    if arguments.json:
        limits = {"help_imports_ms": IMPORTS_LIMIT, "median_ratio": WANTED}
        print(json.dumps({"benchmark": "startup", "rows": rows, "limits": limits}))
        return
    print(f"whole processes, {arguments.runs} runs, {arguments.records} records of {RECORD_SIZE} bytes; milliseconds")
    print(f"{'':26}{'min':>8}{'median':>9}{'x bare':>9}{'imports':>9}")
    for row in rows:
        figures = f"{row['min_ms']:>8.0f}{row['median_ms']:>9.0f}{row['median_ratio']:>9.1f}{row['imports_ms']:>9.0f}"
        print(f"{row['case']:26}{figures}")
    wanted = ", ".join(f"{name} {ratio:.1f} x bare" for name, ratio in WANTED.items())
    print(f"wanted: imports of --help below {IMPORTS_LIMIT:.0f} ms; {wanted}")


if __name__ == "__main__":
    main()
