"""The main job on a real server with Google Cloud Storage's JSON API (fake-gcs-server)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.test_daemon import the_main_job
from tests.support.gcs_server import gcs_store_section, running_gcs_server
from tests.support.kafka_cluster import KafkaCluster

pytestmark = [pytest.mark.broker, pytest.mark.server, pytest.mark.timeout(400)]


def test_segments_go_to_gcs_and_come_back(kafka: KafkaCluster, tmp_path: Path) -> None:
    with running_gcs_server(tmp_path) as server:
        server.create_bucket("kafka-tier")

        def stored() -> set[str]:
            return {key for key in server.names("kafka-tier") if key.endswith((".log", ".indexes", ".rsm-manifest"))}

        the_main_job(kafka, tmp_path, "gcs-job", store=gcs_store_section(server.url, "kafka-tier"), stored=stored)
