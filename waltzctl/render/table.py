"""table: the format for a terminal: objects as rows of tables, or by a view of their own (views.py)."""

from __future__ import annotations

from waltzctl.engine.columns.column import Object
from waltzctl.render.layout import TableLayout, headings


class TableWriter(TableLayout):
    """Shows objects of every kind."""

    def write(self, shown: Object) -> None:
        """Show one object."""
        kind = shown["type"]
        if headings(kind):
            self.row(kind, shown)
            return
        self.close()
        if kind == "finding":
            self.finding(shown)
            return
        self._group = None
        from waltzctl.render.views import VIEWS

        view = VIEWS.get(kind)
        if view is not None:
            view(self, shown)
