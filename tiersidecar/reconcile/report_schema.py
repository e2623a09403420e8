"""Columns of the report's Parquet file; a module of its own, because Arrow is in the extra `spark` only."""

from __future__ import annotations

from dataclasses import fields

import pyarrow as pa

from tiersidecar.decide.reconcile_findings import Finding

_TYPES = {"int": pa.int64(), "str": pa.string(), "FindingKind": pa.string()}
FINDINGS = pa.schema([(field.name, _TYPES[str(field.type)]) for field in fields(Finding)] + [("action", pa.string())])
"""One :class:`~tiersidecar.decide.reconcile_findings.Finding`, and what the report proposes to do."""
