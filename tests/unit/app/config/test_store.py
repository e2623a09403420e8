"""Store settings: the bounds of the plugin and of S3."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.app.config.config_files import faults_of
from tiersidecar.app.config.config import load_config


@pytest.mark.parametrize(
    ("store", "faults"),
    [
        pytest.param("root: /r", ["line 1: store: type is required: filesystem or s3 or azure or gcs"], id="no type"),
        pytest.param(
            "type: hdfs",
            ["line 1: store: type: expected filesystem or s3 or azure or gcs, got 'hdfs'"],
            id="another type",
        ),
        pytest.param("type: filesystem", ["line 1: store.root: is required"], id="no root"),
        pytest.param(
            "type: filesystem, root: /d/x",
            ["line 1: store.root: must not lie in a log dir (/d): the broker would refuse to start"],
            id="the tier in a log dir",
        ),
        pytest.param(
            "type: filesystem, root: /r, chunk.size: 0",
            ["line 1: store.chunk.size: must be at least 1, got 0"],
            id="chunk 0",
        ),
        pytest.param(
            "type: filesystem, root: /r, chunk.size: 1GiB",
            ["line 1: store.chunk.size: must be at most 1073741823, got '1GiB'"],
            id="a chunk above the plugin's bound",
        ),
        pytest.param(
            "type: filesystem, root: /r, upload.rate.limit.bytes.per.second: 1000",
            ["line 1: store.upload.rate.limit.bytes.per.second: must be at least 1MiB, got 1000"],
            id="a rate below the plugin's bound",
        ),
        pytest.param(
            "type: filesystem, root: /r, encryption.enabled: true",
            [
                "line 1: store.encryption.key.pair.id: is required with encryption.enabled, unless encryption.key.wrapping "
                "names a key service"
            ],
            id="encryption without a key",
        ),
        pytest.param(
            "type: filesystem, root: /r, encryption.key.wrapping: aws-kms, "
            "encryption.key.wrapping.options: {key.id: '', access.key.id: a, keyid: b}",
            [
                "line 1: store.encryption.key.wrapping.options.access.key.id: and secret.access.key go together",
                "line 1: store.encryption.key.wrapping.options.key.id: must be a text",
                "line 1: store.encryption.key.wrapping.options.keyid: is not known: the options are key.id, region, "
                "endpoint.url, access.key.id, secret.access.key, ca.location",
                "line 1: store.encryption.key.wrapping.options.region: is required",
            ],
            id="options that the key service does not take",
        ),
        pytest.param(
            "type: filesystem, root: /r, encryption.key.wrapping: aws-kms, encryption.key.wrapping.options: "
            "{key.id: a, region: r, access.key.id: b, secret.access.key: c}",
            [
                "line 1: store.encryption.key.wrapping.options.secret.access.key: is a secret: write {env: NAME} or {file: "
                "/path}"
            ],
            id="a secret of the key service in the file itself",
        ),
        pytest.param(
            "type: filesystem, root: /r, encryption.key.wrapping: enigma",
            ["line 1: store.encryption.key.wrapping: 'enigma': no installed package brings it"],
            id="a key service that there is not",
        ),
        pytest.param(
            "type: filesystem, root: /r, encryption.key.wrapping.options: {key.id: a}",
            ["line 1: store.encryption.key.wrapping.options: have no effect without encryption.key.wrapping"],
            id="options of no key service",
        ),
        pytest.param(
            "type: filesystem, root: /r, encryption.key.pairs: "
            "{aws-kms/a: {public.key.file: /p, private.key.file: /q}}",
            [
                "line 1: store.encryption.key.pairs.aws-kms/a: 'aws-kms/a' looks in a manifest like a key of a key service: "
                "give the pair another id"
            ],
            id="a key pair whose id looks like a key of a service",
        ),
        pytest.param(
            "type: filesystem, root: /r, encryption.key.pair.id: b, "
            "encryption.key.pairs: {a: {public.key.file: /p, private.key.file: /q}}",
            ["line 1: store.encryption.key.pair.id: 'b' is not in encryption.key.pairs, which has a"],
            id="a key that is not in the ring",
        ),
        pytest.param(
            "type: filesystem, root: /r, encryption.key.pairs: {a: {public.key.file: p}}",
            [
                "line 1: store.encryption.key.pairs.a.private.key.file: is required",
                "line 1: store.encryption.key.pairs.a.public.key.file: expected an absolute path, got 'p'",
            ],
            id="half a key pair, with a relative path",
        ),
        pytest.param(
            "type: filesystem, root: /r, key.prefix: ../x/",
            ["line 1: store.key.prefix: cannot hold '..' or a NUL character"],
            id="a prefix that climbs",
        ),
        pytest.param(
            "type: filesystem, root: /r, custom.metadata.fields.include: SIZE",
            [
                "line 1: store.custom.metadata.fields.include: expected REMOTE_SIZE, OBJECT_PREFIX or OBJECT_KEY, got 'SIZE'"
            ],
            id="custom metadata that there is none",
        ),
        pytest.param(
            "type: s3, s3.bucket.name: b, s3.region: r, s3.multipart.upload.part.size: 1MiB",
            ["line 1: store.s3.multipart.upload.part.size: must be at least 5MiB, got '1MiB'"],
            id="a part below S3's bound",
        ),
        pytest.param(
            "type: s3, s3.bucket.name: b, s3.region: r, aws.access.key.id: {env: A}",
            ["line 1: store.aws.access.key.id: environment variable A is not set"],
            id="a secret that is not there",
        ),
        pytest.param(
            "type: s3, s3.bucket.name: b, s3.region: r, aws.access.key.id: a",
            ["line 1: store.aws.secret.access.key: is required: the access key and the secret key go together"],
            id="half of the credentials",
        ),
        pytest.param(
            "type: s3, s3.bucket.name: b, s3.region: r, s3.server.side.encryption.kms.key.id: k",
            [
                "line 1: store.s3.server.side.encryption.kms.key.id: has no effect unless s3.server.side.encryption is aws:kms"
            ],
            id="a KMS key without KMS",
        ),
        pytest.param(
            "type: s3, s3.bucket.name: b, s3.region: r, verify.read.back: checksum, s3.checksum.algorithm: none",
            ["line 1: store.verify.read.back: checksum needs s3.checksum.algorithm auto or crc32c"],
            id="a checksum that nobody keeps",
        ),
        pytest.param(
            "type: s3, s3.bucket.name: b, s3.region: r, s3.endpoint.url: minio",
            ["line 1: store.s3.endpoint.url: 'minio' does not have the form ^https?://[^\\s/]+/?\\S*$"],
            id="an endpoint that is no URL",
        ),
        pytest.param(
            "type: azure, azure.account.name: account, azure.container.name: C",
            ["line 1: store.azure.container.name: 'C' does not have the form ^[a-z0-9](-?[a-z0-9]){2,62}$"],
            id="a container that cannot be",
        ),
        pytest.param(
            "type: azure, azure.account.name: account, azure.container.name: tier, azure.account.key: k, azure.sas.token: t",
            ["line 1: store.azure.sas.token: cannot be given beside azure.account.key: one of them is to log in with"],
            id="two ways to log in to Azure",
        ),
        pytest.param(
            "type: azure, azure.account.name: account, azure.container.name: tier, azure.client.secret: s",
            [
                "line 1: store.azure.client.id: is required with azure.client.secret",
                "line 1: store.azure.tenant.id: is required with azure.client.secret",
            ],
            id="a secret of nobody",
        ),
        pytest.param(
            "type: azure, azure.account.name: account, azure.container.name: tier, verify.read.back: checksum",
            ["line 1: store.verify.read.back: checksum needs a store that keeps a full-object CRC32C: Azure does not"],
            id="a checksum that Azure does not keep",
        ),
        pytest.param(
            "type: gcs, gcs.bucket.name: Tier",
            ["line 1: store.gcs.bucket.name: 'Tier' does not have the form ^[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]$"],
            id="a bucket of Google's that cannot be",
        ),
        pytest.param(
            "type: gcs, gcs.bucket.name: tier, gcs.credentials.path: /k.json, gcs.credentials.default: false",
            [
                "line 1: store.gcs.credentials.default: cannot be given beside gcs.credentials.path: one of them is to log in "
                "with"
            ],
            id="two ways to log in to Google",
        ),
        pytest.param(
            "type: gcs, gcs.bucket.name: tier, gcs.resumable.upload.chunk.size: 300KiB",
            ["line 1: store.gcs.resumable.upload.chunk.size: must be a multiple of 256 KiB"],
            id="a chunk that the service would not take",
        ),
    ],
)
def test_store_settings_fit_together(tmp_path: Path, store: str, faults: list[str]) -> None:
    text = f"store: {{{store}}}\nlog.dirs: [/d]\nbroker: {{bootstrap.servers: 'h:1'}}\n"
    assert faults_of(tmp_path, text) == faults


@pytest.mark.parametrize(
    ("more", "is_plain"),
    [
        pytest.param("", True, id="nothing is done to them"),
        pytest.param("compression.enabled: true", False, id="they are compressed"),
        pytest.param(
            "encryption.key.pairs: {a: {public.key.file: /p, private.key.file: /q}}",
            False,
            id="keys of older ones are there",
        ),
        pytest.param(
            "encryption.key.wrapping: aws-kms, encryption.key.wrapping.options: {key.id: alias/a, region: r}",
            False,
            id="a key service opens them",
        ),
    ],
)
def test_whether_objects_have_the_sizes_of_the_brokers_files(tmp_path: Path, more: str, *, is_plain: bool) -> None:
    text = f"store: {{type: filesystem, root: /r, {more}}}\nlog.dirs: [/d]\nbroker: {{bootstrap.servers: 'h:1'}}\n"
    path = tmp_path / "plain.yaml"
    path.write_text(text)
    assert load_config(path, {}).store.is_plain is is_plain
