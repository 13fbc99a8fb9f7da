"""A disk that is full, an interrupt, and single damaged bytes anywhere."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.builders import build_directory, digest, make_records
from tests.storage.support import LAYOUTS, built, data_path, kept_bytes, offset_of, opened
from waltzctl.engine.errors import CorruptRecordError, DiskWriteError, WaltzError
from waltzctl.engine.storage.storage_options import StorageOptions
from waltzctl.formats.control import Layout
from waltzctl.formats.segment import HEADER_SIZE, RECORD_OVERHEAD, Record


@contextmanager
def files_limited_to(size: int) -> Iterator[None]:
    """What the system lets this process write into one file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def a_batch(first: int) -> list[Record]:
    return make_records(7, first=first, size=30 + first)


@pytest.mark.turns(10)
@LAYOUTS
@pytest.mark.parametrize(("limit", "threshold"), [(5000, 10**9), (300, 150), (1024, 600), (136, 10**9), (100, 128)])
def test_a_file_that_cannot_grow_costs_only_the_batch(
    tmp_path: Path, layout: Layout, limit: int, threshold: int
) -> None:
    """A real limit of the system on the size of files: within a batch, in the index, at a roll-over."""
    build_directory(tmp_path, {0: 0}, layout=layout)
    with opened(tmp_path, StorageOptions(threshold)) as storage:
        partition = storage.partition(0)
        failed = None
        with files_limited_to(limit):
            while failed is None:
                try:
                    partition.append(a_batch(partition.next_transaction_id))
                except DiskWriteError as error:
                    failed = error
        count = partition.next_transaction_id
        assert failed.errno == errno.EFBIG
        assert partition.failed is None, "the partition itself did not fail"
        assert partition.read_range(0, 10**6) == [one for first in range(0, count, 7) for one in a_batch(first)]
    with opened(tmp_path) as storage:
        partition = storage.partition(0)
        assert not partition.quarantined
        assert partition.next_transaction_id == count
        assert storage.findings == (), "nothing of the batch that failed was left"
        partition.append(a_batch(count))


def test_an_interrupt_inside_an_append_leaves_nothing_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records = built(tmp_path, 5, per_segment=5)
    batch = make_records(20, first=5, size=100)
    for name in ("pwrite", "fdatasync"):
        for allowed in range(4):
            calls = 0
            real = getattr(os, name)

            def interrupt(*arguments: object, allowed: int = allowed, real: object = real) -> object:
                nonlocal calls
                calls += 1
                if calls == allowed + 1:
                    raise KeyboardInterrupt
                return real(*arguments)  # type: ignore[operator]

            with opened(tmp_path) as storage:
                partition = storage.partition(0)
                with monkeypatch.context() as patch:
                    patch.setattr(os, name, interrupt)
                    with pytest.raises(KeyboardInterrupt):
                        partition.append(batch)
                assert partition.read_range(0, 100) == records
                partition.append(batch[:3])
                assert partition.read_range(0, 100) == records + batch[:3]
                partition.truncate(4)


@pytest.mark.turns(10)
@LAYOUTS
@settings(max_examples=80)
@given(place=st.randoms(use_true_random=False), change=st.integers(1, 255), mark=st.sampled_from([-1, 15, 29]))
def test_a_single_damaged_byte_costs_at_most_the_record_it_is_in(
    tmp_path_factory: pytest.TempPathFactory, layout: Layout, place: object, change: int, mark: int
) -> None:
    """Property: every other record is still served, no wrong one ever is, and no byte of a record is thrown away."""
    path = tmp_path_factory.mktemp("s")
    records = built(path, 30, layout=layout, mark=mark)
    files = sorted(p for p in path.rglob("*") if p.is_file())
    victim = place.choice(files)  # type: ignore[attr-defined]
    whole = victim.read_bytes()
    offset = place.randrange(len(whole))  # type: ignore[attr-defined]
    spoiled = bytearray(whole)
    spoiled[offset] ^= change
    victim.write_bytes(spoiled)
    hit = _record_at(records, victim, offset)
    try:
        with opened(path) as storage:
            if 0 not in storage.partitions:
                assert victim.name == "waltz-storage.ctl", "only the control file says whether it is assigned"
                return
            partition = storage.partition(0)
            for record in records:
                if record is hit:
                    with pytest.raises(CorruptRecordError) if record.transaction_id <= max(mark, 28) else _nothing():
                        assert partition.read(record.transaction_id) is None
                else:
                    assert partition.read(record.transaction_id) == record
            quarantined = partition.quarantined
    except WaltzError:
        assert victim.name == "waltz-storage.ctl", "nothing else stops the whole directory"
        return
    if quarantined or hit is None or hit.transaction_id < 29:
        assert victim.read_bytes() == bytes(spoiled) or victim.suffix == ".idx"
    else:
        assert bytes(spoiled)[offset_of(records[20:], 29) :] in kept_bytes(path)


def _record_at(records: list[Record], victim: Path, offset: int) -> Record | None:
    if victim.suffix != ".seg" or offset < HEADER_SIZE:
        return None
    first = int(victim.stem)
    position = HEADER_SIZE
    for record in records[first : first + 10]:
        position += RECORD_OVERHEAD + len(record.data)
        if offset < position:
            return record
    raise AssertionError("beyond the records")


class _nothing:  # noqa: N801  # stands for a context manager that expects nothing
    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


@pytest.mark.turns(8)
@LAYOUTS
@settings(max_examples=40)
@given(size=st.integers(0, 1000), tail=st.binary(max_size=300), mark=st.sampled_from([-1, 3, 9]))
def test_whatever_stands_behind_the_last_record_no_record_is_lost_and_a_second_opening_is_quiet(
    tmp_path_factory: pytest.TempPathFactory, layout: Layout, size: int, tail: bytes, mark: int
) -> None:
    """Property: the last data file cut anywhere and continued with anything."""
    path = tmp_path_factory.mktemp("s")
    records = built(path, 10, layout=layout, mark=mark)
    data = data_path(path)
    cut = data.read_bytes()[: HEADER_SIZE + size] + tail
    data.write_bytes(cut)
    whole = [r for r in records if cut[offset_of(records, r.transaction_id) :].startswith(r.encode())]
    intact = next((n for n, r in enumerate(records) if r not in whole), 10)
    with opened(path) as storage:
        partition = storage.partition(0)
        assert partition.read_range(0, intact) == records[:intact]
        assert partition.max_transaction_id >= intact - 1
        if intact - 1 < mark:
            assert partition.quarantined
        if partition.quarantined:
            assert data.read_bytes() == cut
        else:
            assert cut[: data.stat().st_size] == data.read_bytes()
            assert cut[data.stat().st_size :] in kept_bytes(path) or data.stat().st_size == len(cut)
    once = digest(path)
    with opened(path):
        pass
    assert digest(path) == once
