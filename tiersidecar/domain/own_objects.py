"""Keys of objects that are ours and no segment's, all under ``<key.prefix>.tiersidecar/``."""

from __future__ import annotations

OWN_DIRECTORY = ".tiersidecar/"
REPORTS = f"{OWN_DIRECTORY}reconcile/"
"""A directory for each report of a reconcile run, by its id."""
LATEST_REPORT = f"{REPORTS}latest.json"
"""The summary of the last run."""
MARKS = f"{REPORTS}marks/"
"""What repair has marked: one object for each run that marks."""
OWNERS = f"{OWN_DIRECTORY}owners/"
"""An object for each topic id, ``<topic id>.json``: which cluster its remote data belong to."""
SNAPSHOTS = f"{OWN_DIRECTORY}snapshots/"
"""A directory for each topic id, in it one for each partition: what both topics say of it, as its leader saw them last."""
CLUSTERS = f"{OWN_DIRECTORY}clusters/"
"""A directory for each cluster id: how its tiered topics were made, and where its consumer groups stand."""
