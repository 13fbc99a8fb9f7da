"""The ledger of accepted losses: what is written is read, and whatever became of it, nothing false is."""

from __future__ import annotations

import json
import zlib
from dataclasses import replace

import pytest

from waltzctl.formats.accepted_losses import AcceptedLoss, Ledger, decode_ledger, encode_ledger

LOSSES = (
    AcceptedLoss(0, 448, 525, 447, "2026-11-22T08:51:18.000Z", "the end was lost"),
    AcceptedLoss(7, 3, 3, -1, "2026-11-22T08:51:18.000Z", 'record-checksum in "0000000000000000000.seg", naïve'),
)


def test_what_is_written_is_read() -> None:
    assert decode_ledger(encode_ledger(LOSSES)) == Ledger(LOSSES)
    assert decode_ledger(encode_ledger(())) == Ledger()


def test_a_line_as_documented() -> None:
    """By the format's description alone."""
    head, line, _ = encode_ledger(LOSSES[:1]).split(b"\n")
    body = json.loads(line)
    stored = body.pop("crc32")
    assert stored == f"{zlib.crc32(json.dumps(body, sort_keys=True, separators=(',', ':')).encode()):08x}"
    assert body == {
        "schema": "waltzctl.accepted-losses/1",
        "type": "accepted-loss",
        "partition": 0,
        "from_transaction_id": 448,
        "to_transaction_id": 525,
        "local_low_water_mark": 447,
        "time": "2026-11-22T08:51:18.000Z",
        "reason": "the end was lost",
    }
    assert json.loads(head)["count"] == 1


def test_a_disputed_one_says_so_in_its_line() -> None:
    disputed = replace(LOSSES[0], disputed=True)
    assert decode_ledger(encode_ledger([disputed])) == Ledger((disputed,))
    body, plain = (json.loads(encode_ledger([one]).split(b"\n")[1]) for one in (disputed, LOSSES[0]))
    assert body.pop("disputed") is True
    assert body.keys() == plain.keys()
    assert body["crc32"] != plain["crc32"]


def test_every_flipped_bit_is_seen_and_costs_no_other_line() -> None:
    data = encode_ledger(LOSSES)
    ends = [place for place, byte in enumerate(data) if byte == 0x0A]
    for place in range(len(data)):
        for bit in (1, 0x20, 0x80):
            flipped = bytearray(data)
            flipped[place] ^= bit
            found = decode_ledger(bytes(flipped))
            assert set(found.losses) <= set(LOSSES), place
            if found.fault is None:  # white space beside the values means nothing
                assert found.losses == LOSSES
            elif place < ends[0]:
                assert found.losses == LOSSES, "the losses do not depend on the first line"


def test_every_cut_is_seen() -> None:
    data = encode_ledger(LOSSES)
    assert decode_ledger(data).fault is None
    for size in range(len(data)):
        found = decode_ledger(data[:size])
        assert found.fault is not None, size
        assert set(found.losses) <= set(LOSSES)


def test_a_line_that_was_taken_out_is_seen() -> None:
    head, first, second, _ = encode_ledger(LOSSES).split(b"\n")
    assert decode_ledger(b"\n".join((head, second, b""))) == Ledger(LOSSES[1:], "it should name 2 losses, and names 1")
    assert decode_ledger(b"\n".join((first, second, b""))).fault == "it is cut off"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("partition", -1),
        ("partition", True),
        ("from_transaction_id", -1),
        ("from_transaction_id", 526),
        ("from_transaction_id", 2**63 - 1),
        ("to_transaction_id", 447),
        ("to_transaction_id", 2**63 - 1),
        ("to_transaction_id", 2**63),
        ("local_low_water_mark", -2),
        ("local_low_water_mark", 2**63 - 1),
        ("partition", 1.0),
        ("reason", None),
        ("time", 5),
        ("disputed", 1),
        ("disputed", None),
        ("schema", "waltzctl.other/1"),
        ("schema", None),
        ("type", "something"),
    ],
)
def test_values_that_nobody_writes_are_refused_though_their_checksum_is_right(key: str, value: object) -> None:
    head, line, _ = encode_ledger(LOSSES[:1]).split(b"\n")
    body = json.loads(line)
    del body["crc32"]
    body[key] = value
    raw = json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
    forged = json.dumps({**body, "crc32": f"{zlib.crc32(raw):08x}"}).encode()
    assert decode_ledger(b"\n".join((head, forged, b""))) == Ledger((), "line 2 is damaged")


