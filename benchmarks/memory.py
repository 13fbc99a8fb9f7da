"""Peak memory of ``waltzctl verify`` for a small and a large directory: it must not grow with the data.

    python benchmarks/memory.py [--small 64] [--large 2048] [--record-size 1024] [--json] [--directory DIR]

Sizes in MiB.  Each figure is the peak resident memory of a whole process, interpreter included.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from generated import make_storage, workplace
from measuring import expect_clean, measure

LIMIT = 1.2
"""The large directory may take at most this many times the memory of the small one."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--small", type=int, default=64, metavar="MIB")
    parser.add_argument("--large", type=int, default=2048, metavar="MIB")
    parser.add_argument("--record-size", type=int, default=1024, metavar="BYTES")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--directory", type=Path)
    arguments = parser.parse_args()
    rows = []
    with workplace(arguments.directory, (arguments.small + arguments.large) << 20) as place:
        for size in (arguments.small, arguments.large):
            storage = place / f"{size}"
            records = make_storage(storage, size=size << 20, record_size=arguments.record_size, segment_size=1000 << 20)
            expect_clean(measure("verify", str(storage)))  # compiles, and warms the cache
            measured = expect_clean(measure("verify", str(storage), repeat=3))
            rows.append(
                {"mib": size, "records": records, "peak_mib": measured.peak_kib / 1024, "seconds": measured.seconds}
            )
    ratio = rows[1]["peak_mib"] / rows[0]["peak_mib"]
    if arguments.json:
        print(json.dumps({"benchmark": "memory", "rows": rows, "ratio": ratio, "limit": LIMIT}))
        return
    print(f"waltzctl verify, records of {arguments.record_size} bytes, peak resident memory of the process")
    print(f"{'data':>10}  {'records':>10}  {'peak':>10}  {'seconds':>8}")
    for row in rows:
        print(f"{row['mib']:>6} MiB  {row['records']:>10,}  {row['peak_mib']:>6.1f} MiB  {row['seconds']:>8.2f}")
    print(f"large / small: {ratio:.3f} (at most {LIMIT} is wanted)")


if __name__ == "__main__":
    main()
