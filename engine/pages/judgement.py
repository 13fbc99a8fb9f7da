"""Conflict check: may the edits of a batch be made?  It is decided before any of them is in the log.

==========  ====================  =================================  ==========================  ==========================
edit        on no page            on an entry                        on a reference              on an external page
==========  ====================  =================================  ==========================  ==========================
put         creates               new version, unless referred to    refused                     refused
external    creates               refused                            refused                     nothing to do
reference   creates               refused                            same target: nothing to do  refused
delete      nothing to do         deletes                            deletes                     deletes
==========  ====================  =================================  ==========================  ==========================

- A deleted page counts as no page.
- A reference to a reference resolves to the target of the latter.
- Edits of a batch are checked in order, each as if those before it had been made; so are the batches of one group commit.
- If a batch writes a version and refers to it, the same batch must not supersede that version, not even after a delete: the page
  would need two versions with the same sequence.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from waltzctl.engine.errors import PageConflictError
from waltzctl.engine.pages.page_directory import LARGEST_PAGE, PageDirectory
from waltzctl.engine.pages.page_index import NONE
from waltzctl.formats.pages.write_batch import Edit, EditType, PageId


class _PendingTarget:
    """The target that an edit, not made yet, will create: an entry or an external page."""

    def __init__(self, page: PageId, batch: _Overlay, *, external: bool) -> None:
        self.page = page
        self.batch = batch
        self.external = external


_Target = int | _PendingTarget


@dataclass
class _State:
    """The last version of a page: its target, and whether it is a reference to that.  `target` None: there is no page."""

    target: _Target | None
    is_reference: bool = False


@dataclass
class _Overlay:
    """Changes by edits that are not made yet: states of pages, and numbers of live references to them."""

    states: dict[PageId, _State] = field(default_factory=dict)
    references: dict[PageId, int] = field(default_factory=dict)


class BatchJudge:
    """Checks the batches of one group commit, in order; the caller holds the directory lock."""

    def __init__(self, directory: PageDirectory) -> None:
        self._directory = directory
        self._accepted = _Overlay()
        self._batch = _Overlay()
        self._referred: set[PageId] = set()

    def judge(self, edits: Iterable[Edit]) -> list[Edit]:
        """The edits of one batch that change something.  Raises PageConflictError; then no edit of the batch is made."""
        self._batch, self._referred = _Overlay(), set()
        made = [edit for edit in edits if self._judge(edit)]
        self._accepted.states |= self._batch.states
        self._accepted.references |= self._batch.references
        return made

    def _judge(self, edit: Edit) -> bool:
        state = self._state(edit.page)
        match edit.type:
            case EditType.PUT:
                return self._put(edit, state)
            case EditType.PUT_EXTERNAL:
                return self._put_external(edit, state)
            case EditType.REF:
                return self._refer(edit, state)
            case EditType.DELETE:
                return self._delete(edit, state)
            case _:
                raise ValueError(f"an edit of type {edit.type.name} is in no batch")

    def _put(self, edit: Edit, state: _State) -> bool:
        page = edit.page
        if state.target is not None and state.is_reference:
            raise _conflict(page, "it is a reference", "delete it first")
        if state.target is not None and self._external(state.target):
            raise _conflict(page, "it is an external page", "delete it first")
        if (count := self._references(page)) > 0:
            raise _conflict(page, f"{count} other pages refer to it", "delete those first, or write under another id")
        if page in self._referred:
            raise _conflict(page, "the same batch refers to it", "write it in a batch of its own")
        if edit.entry is not None and edit.entry.size > LARGEST_PAGE:
            raise _conflict(page, f"it has {edit.entry.size} bytes", f"a page has at most {LARGEST_PAGE}")
        self._set(page, _State(_PendingTarget(page, self._batch, external=False)))
        return True

    def _put_external(self, edit: Edit, state: _State) -> bool:
        if state.target is None:
            if edit.page in self._referred:
                raise _conflict(edit.page, "the same batch refers to it", "write it in a batch of its own")
            self._set(edit.page, _State(_PendingTarget(edit.page, self._batch, external=True)))
            return True
        if state.is_reference or not self._external(state.target):
            kind = "a reference" if state.is_reference else "a page with data"
            raise _conflict(edit.page, f"it is {kind}, and is to be an external page", "delete it first")
        return False

    def _refer(self, edit: Edit, state: _State) -> bool:
        assert edit.origin is not None
        origin = self._state(edit.origin)
        if origin.target is None:
            raise _conflict(edit.page, f"it is to refer to page {edit.origin}, which is not there", "write that first")
        if state.target is not None:
            if state.is_reference and self._same(state.target, origin.target):
                return False
            kind = "refers to another page" if state.is_reference else "is there and no reference"
            raise _conflict(edit.page, f"it {kind}", "delete it first")
        if isinstance(origin.target, _PendingTarget) and origin.target.batch is self._batch:
            self._referred.add(origin.target.page)
        self._set(edit.page, _State(origin.target, is_reference=True))
        self._count(origin.target, 1)
        return True

    def _delete(self, edit: Edit, state: _State) -> bool:
        if state.target is None:
            return False
        if state.is_reference:
            self._count(state.target, -1)
        self._set(edit.page, _State(None))
        return True

    def _state(self, page: PageId) -> _State:
        for overlay in (self._batch, self._accepted):
            if page in overlay.states:
                return overlay.states[page]
        head = self._directory.head_of(page)
        if head == NONE:
            return _State(None)
        target = self._directory.target_of(head)
        return _State(target, is_reference=target != head)

    def _set(self, page: PageId, state: _State) -> None:
        self._batch.states[page] = state
        self._batch.references[page] = 0

    def _references(self, page: PageId) -> int:
        for overlay in (self._batch, self._accepted):
            if page in overlay.references:
                return overlay.references[page]
        return self._directory.live_references(page)

    def _count(self, target: _Target, by: int) -> None:
        """Adjust the live references to `target`, which counts them only while it is the last version of its page."""
        page = self._page_of(target)
        state = self._state(page)
        if state.target is not None and not state.is_reference and self._same(state.target, target):
            self._batch.references[page] = self._references(page) + by

    def _page_of(self, target: _Target) -> PageId:
        return target.page if isinstance(target, _PendingTarget) else self._directory.page_of(target)

    def _external(self, target: _Target) -> bool:
        return target.external if isinstance(target, _PendingTarget) else self._directory.is_external(target)

    @staticmethod
    def _same(one: _Target, other: _Target) -> bool:
        return one is other if isinstance(one, _PendingTarget) else one == other


def _conflict(page: PageId, why: str, advice: str) -> PageConflictError:
    return PageConflictError(f"page {page} cannot be written: {why}", advice=advice)
