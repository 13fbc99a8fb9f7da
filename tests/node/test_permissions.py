"""Who may do what: the release's order of checks and its texts, as a table and as properties of values."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waltzctl.engine.node import permissions
from waltzctl.engine.node.partition_requests import access_of, read_by
from waltzctl.engine.node.permissions import RequiredAccess, ServiceState, check, check_low_water_mark, raises_session
from waltzctl.formats.wire import storage
from waltzctl.formats.wire.failure import FailureCode

STORAGE = "com.wepay.waltz.storage.exception.StorageException: "
CONCURRENT = "com.wepay.waltz.storage.exception.ConcurrentUpdateException: "
NOT_ASSIGNED = STORAGE + "partition 3 is not assigned to storage node."
ONLINE = STORAGE + "cannot run offline recovery while partition is online"
DISABLED = STORAGE + "read and write for partition=3 have been disabled on storage node"

states = st.builds(
    ServiceState,
    number=st.integers(0, 9),
    assigned=st.booleans(),
    readable=st.booleans(),
    writable=st.booleans(),
    persisted_session=st.integers(-1, 5),
    session=st.integers(-1, 5),
)


def state(*, assigned: bool = True, readable: bool = True, writable: bool = True) -> ServiceState:
    return ServiceState(3, assigned, readable, writable, persisted_session=5, session=7)


@pytest.mark.parametrize(
    ("given_state", "session", "offline", "access", "message"),
    [
        (state(), 7, False, RequiredAccess.WRITE, None),
        (state(), 7, False, RequiredAccess.READ, None),
        (state(), 8, False, RequiredAccess.WRITE, None),
        (state(), 7, False, RequiredAccess.SESSION, None),
        (state(assigned=False), 7, False, RequiredAccess.READ, NOT_ASSIGNED),
        (state(assigned=False, readable=False, writable=False), 7, False, RequiredAccess.READ, NOT_ASSIGNED),
        (state(assigned=False), 7, True, RequiredAccess.READ, NOT_ASSIGNED),
        (state(), 5, True, RequiredAccess.WRITE, ONLINE),
        (state(), 99, True, RequiredAccess.READ, ONLINE),
        (state(readable=False, writable=False), 5, True, RequiredAccess.WRITE, None),
        (
            state(readable=False, writable=False),
            7,
            True,
            RequiredAccess.WRITE,
            STORAGE + "partition last session id has changed to 5, but request context contains 7",
        ),
        (state(readable=False, writable=False), 7, False, RequiredAccess.WRITE, DISABLED),
        (state(readable=False, writable=False), 6, False, RequiredAccess.READ, DISABLED),
        (
            state(),
            6,
            False,
            RequiredAccess.READ,
            CONCURRENT + "session id has changed to 7, but request context contains 6",
        ),
        (
            state(),
            5,
            False,
            RequiredAccess.WRITE,
            CONCURRENT + "session id has changed to 7, but request context contains 5",
        ),
        # what the release cannot say: one of the two switched off
        (state(writable=False), 7, False, RequiredAccess.READ, None),
        (state(writable=False), 7, False, RequiredAccess.WRITE, DISABLED),
        (state(readable=False), 7, False, RequiredAccess.WRITE, None),
        (state(readable=False), 7, False, RequiredAccess.READ, DISABLED),
        (state(readable=False), 7, False, RequiredAccess.SESSION, DISABLED),
        (state(writable=False), 7, False, RequiredAccess.SESSION, DISABLED),
        (state(writable=False), 5, True, RequiredAccess.WRITE, None),
        (state(readable=False), 5, True, RequiredAccess.WRITE, ONLINE),
    ],
)
def test_checks_come_in_the_release_s_order_with_its_texts(
    given_state: ServiceState, session: int, offline: bool, access: RequiredAccess, message: str | None
) -> None:
    denial = check(given_state, session_id=session, offline=offline, access=access)
    assert (denial and denial.message) == message


@given(states, st.integers(-1, 6), st.booleans(), st.sampled_from(RequiredAccess))
def test_only_an_online_request_that_passed_may_raise_the_session(
    given_state: ServiceState, session: int, offline: bool, access: RequiredAccess
) -> None:
    denial = check(given_state, session_id=session, offline=offline, access=access)
    raises = raises_session(given_state, session_id=session, offline=offline)
    assert raises == (not offline and session > given_state.session)
    if denial is None and not offline:
        assert session >= given_state.session
    if denial is None and offline:
        assert session == given_state.persisted_session
        assert not given_state.writable  # nobody else writes meanwhile


def released_check(given_state: ServiceState, session: int, offline: bool) -> str | None:
    """The release's own order for its one flag, in terms of a node whose session was raised before."""
    available = given_state.readable
    if not given_state.assigned:
        return FailureCode.NOT_ASSIGNED
    if offline:
        if available:
            return FailureCode.ONLINE
        return FailureCode.SESSION_CHANGED if session != given_state.persisted_session else None
    if not available:
        return FailureCode.NOT_AVAILABLE
    return FailureCode.SESSION_CHANGED if session < given_state.session else None


