"""Columns that are passed between the steps of a job."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from tiersidecar.decide.reconcile_findings import Finding
from tiersidecar.reconcile.report import finding_document
from tiersidecar.reconcile.report_schema import FINDINGS

EVENTS = pa.schema(
    [
        ("log_partition", pa.int32()),
        ("log_offset", pa.int64()),
        ("is_late", pa.bool_()),
        ("api_key", pa.int8()),
        ("uuid", pa.binary()),
        ("state", pa.int8()),
        ("broker_id", pa.int32()),
        ("event_timestamp_ms", pa.int64()),
        ("topic", pa.string()),
        ("topic_id", pa.binary()),
        ("partition", pa.int32()),
        ("start_offset", pa.int64()),
        ("end_offset", pa.int64()),
        ("segment_size_bytes", pa.int64()),
        ("epochs", pa.string()),
        ("object_prefix", pa.string()),
        ("remote_size_bytes", pa.int64()),
        ("fault", pa.string()),
    ]
)
"""One event of the metadata topic.  ``is_late``: it came after the listing began.  ``epochs`` is ``epoch:start,...``.

``api_key`` is Kafka's, or UNREADABLE of :mod:`tiersidecar.reconcile.segment_rows` with the reason in ``fault``; columns that a
kind of event does not have are null.  An event whose custom metadata are another plugin's counts, and has a ``fault`` as well.
"""

OBJECTS = pa.schema([("key", pa.string()), ("size_bytes", pa.int64()), ("modified_ms", pa.int64())])
"""One listed object."""

LISTED = OBJECTS.append(pa.field("away", pa.string()))
"""The same, with ``away`` null; or a place that stopped answering: ``key`` is the prefix of its keys, ``away`` the reason."""


def findings_batch(findings: Iterable[Finding]) -> pa.RecordBatch:
    """Return ``findings`` as rows of :data:`FINDINGS`."""
    return pa.RecordBatch.from_pylist([finding_document(finding) for finding in findings], schema=FINDINGS)


def ddl(schema: pa.Schema) -> str:
    """Return the schema in Spark's DDL."""
    words = {
        pa.int8(): "tinyint",
        pa.int32(): "int",
        pa.int64(): "bigint",
        pa.bool_(): "boolean",
        pa.string(): "string",
        pa.binary(): "binary",
    }
    return ", ".join(f"`{field.name}` {words[field.type]}" for field in schema)
