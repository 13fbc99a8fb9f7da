"""A failure becomes an error with a stable code, whoever sent it."""

from __future__ import annotations

import json

import pytest

from tests.golden import GOLDEN, needs_golden
from waltzctl.engine.client.remote_failures import code_of, remote_error
from waltzctl.formats.wire.failure import Failure, FailureCode, StackElement


@pytest.mark.parametrize("code", list(FailureCode))
def test_the_code_of_our_node_is_taken_as_it_is(code: FailureCode) -> None:
    error = remote_error("h:1", Failure.with_code("java.lang.Exception: Partition:7 is not assigned.", code.value))
    assert (error.code, error.status) == (code.value, code.status)


def test_a_code_that_is_not_known_yet_is_kept_and_means_refused() -> None:
    error = remote_error("h:1", Failure.with_code("x", "from-the-future"))
    assert (error.code, error.status) == ("from-the-future", "refused")


STORAGE = "com.wepay.waltz.storage.exception.StorageException"
CONCURRENT = "com.wepay.waltz.storage.exception.ConcurrentUpdateException"


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("java.lang.Exception: Partition:7 is not assigned.", FailureCode.NOT_ASSIGNED),
        (f"{STORAGE}: partition 7 is not assigned to storage node.", FailureCode.NOT_ASSIGNED),
        (f"{STORAGE}: cannot run offline recovery while partition is online", FailureCode.ONLINE),
        (f"{STORAGE}: partition last session id has changed to 5, but request context contains 4", FailureCode.SESSION_CHANGED),
        (f"{CONCURRENT}: session id has changed to 5, but request context contains 4", FailureCode.SESSION_CHANGED),
        (f"{CONCURRENT}: something else", FailureCode.SESSION_CHANGED),
        (f"{STORAGE}: transaction out of order", FailureCode.OUT_OF_ORDER),
        (f"{STORAGE}: Provided cluster key is inconsistent with key in control file.", FailureCode.MISMATCH),
        ("java.io.IOException: No space left on device", FailureCode.DISK_FULL),
        ("java.io.IOException: Input/output error", FailureCode.IO_ERROR),
        ("java.lang.OutOfMemoryError: Java heap space", FailureCode.OUT_OF_MEMORY),
    ],
)  # fmt: skip
def test_the_texts_of_a_released_node_are_understood(message: str, code: FailureCode) -> None:
    trace = (StackElement("com.wepay.waltz.storage.server.internal.Partition", "append", "Partition.java", 1),)
    assert code_of(Failure(message, trace)) == code.value
    assert remote_error("h:1", Failure(message, trace)).status == code.status


def test_a_text_that_says_nothing_has_no_code_and_is_shown() -> None:
    error = remote_error("h:1", Failure("java.lang.IllegalArgumentException: Odd: it is"))
    assert (error.code, error.status, error.text) == (None, "refused", "Odd: it is")
    assert remote_error("h:1", Failure("java.lang.NullPointerException")).text == "java.lang.NullPointerException"
    assert remote_error("h:1", Failure("")).text


@needs_golden
def test_every_failure_of_the_recordings_has_a_code() -> None:
    assert GOLDEN is not None
    seen = set()
    for line in (GOLDEN / "wire" / "storage-steps.jsonl").read_text().splitlines():
        for response in json.loads(line)["responses"]:
            message = response["fields"].get("exception", {}).get("message")
            if message is not None:
                code = code_of(Failure(message))
                assert code is not None, message
                seen.add(code)
    assert {
        "not-assigned",
        "not-available",
        "online",
        "session-changed",
        "out-of-order",
        "mark-would-fall",
        "mismatch",
    } <= seen
