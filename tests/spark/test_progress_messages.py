"""How far workers are: messages add up once, and nothing else that arrives counts."""

from __future__ import annotations

import socket
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.spark.test_spark_executor import Heard
from waltzctl.engine.spark.progress_messages import ProgressSender, Receiver
from waltzctl.engine.spark.spark_executor import SparkExecutor

if TYPE_CHECKING:
    from waltzctl.engine.spark.spark_session import Session

pytestmark = pytest.mark.xdist_group("spark")


def wait_for(receiver: Receiver, amount: int) -> None:
    while receiver.done() < amount:
        pass


def test_messages_of_packets_add_up_and_those_of_one_packet_do_not() -> None:
    with Receiver("local[2]") as receiver:
        ProgressSender(receiver.address, 0).advance(100)
        ProgressSender(receiver.address, 1).advance(7)
        ProgressSender(receiver.address, 3).advance(0)
        wait_for(receiver, 107)
        ProgressSender(receiver.address, 0).advance(60)  # the packet is done once more, by another worker
        ProgressSender(receiver.address, 2).advance(1)
        wait_for(receiver, 108)
        assert receiver.done() == 108


def test_messages_of_another_job_and_nonsense_do_not_count() -> None:
    with Receiver("local[2]") as receiver:
        address = receiver.address
        assert address is not None
        ProgressSender(replace(address, token=bytes(16)), 0).advance(100)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as line:
            for data in (b"", b"x" * 27, b"x" * 29, b"x" * 5000):
                line.sendto(data, (address.host, address.port))
        ProgressSender(address, 0).advance(5)
        wait_for(receiver, 5)
        assert receiver.done() == 5


def test_whoever_cannot_be_told_is_no_hindrance() -> None:
    ProgressSender(None, 0).advance(100)
    with Receiver("spark://no.such.host.invalid:7077") as receiver:
        assert receiver.address is None
        assert receiver.done() == 0


def _slow(task: int) -> int:
    import time

    time.sleep(0.3)
    return task


@pytest.mark.turns(8)
def test_progress_moves_while_a_packet_is_in_work(spark_session: Session) -> None:
    class Steps(Heard):
        def __init__(self) -> None:
            super().__init__()
            self.steps: list[int] = []

        def advance(self, amount: int) -> None:
            super().advance(amount)
            if amount:
                self.steps.append(amount)

    heard = Steps()
    assert list(SparkExecutor(spark_session, heard).map(_slow, range(12), weights=[10] * 12, what="slow")) == list(
        range(12)
    )
    assert heard.done == 120
    assert len(heard.steps) >= 3
