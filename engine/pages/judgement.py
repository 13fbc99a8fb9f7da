"""May the edits of a batch be made?  Decided before anything of them is in the log.

==========  ====================  =================================  ==========================  ==========================
edit        on no page            on an entry                        on a reference              on an external page
==========  ====================  =================================  ==========================  ==========================
put         creates               new version, unless referred to    refused                     refused
external    creates               refused                            refused                     nothing to do
reference   creates               refused                            same target: nothing to do  refused
delete      nothing to do         deletes                            deletes                     deletes
==========  ====================  =================================  ==========================  ==========================

A page that was deleted is no page.  A reference to a reference leads to where that leads.  Edits of a batch are judged one after
another, each as if those before it had been made; batches that are written together likewise.  A version that a batch writes and
refers to is not superseded by the same batch, not even after a delete: two versions of one sequence would both be needed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from waltzctl.engine.errors import PageConflictError
from waltzctl.engine.pages.page_directory import LARGEST_PAGE, PageDirectory
from waltzctl.engine.pages.page_index import NONE
from waltzctl.formats.pages.write_batch import Edit, EditType, PageId


class _Fresh:
    """What an edit that is not made yet will be: an entry or an external page."""

    def __init__(self, page: PageId, batch: _Overlay, *, external: bool) -> None:
        self.page = page
        self.batch = batch
        self.external = external


_Target = int | _Fresh


@dataclass
class _State:
    """A page's last version: what it says, and whether by reference.  None: there is no page."""

    target: _Target | None
    is_reference: bool = False


@dataclass
class _Overlay:
    """What edits that are not made yet have changed."""

    states: dict[PageId, _State] = field(default_factory=dict)
    references: dict[PageId, int] = field(default_factory=dict)


class BatchJudge:
    """Judges the batches of a group, one after another; the caller holds the directory's lock."""

    def __init__(self, directory: PageDirectory) -> None:
        self._directory = directory
        self._accepted = _Overlay()
        self._batch = _Overlay()
        self._referred: set[PageId] = set()

    def judge(self, edits: Iterable[Edit]) -> list[Edit]:
        """The edits of one batch that change something.  Raises PageConflictError; the batch changes nothing then."""
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
        self._set(page, _State(_Fresh(page, self._batch, external=False)))
        return True

    def _put_external(self, edit: Edit, state: _State) -> bool:
        if state.target is None:
            if edit.page in self._referred:
                raise _conflict(edit.page, "the same batch refers to it", "write it in a batch of its own")
            self._set(edit.page, _State(_Fresh(edit.page, self._batch, external=True)))
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
        if isinstance(origin.target, _Fresh) and origin.target.batch is self._batch:
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
        """A page refers to `target` now, or no longer; it counts where that is the last version of its page."""
        page = self._page_of(target)
        state = self._state(page)
        if state.target is not None and not state.is_reference and self._same(state.target, target):
            self._batch.references[page] = self._references(page) + by

    def _page_of(self, target: _Target) -> PageId:
        return target.page if isinstance(target, _Fresh) else self._directory.page_of(target)

    def _external(self, target: _Target) -> bool:
        return target.external if isinstance(target, _Fresh) else self._directory.is_external(target)

    @staticmethod
    def _same(one: _Target, other: _Target) -> bool:
        return one is other if isinstance(one, _Fresh) else one == other


def _conflict(page: PageId, why: str, advice: str) -> PageConflictError:
    return PageConflictError(f"page {page} cannot be written: {why}", advice=advice)
