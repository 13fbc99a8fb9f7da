"""A task executor on Spark's workers: each Spark task runs a packet of small tasks, or one large task, and returns the results.

It uses only the DataFrame API (``range`` and ``mapInArrow``), which is the same with an embedded Spark, on a cluster and through
Spark Connect.  A long inspection is several Spark jobs (waves), so that its plan and its results are never in memory as a whole.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import sys
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from waltzctl.engine.errors import ClusterError, WaltzError
from waltzctl.engine.progress import SILENT, Progress
from waltzctl.engine.spark.progress_messages import MessageAddress, ProgressSender, Receiver
from waltzctl.engine.spark.spark_errors import first_line, of_spark

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from waltzctl.engine.spark.spark_session import Session

Task = TypeVar("Task")
Result = TypeVar("Result")

PACKET = 4 << 30
"""Bytes that one Spark task reads, at most: seconds of work, as the overhead of a Spark task is 30 to 130 ms."""
FLAT = 256 << 10
"""The overhead of one of our tasks, as bytes that could be read in that time."""
WAVE = 8192
"""Packets in one Spark job, at most."""
_CANCEL_TIMEOUT = 10.0
"""Seconds to wait for a cancelled job to end."""
_PROGRESS_INTERVAL = 0.2
"""Seconds between two queries of a job's progress."""

_SCHEMA = "packet long, failed boolean, result binary"


class SparkExecutor:
    """Runs tasks on the workers of a session; see `engine.task_executor.TaskExecutor`."""

    def __init__(self, session: Session, progress: Progress = SILENT) -> None:
        self._session = session
        self.progress = progress

    @property
    def parallelism(self) -> int:
        """The number of tasks that Spark runs in parallel, as far as it tells."""
        return self._session.parallelism

    def map(
        self,
        work: Callable[[Task], Result],
        tasks: Sequence[Task],
        *,
        weights: Sequence[int],
        what: str,
    ) -> Iterator[Result]:
        """See `TaskExecutor.map`.  Raises ClusterError when the Spark job fails, and our own errors that `work` raises."""
        packets = pack(weights, self.parallelism)
        self.progress.start(what, sum(weights))
        for begin in range(0, len(packets), WAVE):
            wave = packets[begin : begin + WAVE]
            payloads = [pickle.dumps([(tasks[number], weights[number]) for number in packet]) for packet in wave]
            with Receiver(self._session.options.where) as receiver:
                worker = partial(do_packets, work, payloads, os.getcwd(), receiver.address)
                rows = self.run(
                    partial(_collect, worker=worker, packets=len(wave)),
                    weight=sum(weights[number] for packet in wave for number in packet),
                    receiver=receiver,
                ).to_pylist()
            answers = {row["packet"]: (row["failed"], row["result"]) for row in rows}
            for number in range(len(wave)):
                failed, result = answers.pop(number)
                if failed:
                    raise pickle.loads(result)
                yield from pickle.loads(result)

    def run(self, job: Callable[[SparkSession], Result], *, weight: int, receiver: Receiver | None = None) -> Result:
        """Run ``job(spark)`` in another thread, while this one reports its progress (of `weight` bytes).

        An exception in this thread, such as KeyboardInterrupt, cancels the job.  Raises ClusterError when the job fails.
        """
        spark, tag = self._session.spark, f"waltzctl-{uuid.uuid4()}"
        found: list[Result] = []
        failed: list[BaseException] = []

        def body() -> None:
            try:
                self._name(tag)
                found.append(job(spark))
            except BaseException as error:  # raised in the thread that waits
                failed.append(error)

        thread = threading.Thread(target=body, name="spark-job", daemon=True)
        thread.start()
        told = 0
        try:
            while thread.is_alive():
                thread.join(_PROGRESS_INTERVAL)
                reached = int(weight * self._share_done())
                if receiver is not None:
                    reached = min(weight, max(reached, receiver.done()))
                self.progress.advance(max(0, reached - told))
                told = max(told, reached)
        except BaseException:
            with contextlib.suppress(Exception):  # the interrupt is raised, not an error of the cancellation
                self._cancel(tag)
            thread.join(_CANCEL_TIMEOUT)
            raise
        if failed:
            raise self._explain(failed[0]) from failed[0]
        self.progress.advance(weight - told)
        return found[0]

    def _name(self, tag: str) -> None:
        """Tag the jobs of this thread, so that they can be cancelled together with their tasks."""
        if self._session.options.connect:
            self._session.spark.addTag(tag)
        else:
            self._session.spark.sparkContext.setJobGroup(tag, "waltzctl", interruptOnCancel=True)

    def _cancel(self, tag: str) -> None:
        if self._session.options.connect:
            self._session.spark.interruptTag(tag)
        else:
            self._session.spark.sparkContext.cancelJobGroup(tag)

    def _share_done(self) -> float:
        """The completed share of the tasks of running stages; 0 where Spark does not tell (Spark Connect)."""
        if self._session.options.connect:
            return 0.0
        tracker = self._session.spark.sparkContext.statusTracker()
        infos = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
        tasks = sum(info.numTasks for info in infos if info is not None)
        return sum(info.numCompletedTasks for info in infos if info is not None) / tasks if tasks else 0.0

    def _explain(self, error: BaseException) -> BaseException:
        if of_spark(error):
            return ClusterError(f"{self._session.options.where}: the job was given up: {first_line(error)}")
        return error


