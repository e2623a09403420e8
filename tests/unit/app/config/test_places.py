"""Places: what they take from section store, what they may not differ in, and the rules that name them (S-193, S-293)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.app.config.config_files import faults_of, load
from tiersidecar.app.builders.store import layout_settings
from tiersidecar.app.config.report import effective_settings, warnings_of
from tiersidecar.app.config.store import FilesystemStore, S3Store
from tiersidecar.domain.errors import ConfigError

HEAD = """\
log.dirs: [/d]
broker: {bootstrap.servers: "b:1"}
"""
S3 = """\
store:
  type: s3
  s3.bucket.name: hot
  s3.region: eu-1
  aws.access.key.id: {env: ID}
  aws.secret.access.key: {env: KEY}
  chunk.size: 1MiB
  key.prefix: c1/
  upload.rate.limit.bytes.per.second: 5MiB
"""
ENVIRON = {"ID": "an id", "KEY": "a key"}


def test_a_place_has_the_keys_of_the_store_but_for_those_that_it_gives_and_the_rate(tmp_path: Path) -> None:
    text = f"{HEAD}{S3}places:\n  cold: {{s3.bucket.name: cold, s3.region: us-1, s3.storage.class: GLACIER_IR}}\n"
    cold = load(tmp_path, text, ENVIRON).places["cold"]
    assert isinstance(cold, S3Store)
    assert (cold.s3_bucket_name, cold.s3_region, cold.s3_storage_class) == ("cold", "us-1", "GLACIER_IR")
    assert cold.aws_secret_access_key is not None
    assert cold.aws_secret_access_key.get_secret_value() == "a key"
    assert (cold.chunk_size, cold.key_prefix) == (1024 * 1024, "c1/")
    assert cold.upload_rate_limit_bytes_per_second is None, "each place has its own"


def test_a_place_of_another_type_has_what_holds_everywhere_and_nothing_else(tmp_path: Path) -> None:
    text = f"{HEAD}{S3}places:\n  near: {{type: filesystem, root: /srv/near}}\n"
    near = load(tmp_path, text, ENVIRON).places["near"]
    assert isinstance(near, FilesystemStore)
    assert (near.chunk_size, near.key_prefix) == (1024 * 1024, "")


KEY_SERVICE = """\
  encryption.enabled: true
  encryption.key.wrapping: aws-kms
  encryption.key.wrapping.options: {key.id: alias/tier, region: eu-1, access.key.id: a, secret.access.key: {env: KEY}}
  encryption.data.key.cache.ms: 5min
  encryption.data.key.cache.size: 7
"""


@pytest.mark.parametrize(
    "place",
    [
        pytest.param("{s3.bucket.name: cold}", id="a place of the store's type"),
        pytest.param("{type: filesystem, root: /srv/near}", id="a place of another type"),
    ],
)
def test_data_keys_are_wrapped_by_one_service_everywhere(tmp_path: Path, place: str) -> None:
    found = load(tmp_path, f"{HEAD}{S3}{KEY_SERVICE}places: {{cold: {place}}}\n", ENVIRON).places["cold"]
    assert (found.encryption_enabled, found.encryption_key_wrapping) == (True, "aws-kms")
    assert found.encryption_key_wrapping_options["secret.access.key"].get_secret_value() == "a key"
    assert (found.encryption_data_key_cache_ms, found.encryption_data_key_cache_size) == (300_000, 7)


RULES = f"""{HEAD}{S3}places:
  cold: {{s3.bucket.name: cold, key.prefix: a/}}
topics:
  - {{name: audit-now}}
  - {{pattern: "audit.*", place: cold}}