@pytest.mark.parametrize(("first", "last", "mark"), [(0, 0, -1), (448, 448, 447), (0, 2**63 - 2, 2**63 - 2)])
def test_the_smallest_and_the_largest_ids_come_back(first: int, last: int, mark: int) -> None:
    loss = replace(LOSSES[0], first=first, last=last, local_low_water_mark=mark)
    assert decode_ledger(encode_ledger([loss])) == Ledger((loss,))


@pytest.mark.parametrize("more", [b"x", b"{", b"\0"])
def test_a_line_that_was_only_begun_is_seen(more: bytes) -> None:
    assert decode_ledger(encode_ledger(LOSSES) + more) == Ledger(LOSSES, "it is cut off")


def test_a_line_too_many_is_seen() -> None:
    head, first, second, _ = encode_ledger(LOSSES).split(b"\n")
    found = decode_ledger(b"\n".join((head, first, second, second, b"")))
    assert found.fault == "it should name 2 losses, and names 3"


@pytest.mark.parametrize("data", [b"", b"\n", b"\0" * 4096, b"[" * 100_000 + b"\n", b"null\n", b"{}\n", b"\xff\xfe\n"])
def test_anything_else_is_damaged(data: bytes) -> None:
    found = decode_ledger(data)
    assert found.losses == ()
    assert found.fault


def line_of(body: dict[str, object]) -> bytes:
    raw = json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
    return json.dumps({**body, "crc32": f"{zlib.crc32(raw):08x}"}).encode()


def of_version(version: str, data: bytes) -> bytes:
    """The lines of a ledger as another version has them, with right checksums."""
    bodies = [json.loads(line) for line in data.splitlines()]
    for body in bodies:
        del body["crc32"]
    return b"".join(line_of({**body, "schema": version}) + b"\n" for body in bodies)


def test_a_ledger_of_another_version_is_no_damaged_one() -> None:
    found = decode_ledger(of_version("waltzctl.accepted-losses/2", encode_ledger(LOSSES)))
    assert (found.losses, found.other_version) == ((), True)
    assert "of another version (waltzctl.accepted-losses/2)" in str(found.fault)
    for other in ("other/1", "", 7):
        assert not decode_ledger(of_version(other, encode_ledger(LOSSES))).other_version  # type: ignore[arg-type]


def test_every_damaged_line_is_counted() -> None:
    head, first, second, _ = encode_ledger(LOSSES).split(b"\n")
    for lines, losses, fault in (
        ((head, b"x", second), LOSSES[1:], "line 2 is damaged"),
        ((head, b"x", b"y"), (), "line 2 is damaged, and 1 more"),
        ((b"z", b"x", b"y"), (), "line 1 is damaged, and 2 more"),
        ((b"z", first, second), LOSSES, "line 1 is damaged"),
        ((head, head, first, second), LOSSES, "line 2 is damaged"),
        ((first, head, second), LOSSES, "line 2 is damaged"),
        ((head, b"", first, second), LOSSES, "line 2 is damaged"),
    ):
        assert decode_ledger(b"\n".join((*lines, b""))) == Ledger(losses, fault)


@pytest.mark.parametrize("count", [-1, True, "2", None, 2**63 - 1])
def test_a_count_that_is_none_is_damage(count: object) -> None:
    head = line_of({"schema": "waltzctl.accepted-losses/1", "type": "accepted-losses", "count": count})
    rest = encode_ledger(LOSSES).split(b"\n", 1)[1]
    other = line_of({"schema": "waltzctl.accepted-losses/1", "type": "something", "count": 2})
    assert decode_ledger(other + b"\n" + rest) == Ledger(LOSSES, "line 1 is damaged")
    assert decode_ledger(head + b"\n" + rest) == Ledger(LOSSES, "line 1 is damaged")


def test_a_loss_of_the_smallest_and_the_largest_partition() -> None:
    for partition in (0, 1, 2**31 - 1):
        loss = replace(LOSSES[0], partition=partition)
        assert decode_ledger(encode_ledger([loss])) == Ledger((loss,))
    assert AcceptedLoss(0, 1, 2, 0, "", "").disputed is False