def _collect(spark: SparkSession, worker: Callable[[Any], Any], packets: int) -> pa.Table:
    found: pa.Table = spark.range(0, packets, 1, packets).mapInArrow(worker, _SCHEMA).toArrow()
    return found


def pack(weights: Sequence[int], parallelism: int) -> list[range]:
    """Pack neighbouring tasks: a packet for each parallel Spark task, or 3 or more for each where one would exceed `PACKET`.

    Smaller packets would balance the load better, but the overhead of the Spark tasks costs more than that gains.
    """
    total = sum(weights) + FLAT * len(weights)
    wanted = max(1, parallelism) if total <= PACKET * parallelism else max(3 * parallelism, -(-total // PACKET))
    packets: list[range] = []
    begin, reached = 0, 0
    for number, weight in enumerate(weights):
        size = weight + FLAT
        # end the packet where its end is nearest to an even share of the total
        if number > begin and reached + size / 2 > total * (len(packets) + 1) / wanted:
            packets.append(range(begin, number))
            begin = number
        reached += size
    if len(weights) > begin:
        packets.append(range(begin, len(weights)))
    return packets


def _make_imports_absolute() -> None:
    """Make ``sys.path`` absolute: Spark adds our archive by a path that is relative to the worker's first directory."""
    if all(os.path.isabs(one) for one in sys.path if one):
        return
    sys.path[:] = [os.path.abspath(one) for one in sys.path]
    for module in list(sys.modules.values()):
        places = getattr(module, "__path__", None)
        if isinstance(places, list):
            places[:] = [os.path.abspath(one) for one in places]


@contextlib.contextmanager
def _working_directory(directory: str) -> Iterator[None]:
    """Change to `directory` where it exists: paths, in findings too, are as the user typed them, relative to it."""
    before = os.getcwd()
    _make_imports_absolute()
    with contextlib.suppress(OSError):
        os.chdir(directory)
    try:
        yield
    finally:
        os.chdir(before)


def do_packets(
    work: Callable[[Any], Any],
    payloads: list[bytes],
    directory: str,
    told_to: MessageAddress | None,
    batches: Iterator[pa.RecordBatch],
) -> Iterator[Any]:
    """On a worker: run all tasks of the packets whose numbers are in `batches`."""
    import pyarrow as pa

    for batch in batches:
        for number in batch.column(0).to_pylist():
            failed = False
            sender = ProgressSender(told_to, number)
            results: list[Any] = []
            answer: object = results
            try:
                with _working_directory(directory):
                    for task, weight in pickle.loads(payloads[number]):
                        results.append(work(task))
                        sender.advance(weight)
            except WaltzError as error:
                failed, answer = True, error
            yield pa.RecordBatch.from_arrays(
                [
                    pa.array([number], pa.int64()),
                    pa.array([failed], pa.bool_()),
                    pa.array([pickle.dumps(answer)], pa.binary()),
                ],
                ["packet", "failed", "result"],
            )
