"""stats says so when there are more clients than it keeps."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.builders import CREATED, build_directory
from tests.cli.running import invoke
from tests.inspect.helpers import age
from tests.stats.support import set_times
from waltzctl.engine.stats import stats as counting
from waltzctl.engine.stats.aggregate import TableBounds
from waltzctl.engine.stats.gathering import StatsTask


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a few rows are kept."""
    bounds = TableBounds(clients=8, headers=8)

    class Task(StatsTask):
        def __init__(self, *given: object, **named: object) -> None:
            super().__init__(*given, **{"bounds": bounds, **named})  # type: ignore[arg-type]

    collector = counting.Collector
    monkeypatch.setattr(counting, "StatsTask", Task)
    monkeypatch.setattr(counting, "Collector", lambda scale: collector(scale, bounds))


@pytest.mark.usefixtures("few")
def test_what_may_be_missing_is_said_in_every_format(tmp_path: Path) -> None:
    storage = age(build_directory(tmp_path / "s", {0: 200}, per_segment=50))
    set_times(storage, 0, [CREATED + n for n in range(4)], CREATED + 10)
    answer = invoke("stats", storage, "--format", "ndjson", "--html", tmp_path / "page.html")
    (summary,) = answer.only("stats-summary")
    assert not summary["clients_exact"]
    assert summary["clients_missed_records"] > 0
    assert summary["clients_missed_bytes"] > 0
    assert summary["client_series_missed_records"] > 0
    assert not summary["headers_exact"]
    assert sum(one["records"] for one in answer.only("stats-partition")) == 200
    page = (tmp_path / "page.html").read_text()
    table = invoke("stats", storage, "--format", "table").out
    for shown in (page, table):
        assert "There are too many clients to keep: any one may have up to" in shown
        assert "may be missing in its series" in shown
        assert "of 8 or more" in shown
