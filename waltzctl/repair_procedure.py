"""The procedure of every repair command: plan, show, confirm, apply, report.

Nothing is changed before the plan was shown and the user agreed: on a terminal by typing the partition's number, in a script with
``--yes``.  ``--plan FILE`` applies exactly the plan in the file, and counts as agreement unless the plan loses data.

If an earlier repair was interrupted, every command first rolls it back, with a plan like any other.  Only then it makes its own
plan.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

import typer

from waltzctl.console import Console
from waltzctl.engine.errors import InvalidRequestError, RefusedError
from waltzctl.engine.shell_words import shell_join
from waltzctl.exit_status import ExitStatus
from waltzctl.interrupt import finishing
from waltzctl.manual import ManualSection
from waltzctl.options import Format, path_of
from waltzctl.outcome import say, say_taken_back
from waltzctl.values import counted, format_ranges

if TYPE_CHECKING:
    from waltzctl.engine.columns.column import Object
    from waltzctl.engine.repair.arguments import Arguments
    from waltzctl.engine.repair.plan import Plan
    from waltzctl.engine.repair.planners import AnyRepair

STATUSES = (
    ExitStatus.CLEAN,
    ExitStatus.USAGE,
    ExitStatus.REPAIRABLE,
    ExitStatus.DAMAGED,
    ExitStatus.DAMAGE_REMAINS,
    ExitStatus.NOT_WALTZ,
    ExitStatus.LOCKED,
    ExitStatus.MISMATCH,
    ExitStatus.REFUSED,
    ExitStatus.IO_ERROR,
    ExitStatus.INTERRUPTED,
)
"""The exit statuses of a repair."""

SAFETY = ManualSection(
    "SAFETY",
    (
        (
            "The plan is shown first. On a terminal it is applied after the partition's number has been typed; elsewhere it"
            " needs --yes. --dry-run shows it and changes nothing; its exit status is the one that verify would give."
        ),
        (
            "A plan carries a hash of every file that it touches (size, time, checksum) and of the options. Keep it with"
            " --dry-run --format json and apply exactly that one later with --plan FILE; its options are in the file. If"
            " anything has changed since, or its steps are not exactly those that would be done, it is refused (13). --plan is"
            " the confirmation of steps that lose nothing; steps that lose data are asked for or need --yes all the same, and"
            " a plan that was made with --allow-data-loss needs that option again."
        ),
        (
            "The directory is locked while it is changed; a running node is never overridden (11). Every byte that is removed"
            " or replaced is kept in .waltzctl/quarantine, with checksums, before the first change. The directory is verified"
            " again afterwards and the journal .waltzctl/journal.jsonl gains a line. waltzctl undo brings everything back."
        ),
        (
            "Ctrl-C lets a repair that has begun finish. A second one, a kill or a power loss in the middle leaves an"
            " interrupted repair; the next command that writes, undo included, takes it back byte for byte, says so on stderr"
            " and then goes on. With --dry-run that is the plan, and nothing else can be planned yet."
        ),
    ),
)


NEXT_STEPS = 5
"""Remedies that are listed, at most, when a command leaves findings."""
UNCHANGED = "Nothing was modified"
UNCHANGED_ELSE = "Nothing else was modified"
"""The message after a roll-back by the same command."""
UNASKED = "add --yes, or look with --dry-run first"
"""The advice without a terminal to ask on."""


@dataclass(frozen=True, slots=True)
class Switches:
    """The options that say what to do with a plan.

    `dry_run_unasked`: without a terminal and without ``--yes``, show the plan instead of refusing.
    """

    yes: bool
    dry_run: bool
    plan_file: str | None
    dry_run_unasked: bool = False

    def check(self) -> None:
        """Raise typer.BadParameter for options that exclude each other."""
        if self.yes and self.dry_run:
            raise typer.BadParameter("--dry-run changes nothing, --yes wants it done", param_hint="'--yes'")


def repair_with(
    console: Console, switches: Switches, command: str, path: PurePath, given: Arguments, make: Callable[[], AnyRepair]
) -> ExitStatus:
    """The whole procedure of a command: roll back an interrupted repair, then make the command's own plan and carry it out.

    Raises what `planned` and `carry_out` raise.
    """
    repair = planned(switches, command, path, given, make)
    if repair.roll_back and switches.plan_file is None and not only_shown(switches, agreed=switches.yes):
        _agree(console, repair.plan, switches, UNCHANGED)
        _roll_back_interrupted(repair)
        repair = planned(switches, command, path, given, make)
        return carry_out(console, repair, switches, otherwise=UNCHANGED_ELSE)
    return carry_out(console, repair, switches)


def planned(
    switches: Switches, command: str, path: PurePath, given: Arguments, make: Callable[[], AnyRepair]
) -> AnyRepair:
    """The roll-back of an interrupted repair if there is one, else the repair that `make` plans; with ``--plan`` the file's plan.

    Raises InvalidRequestError when the file is no plan of this command, directory and options, StalePlanError, RefusedError for a
    plan that loses data without ``--allow-data-loss`` in this call.
    """
    from waltzctl.engine.repair.arguments import Arguments
    from waltzctl.engine.repair.plan import plan_roll_back

    if switches.plan_file is None:
        return plan_roll_back(command, path, given) or make()

    from waltzctl.engine.repair.planners import load_plan

    name = switches.plan_file
    repair = load_plan(path_of(name, name="--plan"))
    if repair.plan.command != command:
        raise InvalidRequestError(f"{name}: a plan of {repair.plan.command}, not of {command}")
    if os.path.realpath(path) not in {os.path.realpath(one) for one in (repair.plan.path, repair.storage)}:
        raise InvalidRequestError(f"{name}: a plan for {repair.plan.path}, not for {path}")
    asked = repair.plan.arguments
    others = replace(given, allow_data_loss=asked.allow_data_loss)
    if others not in (Arguments(allow_data_loss=asked.allow_data_loss), asked) or (
        given.allow_data_loss and not asked.allow_data_loss
    ):
        raise InvalidRequestError(
            f"{name}: the plan was made with other options", advice="leave them out, or make a new one"
        )
    if asked.allow_data_loss and repair.plan.loses_data and not given.allow_data_loss and not switches.dry_run:
        raise RefusedError(
            f"{name}: the plan was made with --allow-data-loss and loses data; nothing was modified",
            advice="look at it with --dry-run, then say --allow-data-loss again",
        )
    return repair


def carry_out(console: Console, repair: AnyRepair, switches: Switches, *, otherwise: str = UNCHANGED) -> ExitStatus:
    """Show the plan, and apply it unless it is only to be shown.  `otherwise`: the message where nothing is changed.

    Raises RefusedError without the user's agreement, StalePlanError, and what `apply` raises.
    """
    plan = repair.plan
    storage, partitions = repair.storage, plan.arguments.partitions
    agreed = _agreed_by_option(plan, switches)
    console.detail(f"plan {plan.hash}: {_in_words(plan)}")
    if only_shown(switches, agreed=agreed):
        return _dry_run(console, plan, storage, partitions, asked=switches.dry_run)
    if not plan.steps and not agreed:
        return _nothing_to_do(console, plan, storage, partitions, otherwise)
    _agree(console, plan, switches, otherwise)
    return _apply(console, repair, otherwise)


def _agreed_by_option(plan: Plan, switches: Switches) -> bool:
    """Whether the user has agreed by an option: ``--yes``, or ``--plan`` for a plan that loses no data."""
    return switches.yes or (switches.plan_file is not None and not plan.loses_data)


def only_shown(switches: Switches, *, agreed: bool) -> bool:
    """Whether plans are shown and nothing is applied."""
    unasked = switches.dry_run_unasked and switches.plan_file is None
    return switches.dry_run or (unasked and not agreed and not sys.stdin.isatty())


def _agree(console: Console, plan: Plan, switches: Switches, otherwise: str) -> None:
    """Show the plan, and ask the user where needed.  Raises RefusedError with `otherwise` where the user does not agree."""
    from waltzctl.engine.columns.plan_columns import PLAN

    if not _agreed_by_option(plan, switches):
        touched = {step.partition for step in plan.steps if step.partition is not None}
        ask(console, PLAN.shown(plan), touched, otherwise=otherwise)
    elif console.for_people and not console.quiet:
        console.emit(PLAN.shown(plan), flush=True)


def _roll_back_interrupted(repair: AnyRepair) -> None:
    """Roll back the interrupted repair, and say so, as it changes the files from which the command's own plan is made."""
    from waltzctl.engine.repair.apply import apply

    with finishing("the roll-back", "the next command that writes then finishes it"):
        result = apply(repair, arguments=sys.argv[1:])
    say_taken_back(result.taken_back)


