"""The main job on a real Azure Blob service (Azurite)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.test_daemon import the_main_job
from tests.support.azurite_server import azure_store_section, running_azurite
from tests.support.kafka_cluster import KafkaCluster

pytestmark = [pytest.mark.broker, pytest.mark.server, pytest.mark.timeout(400)]


def test_segments_go_to_azure_and_come_back(kafka: KafkaCluster, tmp_path: Path) -> None:
    with running_azurite(tmp_path) as server:
        server.create_container("kafka-tier")

        def stored() -> set[str]:
            return {key for key in server.names("kafka-tier") if key.endswith((".log", ".indexes", ".rsm-manifest"))}

        the_main_job(kafka, tmp_path, "azure-job", store=azure_store_section(server, "kafka-tier"), stored=stored)
        assert server.unfinished_blobs("kafka-tier") == []
