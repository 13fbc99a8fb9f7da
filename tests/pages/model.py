"""A plain model of a page store, and random work on both."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field

from waltzctl.engine.errors import NoSuchPageError, PageConflictError
from waltzctl.engine.pages.page_batch import WriteBatch
from waltzctl.engine.pages.page_gc import collect_garbage
from waltzctl.engine.pages.page_options import PageOptions
from waltzctl.engine.pages.page_storage import PageStorage
from waltzctl.engine.pages.snapshots import Snapshot

TIGHT = PageOptions(
    blob_limit=4096, log_size=1500, max_log_files=3, flushed_with_record=1000, superseded_kept=2000, cache_size=0
)
"""Everything happens often: files are full, logs roll, checkpoints are due, data is flushed with its record or before it, room is
used again.  Whatever is read is read from the disk."""


@dataclass(frozen=True)
class Content:
    """What a page shows.  `origin` and `born`: the page that wrote it and when, so that equal bytes are told apart."""

    origin: tuple[int, int]
    born: int
    data: bytes | None = None
    tag: int = 0
    fields: tuple[int, ...] = ()


@dataclass(frozen=True)
class Shown:
    """A page: its own content, or another's by reference."""

    content: Content
    by_reference: bool = False


State = dict[tuple[int, int], Shown]


@dataclass
class Model:
    """Pages by namespace and id, and the highest id that a namespace ever had."""

    pages: State = field(default_factory=dict)
    highest: dict[int, int] = field(default_factory=dict)
    clock: int = 0

    def copy(self) -> Model:
        return Model(dict(self.pages), dict(self.highest), self.clock)

    def apply(self, batch: Iterable[tuple[object, ...]], namespace: int) -> bool:
        """Whether the batch changes something.  Raises PageConflictError, and nothing is changed."""
        pages, highest = dict(self.pages), dict(self.highest)
        referred: set[tuple[int, int]] = set()
        changed, begun = False, self.clock
        for kind, number, *rest in batch:
            assert isinstance(number, int)
            page = (namespace, number)
            shown = pages.get(page)
            self.clock += 1
            if kind == "put":
                data, tag, fields = rest
                referring = [
                    one for one in pages.values() if shown and one.by_reference and one.content == shown.content
                ]
                if shown and (shown.by_reference or shown.content.data is None or referring):
                    raise PageConflictError("put")
                if page in referred:
                    raise PageConflictError("referred")
                pages[page] = Shown(Content(page, self.clock, data, tag, fields))  # type: ignore[arg-type]
            elif kind == "external":
                if shown and (shown.by_reference or shown.content.data is not None):
                    raise PageConflictError("external")
                if shown:
                    continue
                if page in referred:
                    raise PageConflictError("referred")
                pages[page] = Shown(Content(page, self.clock))
            elif kind == "ref":
                origin = pages.get((namespace, rest[0]))  # type: ignore[arg-type]
                if origin is None:
                    raise PageConflictError("missing")
                if shown:
                    if shown.by_reference and shown.content == origin.content:
                        continue
                    raise PageConflictError("ref")
                if origin.content.born > begun:
                    referred.add(origin.content.origin)
                pages[page] = Shown(origin.content, by_reference=True)
            else:
                if not shown:
                    continue
                del pages[page]
            changed = True
            if kind != "delete":
                highest[namespace] = max(number, highest.get(namespace, 0))
        self.pages, self.highest = pages, highest
        return changed


def random_batch(rng: random.Random, model: Model, namespace: int) -> list[tuple[object, ...]]:
    """A few edits, most of which can be made."""
    present = [number for space, number in model.pages if space == namespace]
    if rng.random() < 0.1:
        return handed_on(rng, present)
    batch: list[tuple[object, ...]] = []
    for _ in range(rng.choice([1, 1, 2, 3, 5])):
        number = rng.randint(1, 14)
        kind = rng.choices(["put", "delete", "ref", "external"], [6, 3, 3, 1])[0]
        if kind == "put":
            size = rng.choice([0, 1, 30, 200, 700, 1500, 5000])
            cut = rng.randint(0, size)
            fields = rng.choice([(), (), (size,), (cut, size - cut)])
            batch.append((kind, number, rng.randbytes(size), rng.getrandbits(64), fields))
        elif kind == "ref":
            origin = rng.choice(present) if present and rng.random() < 0.9 else rng.randint(1, 14)
            batch.append((kind, rng.randint(15, 22) if rng.random() < 0.7 else number, origin))
        elif kind == "delete":
            batch.append((kind, rng.choice(present) if present and rng.random() < 0.8 else number))
        else:
            batch.append((kind, number))
    return batch


