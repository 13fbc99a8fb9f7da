"""The option ``failOnDataLoss``: whether a query that comes upon lost transactions goes on, with a row for each, or ends.

Rows are made one by one where damage is met, so what they cost is collected there (`Losses`), and a task that met any fails when
it has read everything: its error has the whole list.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from waltzctl.engine.errors import DamageError, InvalidRequestError
from waltzctl.engine.findings import Code, Finding, Severity

OPTION = "failOnDataLoss"
_NO_LOSS = frozenset({Code.DATA_CHECKSUM, Code.ACCEPTED_LOSSES_DAMAGED, Code.STATE_FILE_DAMAGED})
MOST_NAMED = 100
"""Losses that an error names one by one."""


def fails_on_loss(options: Mapping[str, str]) -> bool:
    """What the option says; false where it is not given.  Raises InvalidRequestError."""
    text = options.get(OPTION.lower(), options.get(OPTION, "false")).strip().lower()
    if text not in ("true", "false"):
        raise InvalidRequestError(f"option {OPTION} is true or false, not {text!r}")
    return text == "true"


def is_loss(finding: Finding) -> bool:
    """Whether a row that bears this finding stands for transactions that are not there.

    Not so: a torn tail that nobody was promised, an intact record whose data disagrees with the client's own checksum, a
    ledger that cannot be read, which only repeats what was lost, and files about sessions and partitions that are off.
    """
    return finding.severity is Severity.DAMAGE and finding.code not in _NO_LOSS and finding.missing != 0


class Losses:
    """What one task has met.  `wanted`: whether it fails for that; nothing is kept otherwise."""

    def __init__(self, *, wanted: bool = False) -> None:
        self._wanted = wanted
        self._named: list[str] = []
        self._more = 0

    def see(self, findings: Iterable[Finding]) -> None:
        """Take note of the losses among these."""
        for one in findings if self._wanted else ():
            if not is_loss(one):
                continue
            if len(self._named) < MOST_NAMED:
                where = f"{one.path}" + ("" if one.transaction_id is None else f", transaction {one.transaction_id}")
                self._named.append(f"{where}: {one.code}: {one.message}")
            else:
                self._more += 1

    def check(self) -> None:
        """Raise DamageError with the list where there was any loss."""
        if not self._named:
            return
        count = len(self._named) + self._more
        lines = [*self._named, *([f"and {self._more} more"] if self._more else [])]
        raise DamageError(
            f"{OPTION}: transactions are lost in {count} place{'s' * (count != 1)}\n  " + "\n  ".join(lines),
            advice=f"mend the storage (waltzctl verify says how), or read without {OPTION}: each loss is a row then",
        )
