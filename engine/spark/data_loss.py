"""The option ``failOnDataLoss``: whether a query that finds lost transactions fails, or continues with a row for each loss.

Findings become rows while a task reads; the task collects those that are losses (`Losses`), and fails after it has read
everything, with an error that lists all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from waltzctl.engine.errors import DamageError, InvalidRequestError
from waltzctl.engine.findings import Code, Finding, Severity

OPTION = "failOnDataLoss"
_NO_LOSS = frozenset({Code.DATA_CHECKSUM, Code.ACCEPTED_LOSSES_DAMAGED, Code.STATE_FILE_DAMAGED})
MOST_NAMED = 100
"""Losses that an error lists, at most."""


def fails_on_loss(options: Mapping[str, str]) -> bool:
    """The value of the option; false by default.  Raises InvalidRequestError."""
    text = options.get(OPTION.lower(), options.get(OPTION, "false")).strip().lower()
    if text not in ("true", "false"):
        raise InvalidRequestError(f"option {OPTION} is true or false, not {text!r}")
    return text == "true"


def is_loss(finding: Finding) -> bool:
    """Whether a row with this finding stands for lost transactions.

    No losses are: a torn tail of records that were never acknowledged; an intact record whose data disagrees with the client's
    own checksum; an unreadable loss ledger, which only records earlier losses; wrong files about sessions and partitions.
    """
    return finding.severity is Severity.DAMAGE and finding.code not in _NO_LOSS and finding.missing != 0


class Losses:
    """The losses that one task has found.  `wanted`: whether the task fails for them; otherwise nothing is collected."""

    def __init__(self, *, wanted: bool = False) -> None:
        self._wanted = wanted
        self._named: list[str] = []
        self._more = 0

    def see(self, findings: Iterable[Finding]) -> None:
        """Collect the losses among these findings."""
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
