"""The appends of a mount that are not decided: which were sent, which a lock refused, and how many are to be sent again."""

from __future__ import annotations

from collections import OrderedDict

from waltzctl.engine.client.append_call import AppendCall, Numbered


class UndecidedAppends:
    """The undecided appends of the calls at one mount.

    Until an append is committed it is in one of three states:

    ==================  =====================================================  ============================================
    state               meaning                                                recorded in
    ==================  =====================================================  ============================================
    undecided           sent                                                   `sent`, and `AppendCall.sent`
    refused             sent; the server answered with a lock failure, and     as above, and `conflicts`
                        the feed has not reached the conflicting transaction
    to be sent again    not committed; its draft will be built again           `AppendCall.again`, counted in `to_resend`
    ==================  =====================================================  ============================================

    `sent`: the calls by sequence number, in the order in which the appends were sent, which is that in which they commit.
    `to_resend`: over all calls; before any new append.  `conflicts`: by sequence number, the transaction that the server named in
    the lock failure; an append that is decided otherwise may stay in it until the feed has reached that transaction.
    """

    def __init__(self) -> None:
        self.sent: OrderedDict[int, AppendCall] = OrderedDict()
        self.to_resend = 0
        self.conflicts: dict[int, int] = {}

    def fail_oldest(self) -> None:
        """The oldest append is not committed and will not be: its call sends it again."""
        self._give_back(next(iter(self.sent)))

    def fail_up_to(self, sequence: int) -> bool:
        """As `fail_oldest`, for all that were sent up to a sequence number; whether there were any."""
        any_failed = False
        while self.sent and next(iter(self.sent)) <= sequence:
            self.fail_oldest()
            any_failed = True
        return any_failed

    def fail_all(self) -> None:
        """As `fail_oldest`, for every append."""
        self.conflicts.clear()
        while self.sent:
            self.fail_oldest()

    def return_conflicting(self, position: int) -> None:
        """Give appends back to their calls whose conflicting transaction the feed has reached: it is at `position`."""
        for sequence in [one for one, conflicting in self.conflicts.items() if conflicting <= position]:
            if sequence in self.sent:
                self._give_back(sequence)
            del self.conflicts[sequence]

    def _give_back(self, sequence: int) -> None:
        """Give an append back to its call, which sends it again.  An error (MemoryError) leaves it undecided."""
        self.sent[sequence].refused(sequence)
        del self.sent[sequence]
        self.to_resend += 1

    def take_again(self, call: AppendCall) -> list[Numbered]:
        """The drafts of a call that are to be sent again, which it is about to do."""
        again, call.again = call.again, []
        self.to_resend -= len(again)
        return again

    def forget(self, call: AppendCall) -> None:
        """A call leaves the mount: the outcome of its appends is ignored from now on."""
        for sequence in call.sent:
            self.sent.pop(sequence, None)
        self.to_resend -= len(call.again)
