"""Objects that are ours and no segment's, all under ``<key.prefix>.tiersidecar/``: their keys, and how large they may be.

What is larger was not written by us, and no more of it is read: anybody who may write to the bucket may put one there.
"""

from __future__ import annotations

OWN_DIRECTORY = ".tiersidecar/"
REPORTS = f"{OWN_DIRECTORY}reconcile/"
"""A directory for each report of a reconcile run, by its id."""
LATEST_REPORT = f"{REPORTS}latest.json"
"""The summary of the last run."""
MOST_REPORT_BYTES = 1024 * 1024
"""Of a summary, which has 75 bytes for each partition of the metadata topic.  It is parsed on the event loop."""
MARKS = f"{REPORTS}marks/"
"""What repair has marked: objects of lines, one or more for each run that marks."""
MOST_MARKS_BYTES = 16 * 1024 * 1024
"""Of one object: 40,000 marks.  A run that marks more puts several."""
OWNERS = f"{OWN_DIRECTORY}owners/"
"""An object for each topic id, ``<topic id>.json``: which cluster its remote data belong to."""
MOST_OWNER_BYTES = 64 * 1024
"""Of an owner object, which has some hundred bytes, and 25 more for each cluster that a mount took the data over from."""
SNAPSHOTS = f"{OWN_DIRECTORY}snapshots/"
"""A directory for each topic id, in it one for each partition: what both topics say of it, as its leader saw them last."""
CLUSTERS = f"{OWN_DIRECTORY}clusters/"
"""A directory for each cluster id: how its tiered topics were made, and where its consumer groups stand."""