@given(states, st.integers(-1, 6), st.booleans(), st.sampled_from(RequiredAccess))
def test_where_both_are_switched_together_the_outcome_is_the_release_s(
    given_state: ServiceState, session: int, offline: bool, access: RequiredAccess
) -> None:
    both = ServiceState(
        given_state.number,
        given_state.assigned,
        given_state.readable,
        given_state.readable,
        given_state.persisted_session,
        given_state.session,
    )
    denial = check(both, session_id=session, offline=offline, access=access)
    assert (denial and denial.code) == released_check(both, session, offline)


@pytest.mark.parametrize(
    ("session", "mark", "last", "persisted", "message"),
    [
        (5, 10, 10, (5, 3, 3), None),
        (6, 20, 10, (5, 3, 3), None),
        (5, 9, 10, (5, 3, 3), "low-water mark is lower than the max transaction id"),
        (4, 9, 10, (5, 3, 3), "low-water mark is lower than the max transaction id"),
        (4, 10, 10, (5, 3, 3), "session id has changed to 5, but low watermark request contains session id 4"),
        (5, 4, 2, (5, 6, 1), "unable to set low watermark to value 4 because it's less than current low watermark 6"),
        (
            5,
            6,
            2,
            (5, 6, 3),
            "unable to set local low watermark to value 2 because it's less than current local low watermark 3",
        ),
    ],
)
def test_set_low_water_mark_is_refused_in_the_release_s_order_and_words(
    session: int, mark: int, last: int, persisted: tuple[int, int, int], message: str | None
) -> None:
    denial = check_low_water_mark(session_id=session, low_water_mark=mark, max_transaction_id=last, persisted=persisted)
    assert (denial and denial.text) == message


def test_every_code_names_an_exit_status_of_the_engine() -> None:
    known = {"usage", "refused", "mismatch", "damaged", "io-error", "internal"}
    assert {code.status for code in FailureCode} == known
    assert permissions.not_loaded(-1).message == "java.lang.Exception: Partition:-1 is not assigned."


@pytest.mark.parametrize(
    ("message", "access", "record"),
    [
        (storage.LastSessionInfoRequest(1, 2, 3), RequiredAccess.SESSION, None),
        (storage.LastSessionInfoRequest(1, 2, 3, offline=True), RequiredAccess.READ, None),
        (storage.SetLowWaterMarkRequest(1, 2, 3, 9), RequiredAccess.WRITE, None),
        (storage.TruncateRequest(1, 2, 3, 9), RequiredAccess.WRITE, 9),
        (storage.RecordHeaderRequest(1, 2, 3, 9), RequiredAccess.READ, 9),
        (storage.RecordRequest(1, 2, 3, 9), RequiredAccess.READ, 9),
        (storage.MaxTransactionIdRequest(1, 2, 3), RequiredAccess.READ, None),
        (storage.RecordHeaderListRequest(1, 2, 3, 9, 4), RequiredAccess.READ, 9),
        (storage.RecordListRequest(1, 2, 3, 9, 4), RequiredAccess.READ, 9),
        (storage.SuccessResponse(1, 2, 3), RequiredAccess.READ, None),
    ],
    ids=lambda one: type(one).__name__,
)
def test_what_a_request_needs_and_which_record_it_reads(
    message: storage.StorageMessage, access: RequiredAccess, record: int | None
) -> None:
    assert access_of(message) is access
    assert read_by(message) == record
