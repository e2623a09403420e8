"""The plugin prefixes of server.properties (S-196)."""

from __future__ import annotations

from pathlib import Path

from tests.unit.app.config.config_files import LEAST, faults_of, load
from tiersidecar.app.config.store import S3Store
from tiersidecar.app.config.store_gcs import GcsStore
from tiersidecar.app.handover.settings import native_settings


def test_plugin_prefixes_are_taken_as_in_server_properties(tmp_path: Path) -> None:
    """S-196: rsm.config. and rlmm.config. are stripped."""
    config = load(
        tmp_path,
        """\
log.dirs: /d
broker: {bootstrap.servers: "h:1"}
rsm.config.storage.backend.class: io.aiven.kafka.tieredstorage.storage.s3.S3Storage
rsm.config.storage.s3.bucket.name: b
rsm.config.storage.s3.region: eu-central-1
rsm.config.chunk.size: 1MiB
rsm.config.key.prefix: tier/
rsm.config.encryption.enabled: true
rsm.config.encryption.key.pair.id: k1
rsm.config.encryption.key.pairs: k1
rsm.config.encryption.key.pairs.k1.public.key.file: /p
rsm.config.encryption.key.pairs.k1.private.key.file: /q
rlmm.config.remote.log.metadata.topic.num.partitions: 5
""",
    )
    assert isinstance(config.store, S3Store)
    assert (config.store.s3_bucket_name, config.store.chunk_size, config.store.key_prefix) == ("b", 1024**2, "tier/")
    assert config.store.encryption_key_pairs["k1"].private_key_file == "/q"
    assert config.remote_log_metadata_topic_num_partitions == 5


def test_the_plugins_settings_of_google_cloud_storage_are_taken_and_given_back(tmp_path: Path) -> None:
    """S-196: its class names the kind, and a hand-over asks native brokers for the same."""
    config = load(
        tmp_path,
        """\
log.dirs: /d
broker: {bootstrap.servers: "h:1"}
rsm.config.storage.backend.class: io.aiven.kafka.tieredstorage.storage.gcs.GcsStorage
rsm.config.storage.gcs.bucket.name: tier
rsm.config.storage.gcs.endpoint.url: http://127.0.0.1:9
rsm.config.storage.gcs.credentials.default: false
rsm.config.storage.gcs.resumable.upload.chunk.size: 8388608
""",
    )
    assert isinstance(config.store, GcsStore)
    assert (config.store.place, config.store.gcs_resumable_upload_chunk_size) == ("gs://tier", 8 * 1024**2)
    wanted = {setting.name: setting.wanted for setting in native_settings(config)}
    assert wanted["rsm.config.storage.backend.class"] == "io.aiven.kafka.tieredstorage.storage.gcs.GcsStorage"
    assert wanted["rsm.config.storage.gcs.bucket.name"] == "tier"
    assert wanted["rsm.config.storage.gcs.endpoint.url"] == "http://127.0.0.1:9"


def test_a_prefixed_key_and_its_own_form_clash(tmp_path: Path) -> None:
    assert faults_of(tmp_path, LEAST + "rsm.config.storage.root: /other\nrsm.config.chunk.sise: 1\n") == [
        "line 7: store.root: is set twice, first on line 6",
        "line 8: store.chunk.sise: unknown key; did you mean store.chunk.size?",
    ]
