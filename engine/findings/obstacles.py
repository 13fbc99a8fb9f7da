"""What keeps every repair from a place until it is mended itself, so that its remedy comes before those of other findings there.

==================================================  ================================================  =======================
obstacle                                            what waits for it                                 the remedy of what waits
==================================================  ================================================  =======================
the control file is missing, no regular file, or    everything in the storage directory               that of the obstacle
cannot be decoded, or has another cluster's key
a commit journal is in force                        the same                                          the same
a special file in the place of a partition, or of   what `recover` would mend in the partition        none: it is moved away
one of its data and index files                                                                       by hand
a data file whose header is wrong, or behind whose  what is wrong with the same segment; overlaps     that of the obstacle
header another partition's records stand            in the partition, and a lost end in front of it
a data file of which only the header is wrong       a torn tail in front of it, of the id with which  the same
                                                    it begins (`engine.findings.damaged_records`)
==================================================  ================================================  =======================

Beside such a data file nothing of the partition is given up either, whatever else is left for it (`held_back`).

No repair changes a data file of which it is not proven that its records belong here, nor its index: the remedy of an index
would do nothing, and that of a lost record nothing either, even if it may give records up.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from waltzctl.engine.catalogue import Code
from waltzctl.engine.findings.finding import Finding
from waltzctl.formats.control import CONTROL_FILE_NAME
from waltzctl.formats.segment import SEGMENT_SUFFIX

_OF_CONTROL_FILES = frozenset(
    {Code.CONTROL_FILE_MISSING, Code.CONTROL_FILE_SIZE, Code.SPECIAL_FILE, Code.SEGMENT_KEY, Code.JOURNAL_PENDING}
)
_OF_HEADERS = frozenset({Code.SEGMENT_KEY, Code.SEGMENT_PARTITION, Code.SEGMENT_NAME, Code.UNKNOWN_VERSION})
_OF_ENDS = frozenset({Code.ACKNOWLEDGED_MISSING, Code.DURABLE_MISSING})
_GIVING_UP = frozenset({"--allow-data-loss", "--forget-losses"})
_RECOVER = "waltzctl recover "
_REPAIRS = (_RECOVER, "waltzctl rebuild-index ")


@dataclass(slots=True)
class Obstacles:
    """The obstacles of a storage directory, as its findings are told one after another.

    `_control`: the one in the control file; None without any.  `_special`: partitions with a special file.  `_headers`: those of
    segments, by partition and first id.
    """

    _control: Finding | None = None
    _special: set[int | None] = field(default_factory=set)
    _headers: dict[tuple[int | None, int | None], Finding] = field(default_factory=dict)

    def copy(self) -> Obstacles:
        """One that knows the same, and notes what follows on its own."""
        return Obstacles(self._control, {*self._special}, dict(self._headers))

    def special(self, partition: int | None) -> None:
        """Note that a special file stands in a partition."""
        self._special.add(partition)

    def together(self, findings: Iterable[Finding]) -> Iterator[Finding]:
        """Findings of one place, in any order, each as `behind` returns it once all of them are noted."""
        found = list(findings)
        for one in found:
            self.note(one)
        yield from map(self.behind, found)

    def behind(self, finding: Finding) -> Finding:
        """The finding, with the remedy of the obstacle that has to be mended first, if there is one."""
        self.note(finding)
        if not _by_repair(finding):
            return finding
        first = self._in_front_of(finding)
        if first is not None and first is not finding:
            return replace(finding, remedy=first.remedy, waits_for=first.code)
        if finding.partition in self._special and _by_repair(finding, _RECOVER):
            return replace(finding, remedy=None, waits_for=Code.SPECIAL_FILE)
        return finding

    def held_back(self, finding: Finding) -> Finding:
        """The finding, with the remedy of a header of its partition where its own would give records up or forget them."""
        words = () if finding.remedy is None else finding.remedy.split()
        header = next((one for one in self._headers.values() if one.partition == finding.partition), None)
        if header is None or not _GIVING_UP.intersection(words):
            return finding
        return replace(finding, remedy=header.remedy, waits_for=header.code)

    def headers_from(self, finding: Finding) -> int | None:
        """From which segment on, by its name, all headers of the partition may be an obstacle; None: that of its own alone."""
        return _least(finding) if _by_repair(finding) and self._control is None else None

    def note(self, finding: Finding) -> None:
        """Note a finding that may be an obstacle; it is told elsewhere."""
        path = str(finding.path)
        if path.endswith(CONTROL_FILE_NAME) and finding.code in _OF_CONTROL_FILES:
            self._control = self._control or finding
        if path.endswith(SEGMENT_SUFFIX) and finding.code in _OF_HEADERS:
            self._headers.setdefault((finding.partition, finding.segment), finding)

    def _in_front_of(self, finding: Finding) -> Finding | None:
        if self._control is not None:
            return self._control
        known = self._headers.get((finding.partition, finding.segment))
        if known is None and (least := _least(finding)) is not None:
            others = (one for one in self._headers.values() if one.partition == finding.partition)
            known = next((one for one in others if one.segment is not None and one.segment >= least), None)
        return None if known is not None and known.code is finding.code else known


def held_back(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """What a command has left, without giving anything up, or forgetting it, beside a data file that may be another's.

    That file, or its place, may tell of what would be given up: it is mended or moved away first.
    """
    found = tuple(findings)
    obstacles = Obstacles()
    for one in found:
        obstacles.note(one)
    return tuple(map(obstacles.held_back, found))


def _by_repair(finding: Finding, commands: str | tuple[str, ...] = _REPAIRS) -> bool:
    """Whether the remedy of a finding is a repair."""
    return finding.remedy is not None and finding.remedy.startswith(commands)


def _least(finding: Finding) -> int | None:
    """The first segment, by its name, whose header keeps a finding about several segments from being mended; None: of one."""
    if finding.code not in (Code.SEGMENT_OVERLAP, *_OF_ENDS):
        return None
    return 0 if finding.segment is None or finding.code is Code.SEGMENT_OVERLAP else finding.segment
