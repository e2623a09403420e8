"""Objects of ours that are not a segment's, all under ``<key.prefix>.tiersidecar/``: their keys and greatest sizes.

A larger object was not written by us, and no more of it is read: any client with write access to the bucket may put one there.
"""

from __future__ import annotations

OWN_DIRECTORY = ".tiersidecar/"
REPORTS = f"{OWN_DIRECTORY}reconcile/"
"""A directory for each report of a reconcile run, by its id."""
LATEST_REPORT = f"{REPORTS}latest.json"
"""The summary of the last run."""
MOST_REPORT_BYTES = 1024 * 1024
"""Greatest size of a summary, which has 75 bytes for each partition of the metadata topic.  It is parsed on the event loop."""
MARKS = f"{REPORTS}marks/"
"""Marks by repair: objects of lines, one or more for each run that marks."""
MOST_MARKS_BYTES = 16 * 1024 * 1024
"""Greatest size of one object: 40,000 marks.  A run that marks more puts several."""
OWNERS = f"{OWN_DIRECTORY}owners/"
"""An object for each topic id, ``<topic id>.json``, naming the cluster that owns its remote data."""
MOST_OWNER_BYTES = 64 * 1024
"""Greatest size of an owner object: some hundred bytes, and 25 more for each cluster whose data a mount took over."""
SNAPSHOTS = f"{OWN_DIRECTORY}snapshots/"
"""A directory for each topic id, in it one for each partition: its records in both topics, as its leader saw them last."""
CLUSTERS = f"{OWN_DIRECTORY}clusters/"
"""A directory for each cluster id: its tiered topics' settings, and the offsets of its consumer groups."""
ATTEMPTS = f"{OWN_DIRECTORY}compact/"
"""An object for each segment that a compaction on Spark puts up, by its id: only one attempt may write under it."""