def verified(storage: PurePath, partitions: Collection[int] | None) -> ExitStatus:
    """The exit status of verify for the directory as it is."""
    from waltzctl.engine.inspect.verification import VerifyOptions, VerifySummary
    from waltzctl.engine.inspect.verify import verify
    from waltzctl.engine.repair.store_kinds import is_page_store

    if is_page_store(storage):
        from waltzctl.engine.pages.inspection import verify_store

        return ExitStatus.from_label(verify_store(Path(storage)).status)
    status = ExitStatus.CLEAN
    for seen in verify((storage,), VerifyOptions(partitions=partitions)):
        if isinstance(seen, VerifySummary):
            status = ExitStatus.from_label(seen.exit_status_name)
    return status


def _dry_run(
    console: Console, plan: Plan, storage: PurePath, partitions: Collection[int] | None, *, asked: bool
) -> ExitStatus:
    from waltzctl.engine.columns.plan_columns import PLAN

    console.emit(PLAN.shown(plan), flush=True)
    status = verified(storage, partitions)
    if not asked:
        console.note("no terminal to ask on and no --yes: this was a dry run")
    console.sentence(f"PLANNED  {_in_words(plan)} Nothing was modified.")
    return status


def _nothing_to_do(
    console: Console, plan: Plan, storage: PurePath, partitions: Collection[int] | None, otherwise: str
) -> ExitStatus:
    from waltzctl.objects.repair_objects import result_object

    status = verified(storage, partitions)
    shown = result_object(
        plan_hash=plan.hash,
        applied=False,
        undo_id=None,
        quarantine=None,
        status=status.label,
        exit_status=status,
        findings=plan.undecided,
    )
    _report(console, shown, status, "", otherwise)
    return status


