"""The catalogue of findings: for every kind of finding its code, its severity, its meaning, and what to do.

It is the only place where the meaning of a code is defined, for verify, dump, recover, the node's start-up and the manual page;
there is one module each for storage directories, page stores and clusters.
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
