"""What ``tiersidecar compact --spark`` asks of Spark, and what its tasks leave on an executor's disk (issue 23, S-276)."""

from __future__ import annotations

import asyncio
import pickle
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.app.test_compact_run import Beside, beside
from tests.unit.tasks.test_clean import random_log
from tiersidecar.app import compact_executor
from tiersidecar.app.commands import compact
from tiersidecar.app.commands.carry_out import Manner
from tiersidecar.app.compact_executor import ExecutorWorker, NotPut
from tiersidecar.app.compact_layout import layout_of
from tiersidecar.app.scratch import COMPACT_PREFIX, open_scratch
from tiersidecar.domain.errors import ConfigError
from tiersidecar.formats.compaction.cleaning import CleaningTerms
from tiersidecar.formats.compaction.offset_map import OffsetMap, bytes_for
from tiersidecar.formats.compaction.segments import SegmentTally
from tiersidecar.formats.compaction.transactions import CarriedTransactions
from tiersidecar.spark import session
from tiersidecar.tasks.clean_passes import CleanPasses
from tiersidecar.tasks.clean_shards import CleanedShare, CleanShare

__all__ = ["beside"]

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

TERMS = CleaningTerms(now_ms=0, delete_retention_ms=0, upper_bound_offset=-1)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({}, {"spark.speculation": "false", "spark.io.encryption.enabled": "true"}),
        ({"spark.speculation": "true"}, {"spark.speculation": "false"}),
        ({"spark.io.encryption.enabled": "false"}, {"spark.io.encryption.enabled": "false"}),
    ],
    ids=["by itself", "second attempts cannot be had", "an operator may do without encryption"],
)
def test_settings_of_spark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, beside: Beside, asked: dict[str, str], said: dict[str, str]
) -> None:
    chosen: dict[str, str] = {}

    def opened(*, app_name: str, master: str, settings: Mapping[str, str]) -> Any:
        chosen.update(settings)
        return SimpleNamespace(stop=lambda: None)

    monkeypatch.setattr(session, "open_session", opened)
    manner = Manner(config_file=tmp_path / "t.yaml", yes=True, dry_run=False, as_json=True)
    with compact._spark_engines(manner, beside.world.owner.topic, "local[1]", asked):
        assert said.items() <= chosen.items()


def worker_of(there: Beside, tmp_path: Path) -> ExecutorWorker:
    topic = there.world.owner.topic
    return ExecutorWorker(
        config_file=str(tmp_path / "t.yaml"),
        kafka_version=(3, 9),
        topic=topic,
        layout=layout_of(there.session.config, topic),
    )


async def a_share(there: Beside) -> CleanShare:
    first, *_ = await there.world.add(*random_log(1))
    return CleanShare(segment=first, latest_offset=first.end_offset, carried=CarriedTransactions(), aborted=())


async def do(worker: ExecutorWorker, share: CleanShare) -> Any:
    offset_map = OffsetMap(bytes_for(1))
    answer = await asyncio.to_thread(worker.clean, pickle.dumps(share), pickle.dumps(TERMS), offset_map)
    return pickle.loads(answer)


async def test_what_a_killed_task_left_goes_with_the_next_one_and_that_of_a_running_one_stays(
    beside: Beside, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place := tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    (left := place / f"{COMPACT_PREFIX}left").mkdir()
    (left / "a.log").write_bytes(b"records in plain text")
    seen = list[Path]()

    async def measure(
        share: CleanShare, terms: CleaningTerms, offset_map: OffsetMap, passes: CleanPasses
    ) -> CleanedShare:
        seen.extend(place.iterdir())
        with open_scratch(None, COMPACT_PREFIX):  # as any `compact` of the same user begins
            assert all(one.is_dir() for one in seen)
        return CleanedShare(tally=SegmentTally(), facts=None)

    monkeypatch.setattr(compact_executor, "measure_segment", measure)
    assert (await do(worker_of(beside, tmp_path), await a_share(beside))).facts is None
    (own,) = seen
    assert own != left
    assert list(place.iterdir()) == []


async def test_an_executor_with_another_configuration_measures_nothing_and_answers_where_it_was_to_put(
    beside: Beside, tmp_path: Path
) -> None:
    there, share = worker_of(beside, tmp_path), await a_share(beside)
    other = replace(there, layout=tuple((name, f"{value}x") for name, value in there.layout))
    with pytest.raises(ConfigError):
        await do(other, share)
    answer = await do(other, replace(share, started=share.segment))
    assert isinstance(answer, NotPut)
    assert "store.key.prefix is '' on this executor, and 'x' at the driver" in answer.reason
