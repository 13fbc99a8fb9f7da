"""The objects of commands on page stores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from waltzctl.engine.columns.column import Column, Form, ObjectType, Stands, listed, or_null, struct
from waltzctl.engine.columns.column_kinds import BOOLEAN, CHECKSUM, COUNT, OFFSET, PATH, SIZE, TEXT, WORD, one_of
from waltzctl.engine.columns.finding_columns import FINDING
from waltzctl.objects.command_kinds import AMOUNT, EXIT_STATUS, SECONDS, STATUS, UNMODIFIED
from waltzctl.objects.verify_objects import elapsed, nothing_modified

BAR = 20
"""Characters of a full bar."""


def _status(one: Any) -> str:
    return str(one.status)


def _counted(severity: str) -> Callable[[Any], int]:
    def read(one: Any) -> int:
        return sum(found.severity == severity for found in one.findings)

    return read


PAGE_VERIFY_SUMMARY = ObjectType(
    name="page-verify-summary",
    meaning="The last object of pages verify.",
    columns=(
        Column("status", STATUS, "the verdict"),
        Column("exit_status", EXIT_STATUS, "the exit status", read=_status),
        Column("pages", COUNT, "pages, references and external ones included"),
        Column("references", COUNT, "those among them that show another page"),
        Column("log_files", COUNT, "files of the log that count"),
        Column("log_records", COUNT, "whole records in them"),
        Column("blob_files", COUNT, "files with data"),
        Column("bytes", SIZE, "what was read and checked"),
        Column("damage", COUNT, "findings of this severity", read=_counted("damage")),
        Column("repairable", COUNT, "findings of this severity", read=_counted("repairable")),
        Column("notes", COUNT, "findings of this severity", read=_counted("note")),
        Column("elapsed_seconds", SECONDS, "how long it took", read=elapsed),
        Column("modified", UNMODIFIED, "whether anything was changed", read=nothing_modified),
    ),
)


def _rate(one: Any) -> float:
    return round(one.valid / one.total, 4) if one.total else 1.0


def _bar(shown: Any) -> str:
    if not shown["bytes"]:
        return "empty"
    rate = shown["valid_rate"]
    full = round(rate * BAR)
    return f"{'█' * full}{'░' * (BAR - full)} {rate:4.0%}"


BLOB_FILE = ObjectType(
    name="blob-file",
    meaning="A file with the data of pages, inside a page-store-status.",
    columns=(
        Column("file_id", COUNT, "its number", title="FILE"),
        Column("bytes", SIZE, "how long it is", read=lambda one: one.total, title="BYTES", cell=Form.BYTES),
        Column(
            "valid_bytes", SIZE, "what pages use of it", read=lambda one: one.valid, title="IN USE", cell=Form.BYTES
        ),
        Column("valid_rate", AMOUNT, "which share that is", read=_rate),
        Column("share", TEXT, stands=Stands.TABLE_ONLY, title="SHARE", cell=_bar),
    ),
)


def _rounded(name: str) -> Callable[[Any], float | None]:
    def read(one: Any) -> float | None:
        found = getattr(one, name)
        return None if found is None else round(found, 4)

    return read


PAGE_STORE_STATUS = ObjectType(
    name="page-store-status",
    meaning="What a page store holds.",
    columns=(
        Column("path", PATH, "the store's directory"),
        Column(
            "locked_by",
            or_null(COUNT.described("Process id; 0 where it is locked and the id is unknown.")),
            "the process that has it open",
        ),
        Column("sequence", COUNT, "the sequence of the last batch"),
        Column("namespaces", COUNT, "namespaces with pages"),
        Column("pages", COUNT, "pages, references and external ones included"),
        Column("references", COUNT, "those among them that show another page"),
        Column("external_pages", COUNT, "those whose data is elsewhere"),
        Column("versions", COUNT, "versions of pages that are kept"),
        Column(
            "snapshots",
            or_null(COUNT.described("Null where a process has the store open, which alone knows.")),
            "snapshots that are held",
        ),
        Column("log_files", COUNT, "files of the log that count"),
        Column("log_bytes", SIZE, "what they take", read=lambda one: one.log_size),
        Column("blob_bytes", SIZE, "what the files with data take", read=lambda one: one.blob_size),
        Column("valid_bytes", SIZE, "what pages use of that", read=lambda one: one.valid_size),
        Column(
            "space_amplification",
            or_null(AMOUNT.described("Null where no page uses any.")),
            "bytes of files for each byte in use",
            read=_rounded("space_amplification"),
        ),
        Column(
            "write_amplification",
            or_null(AMOUNT.described("Null where no page was written.")),
            "bytes written for each byte of a page, since the last checkpoint",
            read=_rounded("write_amplification"),
        ),
        Column("blob_files", listed(struct(BLOB_FILE)), "each of them", read=lambda one: one.blobs),
        Column("findings", listed(struct(FINDING)), "what is wrong with the log"),
    ),
)


def _entry(name: str) -> Callable[[Any], Any]:
    def read(one: Any) -> Any:
        entry = None if one.located is None else one.located.entry
        return None if entry is None else getattr(entry, name)

    return read


def _fields(one: Any) -> Any:
    entry = None if one.located is None else one.located.entry
    return None if entry is None else len(entry.fields)


def _origin(one: Any) -> int | None:
    return one.located.origin.id if one.located is not None and one.located.is_reference else None


PAGE_VERSION = ObjectType(
    name="page-version",
    meaning="A page of a page store, or one of its versions.",
    columns=(
        Column("namespace", COUNT, "its namespace", read=lambda one: one.page.namespace, title="NAMESPACE"),
        Column("page_id", COUNT, "its id", read=lambda one: one.page.id, title="PAGE"),
        Column(
            "sequence", COUNT, "of the batch that wrote it", read=lambda one: one.version.sequence, title="SEQUENCE"
        ),
        Column("epoch", COUNT, "how often its data was moved", read=lambda one: one.version.epoch, title="EPOCH"),
        Column("kind", one_of("data", "reference", "external", "delete"), "what it is", title="KIND"),
        Column("latest", BOOLEAN, "whether it is the page's last version"),
        Column("origin", or_null(COUNT), "of a reference: the page that it shows", read=_origin, title="ORIGIN"),
        Column("tag", or_null(COUNT), "what was said with it", read=_entry("tag"), title="TAG"),
        Column("size", or_null(SIZE), "of its data", read=_entry("size"), title="SIZE", cell=Form.BYTES),
        Column("fields", or_null(COUNT), "how many fields it has", read=_fields),
        Column("file_id", or_null(COUNT), "the blob file; 0: it is empty", read=_entry("file_id"), title="FILE"),
        Column("offset", or_null(OFFSET), "where in that file", read=_entry("offset"), title="OFFSET"),
        Column("checksum", or_null(CHECKSUM), "CRC-32C of its data", read=_entry("checksum"), title="CHECKSUM"),
    ),
)


def _of_edit(name: str) -> Callable[[Any], Any]:
    def read(one: Any) -> Any:
        return None if one.edit.entry is None else getattr(one.edit.entry, name)

    return read


LOG_EDIT = ObjectType(
    name="page-log-edit",
    meaning="An edit in the log of a page store.",
    columns=(
        Column("log", WORD, "the file", title="LOG"),
        Column("offset", OFFSET, "where its record begins", read=lambda one: one.record.offset, title="OFFSET"),
        Column("place", COUNT, "which edit of the record it is, from 0", title="#"),
        Column(
            "edit",
            WORD.described("put, put-external, ref, delete, upsert; in checkpoints var-entry and others."),
            "what it does",
            read=lambda one: one.edit.type.name.lower().replace("_", "-"),
            title="EDIT",
        ),
        Column("namespace", COUNT, "of the page", read=lambda one: one.edit.page.namespace, title="NAMESPACE"),
        Column("page_id", COUNT, "the page", read=lambda one: one.edit.page.id, title="PAGE"),
        Column("sequence", COUNT, "of its batch", read=lambda one: one.edit.version.sequence, title="SEQUENCE"),
        Column("epoch", COUNT, "how often its data was moved", read=lambda one: one.edit.version.epoch, title="EPOCH"),
        Column(
            "origin",
            or_null(COUNT),
            "of a reference: the page that it is to show",
            read=lambda one: None if one.edit.origin is None else one.edit.origin.id,
            title="ORIGIN",
        ),
        Column("size", or_null(SIZE), "of the data", read=_of_edit("size"), title="SIZE", cell=Form.BYTES),
        Column("file_id", or_null(COUNT), "the blob file", read=_of_edit("file_id"), title="FILE"),
        Column("file_offset", or_null(OFFSET), "where in that file", read=_of_edit("offset"), title="AT"),
    ),
)

FREE_RANGE = ObjectType(
    name="page-free-range",
    meaning="Bytes of a blob file that no page uses.",
    columns=(
        Column("file_id", COUNT, "the blob file", title="FILE"),
        Column("offset", OFFSET, "where in it", title="OFFSET"),
        Column("size", SIZE, "how many bytes", title="SIZE", cell=Form.BYTES),
    ),
)

PAGE_GC_RESULT = ObjectType(
    name="page-gc-result",
    meaning="What pages gc did.",
    columns=(
        Column("path", PATH, "the store's directory", given=True),
        Column("exit_status", EXIT_STATUS, "the exit status", given=True),
        Column("rounds", COUNT, "rounds until nothing was left to do", given=True),
        Column(
            "checkpoint_bytes",
            SIZE,
            "what the checkpoints take that were written",
            read=lambda one: one.checkpoint_size,
        ),
        Column("versions", COUNT, "versions that nobody saw any more"),
        Column("freed_bytes", SIZE, "room of pages that is free again", read=lambda one: one.freed),
        Column("files_removed", COUNT, "blob files that were removed"),
        Column("cut_bytes", SIZE, "what blob files were cut by", read=lambda one: one.cut),
        Column("pages_moved", COUNT, "pages that were copied out of files that were mostly empty"),
        Column("moved_bytes", SIZE, "their size", read=lambda one: one.moved),
        Column("blob_bytes_before", SIZE, "what blob files took before", given=True),
        Column("blob_bytes", SIZE, "what they take now", given=True),
        Column("findings", listed(struct(FINDING)), "pages that could not be moved"),
    ),
)


def _page_text(one: Any) -> list[str]:
    return [str(page) for page in one.lost]


def _label(one: Any) -> str:
    return str(one.exit_status_name)


PAGE_SALVAGE_REPORT = ObjectType(
    name="page-salvage-report",
    meaning="What pages salvage wrote, and what it could not.",
    columns=(
        Column("source", PATH, "the store that was read"),
        Column("path", PATH, "the store that was written"),
        Column("exit_status", EXIT_STATUS, "the exit status", read=_label),
        Column("pages", COUNT, "pages with data that were written"),
        Column("references", COUNT, "references that were written"),
        Column("external_pages", COUNT, "external pages that were written"),
        Column("bytes", SIZE, "the data that was written"),
        Column(
            "lost",
            listed(TEXT.described("NAMESPACE:ID.")),
            "pages whose data is damaged, and references to them",
            read=_page_text,
        ),
        Column("findings", listed(struct(FINDING)), "what is wrong with the source"),
    ),
)