def handed_on(rng: random.Random, present: list[int]) -> list[tuple[object, ...]]:
    """What a page is written, referred to and deleted by at once; then it may become a reference itself."""
    number, other = rng.sample(range(1, 23), 2)
    gone: list[tuple[object, ...]] = [("delete", number), ("delete", other)]
    made = rng.choice([("put", number, rng.randbytes(rng.choice([0, 30, 700])), number, ()), ("external", number)])
    batch = [*gone, made, ("ref", other, number), ("delete", number)]
    if present and rng.random() < 0.5:
        batch.append(("ref", number, rng.choice(present)))
    return batch


def as_batch(edits: Iterable[tuple[object, ...]], namespace: int) -> WriteBatch:
    """The same for the engine."""
    batch = WriteBatch(namespace)
    for kind, number, *rest in edits:
        if kind == "put":
            batch.put_page(number, rest[0], tag=rest[1], field_sizes=rest[2])  # type: ignore[arg-type]
        elif kind == "external":
            batch.put_external(number)  # type: ignore[arg-type]
        elif kind == "ref":
            batch.put_ref(number, rest[0])  # type: ignore[arg-type]
        else:
            batch.delete(number)  # type: ignore[arg-type]
    return batch


def shown_by(store: PageStorage, snapshot: Snapshot | None = None) -> dict[tuple[int, int], tuple[object, ...]]:
    """Everything that a store shows, every byte read and checked."""
    found: dict[tuple[int, int], tuple[object, ...]] = {}
    for one in store.traverse(snapshot=snapshot):
        namespace, number = one.page
        if one.is_external:
            data, tag, fields = None, 0, []
            try:
                store.read(number, namespace=namespace, snapshot=snapshot)
            except NoSuchPageError:
                pass
            else:
                raise AssertionError("an external page was read")
        else:
            page = store.read(number, namespace=namespace, snapshot=snapshot)
            data, tag, fields = bytes(page.data), page.tag, [len(part) for part in page.fields]
            numbers = range(len(fields))
            assert store.read_fields(number, numbers, namespace=namespace, snapshot=snapshot) == list(page.fields)
        found[namespace, number] = (data, tag, tuple(fields), one.is_reference, tuple(one.origin))
    return found


def expected(state: State) -> dict[tuple[int, int], tuple[object, ...]]:
    """The same of the model."""
    return {
        page: (one.content.data, one.content.tag, one.content.fields, one.by_reference, one.content.origin)
        for page, one in state.items()
    }


def check(store: PageStorage, model: Model, snapshots: dict[Snapshot, State]) -> None:
    """Raises AssertionError where the store and the model are not alike."""
    assert shown_by(store) == expected(model.pages)
    for snapshot, state in snapshots.items():
        assert shown_by(store, snapshot) == expected(state)
    for namespace, highest in model.highest.items():
        assert store.max_id(namespace=namespace) == highest


def step(rng: random.Random, store: PageStorage, model: Model, snapshots: dict[Snapshot, State]) -> None:
    """One random thing that needs no restart."""
    what = rng.choices(["write", "snapshot", "close", "gc", "checkpoint"], [12, 2, 2, 3, 1])[0]
    if what == "write":
        namespace = rng.choice([0, 0, 7])
        edits = random_batch(rng, model, namespace)
        try:
            changed = model.apply(edits, namespace)
        except PageConflictError:
            changed = None
        before = store.directory.sequence
        try:
            sequence = store.write(as_batch(edits, namespace))
        except PageConflictError:
            assert changed is None
        else:
            assert changed is not None
            assert sequence == before + changed
    elif what == "snapshot" and len(snapshots) < 4:
        snapshots[store.snapshot()] = dict(model.pages)
    elif what == "close" and snapshots:
        gone = rng.choice(list(snapshots))
        gone.close()
        del snapshots[gone]
    elif what in ("gc", "checkpoint"):
        assert collect_garbage(store, checkpoint=what == "checkpoint").findings == []
