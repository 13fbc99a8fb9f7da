"""How long the command line takes to answer when there is hardly anything to do.

    python benchmarks/startup.py [--runs 20] [--records 1000] [--json] [--directory DIR]

Minimum and median of whole processes, beside the bare interpreter, and the sum of all imports as ``-X importtime`` counts
them.  Wanted: the imports of ``--help`` below 150 ms, ``verify`` of a small directory below 500 ms.
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
VERIFY_LIMIT = 500.0
"""Milliseconds for ``verify`` of a small directory."""
RECORD_SIZE = 140


def run(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, env=environment(), check=True)


def milliseconds(runs: int, *arguments: str) -> list[float]:
    run(*arguments)  # compiles, and warms the cache
    times = []
    for _ in range(runs):
        begin = time.perf_counter()
        run(*arguments)
        times.append((time.perf_counter() - begin) * 1000)
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
            "python -c pass": ("-c", "pass"),
            "waltzctl --help": ("-m", "waltzctl", "--help"),
            "waltzctl verify --help": ("-m", "waltzctl", "verify", "--help"),
            "waltzctl status": ("-m", "waltzctl", "status", storage),
            "waltzctl verify": ("-m", "waltzctl", "verify", storage),
            "waltzctl dump --limit 1": ("-m", "waltzctl", "dump", storage, "--limit", "1"),
        }
        for name, words in cases.items():
            times = milliseconds(arguments.runs, *words)
            rows.append(
                {
                    "case": name,
                    "min_ms": min(times),
                    "median_ms": statistics.median(times),
                    "imports_ms": imports(*words),
                }
            )
    if arguments.json:
        limits = {"help_imports_ms": IMPORTS_LIMIT, "verify_ms": VERIFY_LIMIT}
        print(json.dumps({"benchmark": "startup", "rows": rows, "limits": limits}))
        return
    print(f"whole processes, {arguments.runs} runs, {arguments.records} records of {RECORD_SIZE} bytes; milliseconds")
    print(f"{'':26}{'min':>8}{'median':>9}{'imports':>9}")
    for row in rows:
        print(f"{row['case']:26}{row['min_ms']:>8.0f}{row['median_ms']:>9.0f}{row['imports_ms']:>9.0f}")
    print(f"wanted: imports of --help below {IMPORTS_LIMIT:.0f}, verify below {VERIFY_LIMIT:.0f}")


if __name__ == "__main__":
    main()