def _report(console: Console, shown: Object, status: ExitStatus, done: str, otherwise: str) -> None:
    """Show the result, and a sentence about it.  `done`: what was changed; empty: nothing."""
    console.emit_result(shown, status)
    if status is ExitStatus.CLEAN or (done and status is ExitStatus.REPAIRABLE):
        console.success(f"REPAIRED  {done}" if done else f"NOTHING TO DO. {otherwise}.")
    elif done:
        console.sentence(f"DAMAGE REMAINS  {done}")
    else:
        console.sentence(f"NOTHING THAT THIS COMMAND CAN MEND. {otherwise}; verify names what is wrong.")
    following = dict.fromkeys(one["remedy"] for one in shown["findings"] if one["remedy"] is not None)
    if status is not ExitStatus.CLEAN and following:
        # what gives records up comes last: a replica may still bring them back
        ordered = sorted(following, key=lambda remedy: "--allow-data-loss" in remedy.split())
        console.sentence("\n".join(["What comes next:", *(f"  {remedy}" for remedy in ordered[:NEXT_STEPS])]))


def ask(console: Console, plan: Object, touched: Collection[int], *, otherwise: str = UNCHANGED) -> None:
    """Show a plan, and ask on the terminal for the numbers of the partitions that it changes.

    Raises RefusedError where the user does not agree, and without a terminal.  `otherwise`: the message that nothing was changed.
    """
    if not sys.stdin.isatty():
        console.emit(plan, flush=True)
        raise not_confirmed(otherwise, advice=UNASKED)
    show_to_person(console, plan)
    confirm(touched, otherwise=otherwise)


