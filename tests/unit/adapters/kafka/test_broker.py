from __future__ import annotations

from collections.abc import Mapping

import pytest
from kio.schema.errors import ErrorCode

from tests.unit.adapters.kafka import answers
from tests.unit.adapters.kafka.scripted_peer import NO_WAIT, Conversation, Script, scripted_peer
from tiersidecar.adapters.kafka.broker import open_broker
from tiersidecar.domain.errors import BrokerRefusedError


def configs_of(errors: Mapping[str, ErrorCode], batches: list[int]) -> Script:
    """Answers DescribeConfigs: an error for some topics, one setting for all others."""

    async def script(talk: Conversation) -> None:
        await talk.tell_versions()
        while True:
            header, request = await talk.hear()
            batches.append(len(request.resources))
            made = answers.schema(header)
            setting = made.DescribeConfigsResourceResult(
                name="retention.ms", value="1", read_only=False, is_sensitive=False, synonyms=(), documentation=None
            )
            results = tuple(
                made.DescribeConfigsResult(
                    error_code=errors.get(resource.resource_name, ErrorCode.none),
                    error_message=None,
                    resource_type=resource.resource_type,
                    resource_name=resource.resource_name,
                    configs=(setting,),
                )
                for resource in request.resources
            )
            talk.answer(header, made.DescribeConfigsResponse(throttle_time=NO_WAIT, results=results))

    return script


async def test_settings_of_many_topics_come_in_batches() -> None:
    """Each topic has about 40 settings; one response for thousands would hold up the loop."""
    batches: list[int] = []
    async with scripted_peer(configs_of({}, batches)) as peer, open_broker(peer.address) as broker:
        found = await broker.describe_topic_configs(f"t{number}" for number in range(250))

    assert batches == [100, 100, 50]
    assert len(found) == 250
    assert found["t249"] == {"retention.ms": "1"}


async def test_a_topic_whose_settings_are_hidden_does_not_hide_the_others() -> None:
    errors = {"hidden": ErrorCode.topic_authorization_failed, "gone": ErrorCode.unknown_topic_or_partition}
    async with scripted_peer(configs_of(errors, [])) as peer, open_broker(peer.address) as broker:
        assert await broker.describe_topic_configs(["hidden", "gone", "seen"]) == {"seen": {"retention.ms": "1"}}


async def test_settings_that_are_all_hidden_are_a_refusal() -> None:
    errors = {"hidden": ErrorCode.topic_authorization_failed}
    async with scripted_peer(configs_of(errors, [])) as peer, open_broker(peer.address) as broker:
        with pytest.raises(BrokerRefusedError, match=r"DescribeConfigs for topic hidden: TOPIC_AUTHORIZATION_FAILED"):
            await broker.describe_topic_configs(["hidden"])


async def test_topics_that_do_not_exist_have_no_settings() -> None:
    errors = {"gone": ErrorCode.unknown_topic_or_partition}
    async with scripted_peer(configs_of(errors, [])) as peer, open_broker(peer.address) as broker:
        assert await broker.describe_topic_configs(["gone"]) == {}


def creating(error_code: ErrorCode, message: str | None = None) -> Script:
    async def script(talk: Conversation) -> None:
        await talk.tell_versions()
        header, request = await talk.hear()
        made = answers.schema(header)
        assert request.topics[0].configs[0].name == "cleanup.policy"
        assert 0 < request.timeout.total_seconds() < 30
        row = made.CreatableTopicResult(
            name="t", topic_id=answers.TOPIC_ID, error_code=error_code, error_message=message, configs=()
        )
        talk.answer(header, made.CreateTopicsResponse(throttle_time=NO_WAIT, topics=(row,)))
        await talk.until_closed()

    return script


CREATED = [ErrorCode.none, ErrorCode.topic_already_exists]


@pytest.mark.parametrize("error_code", CREATED)
async def test_a_topic_that_exists_already_is_as_good_as_created(error_code: ErrorCode) -> None:
    async with scripted_peer(creating(error_code)) as peer, open_broker(peer.address) as broker:
        await broker.create_topic("t", partitions=1, replication_factor=3, configs={"cleanup.policy": "delete"})


@pytest.mark.parametrize(
    ("error_code", "retriable"),
    [
        (ErrorCode.invalid_replication_factor, True),  # brokers that are still starting
        (ErrorCode.not_controller, True),
        (ErrorCode.topic_authorization_failed, False),
        (ErrorCode.invalid_config, False),
    ],
)
async def test_a_refused_creation_says_whether_to_try_again(error_code: ErrorCode, *, retriable: bool) -> None:
    async with scripted_peer(creating(error_code, "because")) as peer, open_broker(peer.address) as broker:
        with pytest.raises(BrokerRefusedError, match=r"topic t \(because\)") as refusal:
            await broker.create_topic("t", partitions=1, replication_factor=3, configs={"cleanup.policy": "delete"})
    assert (refusal.value.error, refusal.value.retriable) == (error_code.name.upper(), retriable)
