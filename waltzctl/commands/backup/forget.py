"""backup forget: remove backups."""

from __future__ import annotations

from typing import Annotated

import typer

from waltzctl.change_procedure import Changed, change
from waltzctl.console import Console
from waltzctl.engine.shell_words import shell_quote
from waltzctl.exit_status import ExitStatus
from waltzctl.manual import Example, Manual, ManualSection
from waltzctl.options import DryRunOption, FormatOption, QuietOption, VerboseOption, YesOption
from waltzctl.repair_procedure import Switches
from waltzctl.values import counted, human_bytes
from waltzctl.vault_options import WRITING, PasswordOption, VaultArgument, password_of, vault_of

MANUAL = Manual(
    name="forget",
    page="backup",
    summary="Remove backups from a vault",
    description=(
        (
            "Give the ids of the backups to remove, or rules: a backup that any rule keeps stays, the others are"
            " removed. Rules apply to each source separately, and to backups of the same cluster and the same partitions"
            " only. --keep-daily 7 keeps the newest backup of each of the last seven days that have one, in UTC."
        ),
        (
            "Content that other backups use stays in the vault. Space is released by backup prune, or at once with --prune."
        ),
    ),
    examples=(
        Example("waltzctl backup forget /backup/waltz 3f20", "Remove one backup, after confirmation on a terminal."),
        Example(
            "waltzctl backup forget /backup/waltz --keep-daily 7 --keep-monthly 12 --dry-run",
            "Which backups would be removed?",
        ),
    ),
    statuses=WRITING,
    objects=("plan", "result"),
    sections=(
        ManualSection(
            "SAFETY",
            (
                (
                    "The plan is shown first. On a terminal it is applied after yes has been typed; elsewhere it needs"
                    " --yes. --dry-run shows the plan and changes nothing. All removals are one atomic batch. There is"
                    " no undo."
                ),
            ),
        ),
    ),
)


def _keep(period: str) -> object:
    return typer.Option(f"--keep-{period}", metavar="N", min=0, help=f"Number of backups to keep: {period}.")


def run(
    vault: VaultArgument,
    backups: Annotated[
        list[str] | None, typer.Argument(metavar="[ID]...", help="The backups to remove.", show_default=False)
    ] = None,
    keep_last: Annotated[int, _keep("last")] = 0,
    keep_hourly: Annotated[int, _keep("hourly")] = 0,
    keep_daily: Annotated[int, _keep("daily")] = 0,
    keep_weekly: Annotated[int, _keep("weekly")] = 0,
    keep_monthly: Annotated[int, _keep("monthly")] = 0,
    keep_yearly: Annotated[int, _keep("yearly")] = 0,
    keep_tag: Annotated[
        list[str] | None, typer.Option("--keep-tag", metavar="T", help="Keep backups with this tag (repeatable).")
    ] = None,
    prune: Annotated[bool, typer.Option("--prune", help="Release their space as well.")] = False,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    password_file: PasswordOption = None,
    output_format: FormatOption = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = 0,
) -> ExitStatus:
    """Plan, confirm, forget."""
    directory, switches = vault_of(vault), Switches(yes, dry_run, None)
    switches.check()

    from waltzctl.engine.backup.backup_removal import ForgetPlan, forget, plan_forgetting, prune_vault
    from waltzctl.engine.backup.retention import Retention
    from waltzctl.engine.errors import WaltzError
    from waltzctl.objects.backup_objects import forget_plan_object

    tags = frozenset(keep_tag or ())
    retention = Retention(keep_last, keep_hourly, keep_daily, keep_weekly, keep_monthly, keep_yearly, tags)
    with Console(output_format, quiet=quiet, verbose=verbose, single=True, must_finish=True) as console:
        password = password_of(password_file)
        unpruned: list[ExitStatus] = []

        async def make() -> ForgetPlan:
            return plan_forgetting(directory, backups or (), retention, password=password)

        async def apply(plan: ForgetPlan) -> Changed:
            forget(plan, password=password)
            done = f"{counted(len(plan.steps), 'backup')} forgotten, {plan.kept} kept"
            pruning = f"waltzctl backup prune {shell_quote(str(directory))}"
            if not prune:
                return Changed(f"{done}; {pruning} gives their room back.")
            try:
                given = prune_vault(directory, password=password)
            except WaltzError as error:
                # who thinks that nothing was forgotten does it once more, and finds nothing to do
                console.trouble(f"the backups are forgotten, and their room could not be given back: {error}")
                unpruned.append(ExitStatus.from_label(error.status))
                return Changed(f"{done}; {pruning} gives their room back.")
            return Changed(
                f"{done}; {human_bytes(given.before)} of files became {human_bytes(given.after)}.", given.findings
            )

        return change(
            console, switches, make, apply, forget_plan_object, lambda: max(unpruned, default=ExitStatus.CLEAN)
        )
