"""The catalogue of findings: every kind of damage or oddity that can be named, how severe it is, and what to do.

One catalogue serves verify, dump, recover, the node's start-up and the manual page: what a code means is said here or nowhere, by
what it is about.
"""

from __future__ import annotations

from waltzctl.engine.catalogue.cluster_catalogue import cluster_kinds
from waltzctl.engine.catalogue.finding_kinds import Code, FindingKind, Severity
from waltzctl.engine.catalogue.page_store_catalogue import page_store_kinds
from waltzctl.engine.catalogue.storage_catalogue import storage_kinds

__all__ = ["CATALOGUE", "OF_CLUSTERS", "OF_PAGE_STORES", "Code", "FindingKind", "Severity"]

CATALOGUE: dict[Code, FindingKind] = {
    kind.code: kind for kind in (*storage_kinds(), *page_store_kinds(), *cluster_kinds())
}
OF_PAGE_STORES = frozenset(kind.code for kind in page_store_kinds())
"""Codes about a page store, and about backups in one."""
OF_CLUSTERS = frozenset(kind.code for kind in cluster_kinds())
"""Codes about a cluster; all others are about a storage directory."""
