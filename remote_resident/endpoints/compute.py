"""Where something can be computed: endpoints, and the providers of a tree."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from remote_resident import machine, places
from remote_resident.admission import Holder
from remote_resident.endpoints.swap import State
from remote_resident.errors import ManifestError
from remote_resident.manifest import ProviderManifest, catalog

Row = dict[str, Any]


def of_endpoint(row: Mapping[str, Any]) -> Row:
    """Give the line of an endpoint from its row."""
    return {
        "name": row["name"],
        "kind": "endpoint",
        "location": row["location"],
        "state": row["state"],
        "since": row["since"],
        "cause": row["cause"],
    }


def of_tree(tree: str) -> list[Row]:
    """Give the line of every provider of a tree: whether a worker of it is held now.

    Raises UsageError (`unknown_name`) where there is no tree.
    """
    root = places.find_tree(tree)
    held: dict[str, Holder] = {}
    for holder in machine.holdings():
        if holder.tree == str(root):
            held[holder.slug] = holder
    return [
        _of_provider(slug, found, held.get(slug))
        for slug, found in catalog(Path(root)).items()
    ]


def _of_provider(
    slug: str, found: ProviderManifest | ManifestError, holder: Holder | None
) -> Row:
    state = State.STOPPED
    if holder is not None:
        state = State.STARTING if holder.loading else State.READY
    cause = str(found) if isinstance(found, ManifestError) else None
    return {
        "name": slug,
        "kind": "provider",
        "location": "local",
        "state": (State.FAILED if cause else state).value,
        "since": None if holder is None else holder.started,
        "cause": cause,
    }