"""


@pytest.mark.parametrize(
    ("topic", "place"),
    [
        pytest.param("audit-now", "", id="the first rule that matches counts, and names none"),
        pytest.param("audit-then", "cold", id="a rule that names one"),
        pytest.param("orders", "", id="a topic that no rule matches, and that `enable` may tier"),
    ],
)
def test_the_first_rule_that_matches_says_where_a_topic_goes(tmp_path: Path, topic: str, place: str) -> None:
    config = load(tmp_path, RULES, ENVIRON)
    assert config.place_of_topic(topic) == place
    assert layout_settings(config, None, (4, 3)).place_of_topic(topic) == place


def test_keys_of_ours_begin_with_the_prefix_or_with_a_place(tmp_path: Path) -> None:
    config = load(tmp_path, RULES, ENVIRON)
    assert config.key_prefixes == ("c1/", "@cold/")
    assert config.places_of_topics == {"", "cold"}
    assert layout_settings(config, None, (4, 3)).place_key_prefixes == {"cold": "a/"}


def test_secrets_of_places_are_masked(tmp_path: Path) -> None:
    shown = str(effective_settings(load(tmp_path, RULES, ENVIRON), units=True))
    assert "a key" not in shown
    assert shown.count("********") == 4


def test_a_command_that_knows_one_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match="`tiersidecar mount` looks at section store alone, and segments may lie in cold"
    ):
        load(tmp_path, RULES, ENVIRON).require_one_place("`tiersidecar mount`")
    load(tmp_path, HEAD + S3, ENVIRON).require_one_place("`tiersidecar mount`")


FILES = """\
store: {type: filesystem, root: /srv/tier}
"""


@pytest.mark.parametrize(
    ("more", "faults"),
    [
        pytest.param(
            "places: {cold: {root: /srv/cold}}\ntopics: [{name: a, place: warm}]",
            ["line 5: topics[0].place: 'warm' is not in places, which has cold"],
            id="a rule that names none of them",
        ),
        pytest.param(
            "topics: [{name: a, place: warm}]",
            ["line 4: topics[0].place: 'warm' is not in places, which has none"],
            id="a rule that names one where there are none",
        ),
        pytest.param(
            "places: {Cold: {root: /srv/cold}}",
            [
                "line 4: places.Cold: 'Cold' is not a name of a place: small letters, digits and hyphens, at most 32, and no "
                "hyphen first"
            ],
            id="a name that is none",
        ),
        pytest.param(
            "places: {cold: {key.prefix: cold/}}",
            [
                "line 4: places.cold: is in filesystem /srv/tier, as section store is: give it a bucket or a directory of its "
                "own, or a key.prefix that the other does not begin with, nor the other with it"
            ],
            id="a prefix below the store's own, which has none",
        ),
        pytest.param(
            "places: {cold: {root: /srv/tier/cold}}",
            [
                "line 4: places.cold: is in filesystem /srv/tier/cold, as section store is: give it a bucket or a directory of "
                "its own, or a key.prefix that the other does not begin with, nor the other with it"
            ],
            id="a directory below the store's own",
        ),
        pytest.param(
            "places: {a: {root: /srv/cold}, b: {root: /srv/cold}}",
            [
                "line 4: places.b: is in filesystem /srv/cold, as place a is: give it a bucket or a directory of its own, or a "
                "key.prefix that the other does not begin with, nor the other with it"
            ],
            id="two places that are one",
        ),
        pytest.param(
            "places: {cold: {root: /srv/cold, chunk.size: 1MiB, verify.read.back: full}}",
            [
                "line 4: places.cold.chunk.size: is the same everywhere: set it in section store",
                "line 4: places.cold.verify.read.back: is the same everywhere: set it in section store",
            ],
            id="keys that hold everywhere",
        ),
        pytest.param(
            "places: {cold: {root: /srv/cold, encryption.key.wrapping: aws-kms, "
            "encryption.key.wrapping.options: {key.id: a, region: b}, encryption.data.key.cache.ms: 5min, "
            "encryption.data.key.cache.size: 7}}",
            [
                "line 4: places.cold.encryption.data.key.cache.ms: is the same everywhere: set it in section store",
                "line 4: places.cold.encryption.data.key.cache.size: is the same everywhere: set it in section store",
                "line 4: places.cold.encryption.key.wrapping: is the same everywhere: set it in section store",
                "line 4: places.cold.encryption.key.wrapping.options: is the same everywhere: set it in section store",
            ],
            id="a key service of its own",
        ),
        pytest.param(
            "places: {cold: {root: /d/cold}}",
            ["line 4: places.cold.root: must not lie in a log dir (/d): the broker would refuse to start"],
            id="a place in a log dir",
        ),
        pytest.param(
            "places: {cold: {type: s3, s3.region: x}}",
            ["line 4: places.cold.s3.bucket.name: is required"],
            id="a place of another type without what it needs",
        ),
        pytest.param(
            "places: {cold: {root: /srv/cold, rot: x}}",
            ["line 4: places.cold.rot: unknown key; did you mean places.cold.root?"],
            id="a typing error",
        ),
        pytest.param("places: {cold: x}", ["line 4: places.cold: expected a section, got 'x'"], id="no section"),
        pytest.param(
            "places: x", ["line 4: places: expected a section (key: value lines), got a text"], id="no places"
        ),
    ],
)
def test_what_places_may_not_be(tmp_path: Path, more: str, faults: list[str]) -> None:
    assert faults_of(tmp_path, f"{HEAD}{FILES}{more}\n") == faults


def test_prefixes_that_lie_apart_in_one_bucket_are_two_places(tmp_path: Path) -> None:
    text = f"{HEAD}{S3}places:\n  cold: {{key.prefix: c2/}}\n  elsewhere: {{s3.endpoint.url: 'http://other:1'}}\n"
    assert set(load(tmp_path, text, ENVIRON).places) == {"cold", "elsewhere"}


@pytest.mark.parametrize("prefix", ["@x/", "@"])
def test_a_prefix_like_a_place_is_refused_beside_places_alone(tmp_path: Path, prefix: str) -> None:
    """Of a key @orders-…/ a place could be the beginning, too."""
    store = f"store: {{type: filesystem, root: /srv/tier, key.prefix: '{prefix}'}}\n"
    assert load(tmp_path, HEAD + store).store.key_prefix == prefix
    assert faults_of(tmp_path, f"{HEAD}{store}places: {{cold: {{root: /srv/cold, key.prefix: ''}}}}\n") == [
        "line 3: store.key.prefix: cannot begin with @ where there are places: keys could look like those of a place"
    ]


def test_two_names_of_one_directory_are_no_two_places(tmp_path: Path) -> None:
    (tmp_path / "tier").mkdir()
    (tmp_path / "cold").symlink_to(tmp_path / "tier")
    text = f"store: {{type: filesystem, root: {tmp_path}/tier}}\nplaces: {{cold: {{root: {tmp_path}/cold}}}}\n"
    (fault,) = faults_of(tmp_path, HEAD + text)
    assert f"places.cold: is in filesystem {tmp_path}/cold, as section store is" in fault


def test_what_is_questionable_about_a_place_is_told_like_that_of_the_store(tmp_path: Path) -> None:
    places = (
        "places: {cold: {root: /srv/cold, key.prefix: x}, warm: {root: /srv/warm}}\ntopics: [{name: a, place: cold}]\n"
    )
    told = [one for one in warnings_of(load(tmp_path, f"{HEAD}{FILES}{places}")) if "places" in one]
    assert told == [
        "places.cold.key.prefix: objects will be named x<topic>…, for it does not end with /",
        "places.cold.root: /srv/cold is not a directory on this machine",
        "places.warm.root: /srv/warm is not a directory on this machine",
        "places.warm: no rule under topics names it, so that nothing new goes there",
    ]
