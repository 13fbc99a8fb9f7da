"""Runs of a pipeline in a process of their own, one Spark for all of them: ``python -m tests.pipeline.runner DIR``.

Each line on stdin is a file with what is asked for, as JSON; what came of it is written beside it, by rename, with every table.
"""

from __future__ import annotations

import json
import os
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

TABLES = ("records", "quarantine", "transactions", "tallies", "state_history", "completeness", "activity")


def plain(value: Any) -> str | float:
    """Bytes in hex, times in seconds since 1970."""
    return value.timestamp() if isinstance(value, datetime) else bytes(value).hex()


def main(directory: Path) -> None:
    from waltzctl.engine.errors import WaltzError
    from waltzctl.engine.pipeline.project import open_project
    from waltzctl.engine.pipeline.running import RunOptions, run_at, serving
    from waltzctl.engine.spark.spark_session import SparkOptions

    conf = {"spark.sql.shuffle.partitions": "2", "spark.sql.pipelines.execution.maxFlowRetryAttempts": "0"}
    with serving(open_project(directory), SparkOptions("local[2]", tuple(conf.items()))) as server:
        spark = server.session.spark
        for line in sys.stdin:
            asked = Path(line.strip())
            given = json.loads(asked.read_text())
            options = RunOptions(**{name: tuple(v) if isinstance(v, list) else v for name, v in given.items()})
            said: list[str] = []
            found: dict[str, Any] = {"said": said}
            try:
                report = run_at(server, open_project(directory), options, said.append)
                found["status"] = report.exit_status_name
                found["gaps"] = [
                    [one.node, one.partition, one.kind, one.first_transaction_id, one.last_transaction_id]
                    for one in report.gaps or ()
                ]
            except WaltzError as error:
                found |= {"status": error.status, "error": str(error)}
            tables = {}
            for name in TABLES if "error" not in found and not options.dry_run else ():
                spark.sql(f"REFRESH TABLE {name}")
                tables[name] = [row.asDict(recursive=True) for row in spark.table(name).collect()]
            if "error" not in found and not options.dry_run:
                tables["state"] = [row.asDict() for row in spark.read.parquet(str(directory / "state")).collect()]
            found["tables"] = tables
            answer = asked.with_suffix(".tmp")
            answer.write_text(json.dumps(found, default=plain))
            os.replace(answer, asked.with_suffix(".answer"))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
