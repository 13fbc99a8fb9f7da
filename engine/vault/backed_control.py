"""The control file of a partial backup, as it is read and restored: partitions outside the backup are not assigned.

The backup itself contains the original bytes of the file.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

from waltzctl.formats.control import ControlFile, PartitionInfo, decode_control


def left_out(info: PartitionInfo) -> PartitionInfo:
    """The info of a partition that is not in the backup: not assigned.

    Layouts without flags mark such a partition by resetting session and marks.
    """
    current = info.current_struct
    if current is None:
        return info
    if current.flags is not None:
        return info.rewritten(flags=0) if current.assigned else info
    if max(current.marks) < 0:
        return info
    return info.rewritten(session_id=-1, low_water_mark=-1, local_low_water_mark=-1)


def with_infos(content: bytes, control: ControlFile, infos: Sequence[PartitionInfo]) -> bytes:
    """The bytes of a control file with its infos replaced by `infos`; `control`: the decoded `content`."""
    changed = bytearray(content)
    for before, info in zip(control.partitions, infos, strict=True):
        if info != before:
            offset, data = control.layout.info_offset(info.partition), info.encode()
            changed[offset : offset + len(data)] = data
    return bytes(changed)


def with_only(content: bytes, kept: Container[int]) -> bytes:
    """The bytes of a control file in which all partitions but `kept` are left out.  A damaged file is returned as it is."""
    try:
        control = decode_control(content)
    except ValueError:
        return content
    if not control.size_fits:
        return content
    infos = [info if info.partition in kept else left_out(info) for info in control.partitions]
    return with_infos(content, control, infos)
