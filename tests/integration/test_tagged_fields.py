"""Kafka's own ``TaggedFields``, with the plugin's schema, reads past the field that is ours (S-293, S-295, S-299)."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support import kafka_jars
from tiersidecar.domain.ids import MOST_PLACE_NAME_BYTES
from tiersidecar.formats.aiven.keys import CustomMetadata, write_custom_metadata

pytestmark = [pytest.mark.broker, pytest.mark.timeout(240)]

SOURCE = Path(kafka_jars.__file__).with_name("TaggedFields.java")
LONGEST = "a" * MOST_PLACE_NAME_BYTES
CASES = {
    CustomMetadata(remote_size=7, object_prefix="p/", object_key="k"): "0=7 1=p/ 2=k",
    CustomMetadata(place="cold"): f"917=05{b'cold'.hex()}",
    CustomMetadata(remote_size=7, object_prefix="p/", place=LONGEST): f"0=7 1=p/ 917=21{LONGEST.encode().hex()}",
}


def test_the_plugin_finds_its_own_fields_and_keeps_ours() -> None:
    written = [write_custom_metadata(metadata).hex() for metadata in CASES]
    command = [kafka_jars.java_program(), "-cp", kafka_jars.kafka_classpath(), str(SOURCE), *written]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert ran.stdout.splitlines() == [f"{line} {data}" for line, data in zip(CASES.values(), written, strict=True)]