def show_to_person(console: Console, plan: Object) -> None:
    """Show the plan to the user who is asked: with JSON output on stderr, as the document can have only the result."""
    if console.format is Format.JSON:
        from waltzctl.render.table import TableWriter

        with contextlib.suppress(BrokenPipeError):  # `typed` then fails as well
            TableWriter(sys.stderr).write(plan)
            sys.stderr.flush()
    else:
        console.emit(plan, flush=True)


def confirm(touched: Collection[int], *, otherwise: str = UNCHANGED) -> None:
    """Ask on the terminal for the numbers of the partitions that the plan changes.

    Raises RefusedError for any other answer.  `otherwise`: the message that nothing was changed.
    """
    word = format_ranges(touched) if touched else "yes"
    what = "the partition number" if len(touched) == 1 else "the partition numbers" if touched else "the word"
    if not typed(word, f"Type {what} ({word}) to apply the plan, anything else to leave: "):
        raise not_confirmed(otherwise)


def typed(word: str, question: str) -> bool:
    """Ask a question on stderr: whether the answer is this word.

    False, too, where stderr is closed, so that the question cannot be seen, and where the answer is no valid text.
    """
    try:
        print(question, end="", file=sys.stderr, flush=True)
        return sys.stdin.readline().strip() == word
    except (BrokenPipeError, UnicodeDecodeError):
        return False


def not_confirmed(otherwise: str = UNCHANGED, *, advice: str | None = None) -> RefusedError:
    """The error for a plan without the user's agreement; `otherwise`: the message that nothing was changed."""
    return RefusedError(f"not confirmed, {otherwise[0].lower()}{otherwise[1:]}", advice=advice)


def _apply(console: Console, repair: AnyRepair, otherwise: str) -> ExitStatus:
    from waltzctl.engine.repair.apply import apply
    from waltzctl.engine.repair.store_kinds import is_page_store
    from waltzctl.objects.repair_objects import result_object

    with finishing("the repair", "the next command that writes then takes it back") as interrupt:
        result = apply(repair, arguments=sys.argv[1:])
    status = ExitStatus.from_label(result.exit_status_name)
    shown = result_object(
        plan_hash=result.plan_hash,
        applied=result.applied,
        undo_id=result.undo_id,
        quarantine=result.quarantine,
        status=result.status,
        exit_status=status,
        findings=result.findings,
    )
    if interrupt.wanted:
        console.note("the interrupt came too late: the repair is complete")
    say_taken_back(result.taken_back)
    if result.others_files:
        first, more = result.others_files[0], len(result.others_files) - 1
        also = f" and {counted(more, 'other file')}" if more else ""
        say(
            f"waltzctl: {first}{also}: belongs to another user or group than before, as only the superuser may give files away;"
            " see with ls -l whether the node may open it, and chown it"
        )
    done = f"{counted(len(repair.plan.steps), 'step')} done and verified again: {result.status}."
    if result.undo_id is not None:
        while_it_lasts = ", before anything opens the store for writing" if is_page_store(repair.storage) else ""
        done += f" To take it back{while_it_lasts}: {shell_join(('waltzctl', 'undo', str(repair.plan.path), result.undo_id))}"
    _report(console, shown, status, done if result.applied else "", otherwise)
    return status


def _in_words(plan: Plan) -> str:
    if not plan.steps:
        words = "No step."
    else:
        losing = sum(step.loses_data for step in plan.steps)
        words = counted(len(plan.steps), "step") + (f", {losing} of them lose data." if losing else ".")
    if plan.undecided:
        words += f" {counted(len(plan.undecided), 'finding')} left for a person."
    return words
