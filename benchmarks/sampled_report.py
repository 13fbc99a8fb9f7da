"""What a sampled run saw, as a short list; see ``sampled.py``."""

from __future__ import annotations

import collections
from pathlib import Path

SHOWN = 22


def report(stacks: Path, shown: int = SHOWN) -> str:
    """For each kind of thread: the places where it was most often, and the functions under which it was."""
    own: dict[str, collections.Counter[str]] = {}
    under: dict[str, collections.Counter[str]] = {}
    for line in stacks.read_text().splitlines():
        if line.startswith("#"):
            continue
        stack, _, number = line.rpartition(" ")
        thread, *frames = stack.split(";")
        kind = thread.rstrip("0123456789-_ ") or thread
        count = int(number)
        innermost = frames[-1] if frames else "?"
        own.setdefault(kind, collections.Counter())[innermost] += count
        seen = under.setdefault(kind, collections.Counter())
        for function in {frame.partition(":")[0] for frame in frames}:
            seen[function] += count
    lines = []
    total = sum(sum(counter.values()) for counter in own.values())
    for kind, counter in sorted(own.items(), key=lambda item: -sum(item[1].values())):
        samples = sum(counter.values())
        if samples < 0.02 * total:
            continue
        lines.append(f"{kind}: {samples} samples")
        lines += [
            f"  at    {count / samples:>5.0%}  {place}"
            for place, count in counter.most_common(shown)
            if count > 0.01 * samples
        ]
        lines += [
            f"  under {count / samples:>5.0%}  {place}"
            for place, count in under[kind].most_common(shown)
            if count > 0.03 * samples
        ]
    return "\n".join(lines)
