"""Reconcile without Spark (issue 20; S-307, U44): the rules of the Spark job, which tests/spark holds it against."""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.directory_store import BreaksOff, DirectoryStore
from tests.support.plugin_bucket import NOW_MS, PluginBucket
from tests.support.remote_runs import key_ring
from tiersidecar.adapters.stores.placed import PlacedStore
from tiersidecar.decide.reconcile_findings import Action, Finding, FindingKind, Graces
from tiersidecar.domain.errors import StoreError
from tiersidecar.domain.own_objects import OWN_DIRECTORY
from tiersidecar.domain.segments import RemoteLogSegmentMetadataUpdate
from tiersidecar.domain.states import RemoteLogSegmentState as State
from tiersidecar.formats.aiven.keys import place_in
from tiersidecar.formats.metadata.serde import read_event, write_event
from tiersidecar.ports.store import Store
from tiersidecar.reconcile import listing
from tiersidecar.reconcile.deep_check import DeepCheck
from tiersidecar.reconcile.inputs import KnownTopic, ReconcileSettings
from tiersidecar.reconcile.local import LocalInputs, LocallyReconciled, RawEvent, reconcile_locally
from tiersidecar.reconcile.report import (
    LINES_FILE,
    PARQUET_FILE,
    finding_document,
    read_findings,
    report_files,
    write_findings,
)


class Run:
    """A run over ``bucket``; the last two events came while the store was listed."""

    def __init__(self, bucket: PluginBucket) -> None:
        self.bucket = bucket
        self.topics: Sequence[KnownTopic] = bucket.known_topics()
        self.said: list[str] = []
        self.doubt = ""
        self.graces = Graces(finding_ms=0, copy_ms=0)
        self.extra: list[bytes] = []
        self.seen_through: Callable[[Store], Any] = lambda store: store
        self.cold: Path | None = None
        self.place_prefixes: tuple[str, ...] = ()
        self.away: dict[str, str] = {}

    async def __call__(self) -> LocallyReconciled:
        values = [*self.bucket.events[:-2], *self.extra, *self.bucket.events[-2:]]

        async def events(begin: int, end: int) -> AsyncIterator[Sequence[RawEvent]]:
            yield [(0, begin + at, value) for at, value in enumerate(values[begin:end])]

        settings = ReconcileSettings(
            graces=self.graces,
            deep=DeepCheck(open_key_ring=key_ring),
            place_prefixes=self.place_prefixes,
            away=self.away,
        )
        inputs = LocalInputs(
            early_events=events(0, len(values) - 2),
            late_events=lambda: events(len(values) - 2, len(values)),
            topics=self.topics,
            metadata_doubt=lambda known, foreign: self.doubt,
        )
        opener = DirectoryStore(str(self.bucket.root), cold=None if self.cold is None else str(self.cold))
        async with opener() as store:
            return await reconcile_locally(
                self.seen_through(store), settings, inputs, self.said.append, now_ms=lambda: NOW_MS
            )


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(PluginBucket(tmp_path / "bucket"))


async def test_what_the_plugin_left_is_in_order_through_and_through(run: Run) -> None:
    seen = await run()
    assert seen.findings == []
    assert seen.event_count == len(run.bucket.events)
    assert seen.object_count == 3 * seen.segment_count == 3 * seen.live_segment_count
    assert seen.object_bytes == sum(path.stat().st_size for path in run.bucket.root.rglob("*") if path.is_file())
    steps = [text.partition(":")[0] for text in run.said]
    assert steps[0] == "reading the metadata topic"
    assert steps[-1] == "comparing"


class Placed:
    """A run of a bucket of which a topic has moved to place cold, a directory beside it."""

    def __init__(self, run: Run, root: Path) -> None:
        self.run, self.root = run, root
        self.moved = run.bucket.move_a_topic(root)
        run.cold, run.place_prefixes = root, ("@cold/",)

    async def __call__(self) -> LocallyReconciled:
        return await self.run()


@pytest.fixture
def placed(run: Run, tmp_path: Path) -> Placed:
    return Placed(run, tmp_path / "cold")


async def test_segments_in_a_place_are_looked_for_there(placed: Placed) -> None:
    """S-293."""
    seen = await placed()
    assert seen.findings == []
    assert seen.object_count == 3 * seen.live_segment_count


async def test_a_segment_that_is_not_in_its_place_is_missing_wherever_else_it_is(placed: Placed) -> None:
    (placed.root / placed.moved).rename(placed.run.bucket.root / placed.moved)
    kinds = {finding.kind for finding in (await placed()).findings}
    assert {FindingKind.MISSING_OBJECT, FindingKind.ORPHAN_OBJECT} <= kinds


async def test_leftovers_in_a_place_are_found_and_what_is_our_own_there_is_none(placed: Placed) -> None:
    log = min(placed.root.rglob("*.log"))
    left = log.with_name(log.name[:21] + "AAAAAAAAAAAAAAAAAAAAAQ.log")
    left.write_bytes(b"x")
    (placed.root / OWN_DIRECTORY).mkdir()
    (placed.root / OWN_DIRECTORY / "owner.json").write_bytes(b"x")
    (finding,) = (await placed()).findings
    assert (finding.kind, finding.key) == (FindingKind.ORPHAN_OBJECT, f"@cold/{left.relative_to(placed.root)}")


async def test_a_place_without_any_segment_is_listed_too(run: Run, tmp_path: Path) -> None:
    (tmp_path / "cold").mkdir()
    (tmp_path / "cold" / "stray").write_bytes(b"x")
    run.cold, run.place_prefixes = tmp_path / "cold", ("@cold/",)
    assert [finding.key for finding in (await run()).findings] == ["@cold/stray"]


def take_out(run: Run) -> None:
    """Take place cold out of the configuration."""
    run.cold, run.place_prefixes = None, ()
    run.seen_through = lambda store: PlacedStore(store, {})


async def test_a_run_does_not_take_for_missing_what_lies_in_a_place_that_is_not_configured(placed: Placed) -> None:
    """The place is one finding, and all that is elsewhere is looked at as ever."""
    take_out(placed.run)
    key = missing(placed.run.bucket.root)
    seen = await placed.run()
    assert [(one.kind, one.key) for one in seen.findings] == [
        (FindingKind.MISSING_OBJECT, key),
        (FindingKind.UNKNOWN_PLACE, "@cold/"),
    ]
    lying_there = len(list(placed.root.rglob("*.log")))
    assert seen.findings[1].detail.startswith(f"{lying_there} segments lie in place 'cold', which the configuration")
    assert seen.findings[1].action is Action.LOOK


async def test_a_place_that_does_not_answer_is_one_finding_and_all_else_is_looked_at(placed: Placed) -> None:
    lying_there = len(list(placed.root.rglob("*.log")))
    shutil.rmtree(placed.root)
    placed.run.away = {"@cold/": "no answer"}
    key = missing(placed.run.bucket.root)
    findings = (await placed()).findings
    assert [(one.kind, one.key) for one in findings] == [
        (FindingKind.MISSING_OBJECT, key),
        (FindingKind.NOT_CHECKED, "@cold/"),
    ]
    assert (
        findings[1].detail
        == f"place 'cold' was not listed whole, and its {lying_there} segments were not checked: no answer"
    )


@pytest.mark.parametrize("is_away", [True, False])
async def test_a_place_that_stops_answering_while_it_is_listed_is_one_finding_and_all_else_is_looked_at(
    placed: Placed, monkeypatch: pytest.MonkeyPatch, is_away: bool
) -> None:
    """It ended the run, without any report.  Not so an answer that refuses: that is for the operator to mend first."""
    monkeypatch.setattr(listing, "_ROWS", 1)
    lying_there = len(list(placed.root.rglob("*.log")))
    key = missing(placed.run.bucket.root)

    def cut(store: Store) -> Store:
        assert isinstance(store, PlacedStore)
        (cold,) = store.places.values()
        return PlacedStore(store.default, {"cold": replace(cold, store=BreaksOff(cold.store, is_away=is_away))})

    placed.run.seen_through = cut
    if not is_away:
        with pytest.raises(StoreError, match="no answer any more"):
            await placed()
        return
    seen = await placed()
    assert [(one.kind, one.key) for one in seen.findings] == [
        (FindingKind.MISSING_OBJECT, key),
        (FindingKind.NOT_CHECKED, "@cold/"),
    ]
    assert f"its {lying_there} segments were not checked: place cold" in seen.findings[1].detail
    assert seen.object_count == 3 * (seen.live_segment_count - lying_there) - 1, "what was listed of it does not count"


class Unread:
    """A store that lists, and then does not answer."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def fetch_object(self, key: str, *, max_bytes: int) -> bytes:
        raise StoreError(verb="fetch", key=key, reason="no answer any more", is_away=True)


async def test_a_place_that_stops_answering_once_it_is_listed_is_told_too(placed: Placed) -> None:
    lying_there = len(list(placed.root.rglob("*.log")))
    key = missing(placed.run.bucket.root)

    def cut(store: Store) -> Store:
        assert isinstance(store, PlacedStore)
        (cold,) = store.places.values()
        return PlacedStore(store.default, {"cold": replace(cold, store=Unread(cold.store))})

    placed.run.seen_through = cut
    findings = (await placed()).findings
    assert [(one.kind, one.key) for one in findings] == [
        (FindingKind.MISSING_OBJECT, key),
        (FindingKind.NOT_CHECKED, "@cold/"),
    ]
    assert (
        f"place 'cold' stopped answering, and {lying_there} segments were not checked, or not whole"
        in findings[1].detail
    )


def unread_cold(store: Store) -> Store:
    assert isinstance(store, PlacedStore)
    return PlacedStore(
        store.default, {name: replace(one, store=Unread(one.store)) for name, one in store.places.items()}
    )


@pytest.mark.parametrize(
    ("happens", "kind", "said"),
    [
        pytest.param("is away before", FindingKind.NOT_CHECKED, "1 segments", id="a place is away from the start"),
        pytest.param("stops", FindingKind.NOT_CHECKED, "2 segments", id="a place stops answering once it is listed"),
        pytest.param("is removed", FindingKind.UNKNOWN_PLACE, "1 segments", id="a place is not configured any more"),
    ],
)
async def test_what_follows_a_segment_in_such_a_place_is_looked_at_without_it(
    run: Run, tmp_path: Path, happens: str, kind: FindingKind, said: str
) -> None:
    """The deep check asks the segment before each one what was open at its end, wherever that lies: it ended the run."""
    run.bucket.move_a_segment(tmp_path / "cold")
    run.cold, run.place_prefixes = tmp_path / "cold", ("@cold/",)
    assert (await run()).findings == []
    if happens == "is removed":
        take_out(run)
    else:
        run.seen_through = unread_cold
        run.away = {"@cold/": "no answer"} if happens == "is away before" else {}
    (finding,) = (await run()).findings
    assert (finding.kind, finding.key) == (kind, "@cold/")
    assert said in finding.detail


async def test_a_place_that_does_not_answer_is_a_finding_without_any_segment(run: Run) -> None:
    run.place_prefixes, run.away = ("@cold/",), {"@cold/": "no answer"}
    assert [(one.kind, one.key) for one in (await run()).findings] == [(FindingKind.NOT_CHECKED, "@cold/")]


async def test_a_place_may_go_when_all_its_segments_are_deleted(placed: Placed) -> None:
    """As docs/stores.md says; the events of those that were there remain in the topic."""
    events = map(updated, placed.run.bucket.events)
    ended = [event for event in events if event and place_in(event.custom_metadata or b"")]
    placed.run.extra = [
        write_event(replace(event, state=state), knows_txn_index_empty=False)
        for event in ended
        for state in (State.DELETE_SEGMENT_STARTED, State.DELETE_SEGMENT_FINISHED)
    ]
    assert placed.run.extra
    take_out(placed.run)
    assert (await placed.run()).findings == []


def updated(value: bytes) -> RemoteLogSegmentMetadataUpdate | None:
    event = read_event(value, where="a fixture")
    return event if isinstance(event, RemoteLogSegmentMetadataUpdate) else None


def log_of(root: Path) -> Path:
    return min(root.rglob("*.log"))


def missing(root: Path) -> str:
    path = log_of(root)
    path.unlink()
    return str(path.relative_to(root))


def too_short(root: Path) -> str:
    path = log_of(root)
    path.write_bytes(path.read_bytes()[:-1])
    return str(path.relative_to(root))


def contradicting(root: Path) -> str:
    path = min(root.rglob("*.rsm-manifest"))
    document = json.loads(path.read_bytes())
    document["remoteLogSegmentMetadata"]["endOffset"] += 1
    # Not longer than before: its size is compared as well.
    path.write_text(json.dumps(document, separators=(",", ":")).ljust(path.stat().st_size)[: path.stat().st_size])
    return str(path.relative_to(root))


def broken_inside(root: Path) -> str:
    path = log_of(root)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)
    return str(path.relative_to(root))


def orphan(root: Path) -> str:
    path = log_of(root)
    other = path.with_name(path.name[:21] + "AAAAAAAAAAAAAAAAAAAAAQ.log")
    other.write_bytes(b"x")
    return str(other.relative_to(root))


def foreign(root: Path) -> str:
    (root / "readme.txt").write_text("hello")
    return "readme.txt"


def of_an_unknown_topic(root: Path) -> str:
    path = root / "other-AAAAAAAAAAAAAAAAAAAAAQ" / "0" / "00000000000000000000-AAAAAAAAAAAAAAAAAAAAAQ.log"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"x")
    return str(path.relative_to(root))


def offset_of_no_log(root: Path) -> str:
    path = log_of(root).with_name("99999999999999999999-AAAAAAAAAAAAAAAAAAAAAQ.log")
    path.write_bytes(b"x")
    return str(path.relative_to(root))


@pytest.mark.parametrize(
    ("damage", "kind"),
    [
        pytest.param(missing, FindingKind.MISSING_OBJECT, id="an object of a live segment is gone"),
        pytest.param(too_short, FindingKind.SIZE_MISMATCH, id="an object has another size than its manifest says"),
        pytest.param(contradicting, FindingKind.CONTRADICTING_MANIFEST, id="a manifest says another end offset"),
        pytest.param(broken_inside, FindingKind.CORRUPT_CONTENT, id="a log is damaged inside (--deep)"),
        pytest.param(orphan, FindingKind.ORPHAN_OBJECT, id="no event names an object's segment"),
        pytest.param(foreign, FindingKind.FOREIGN_OBJECT, id="a key is not of the layout"),
        pytest.param(of_an_unknown_topic, FindingKind.UNKNOWN_TOPIC_ID, id="no topic has an object's topic id"),
        pytest.param(offset_of_no_log, FindingKind.ORPHAN_OBJECT, id="20 digits that are no offset are an orphan's"),
    ],
)
async def test_each_damage_is_found_once(run: Run, damage: Callable[[Path], str], kind: FindingKind) -> None:
    key = damage(run.bucket.root)
    assert [(finding.kind, finding.key) for finding in (await run()).findings] == [(kind, key)]


async def test_what_is_younger_than_the_grace_is_no_finding(run: Run) -> None:
    orphan(run.bucket.root)
    run.graces = Graces(finding_ms=2**62, copy_ms=0)
    assert (await run()).findings == []


async def test_of_metadata_in_doubt_no_object_is_an_orphan(run: Run) -> None:
    orphan(run.bucket.root)
    run.doubt = "the metadata topic begins at offset 5"
    (found,) = (await run()).findings
    assert found.kind is FindingKind.LOST_METADATA
    assert run.doubt in found.detail


async def test_a_topic_that_the_store_calls_this_clusters_and_is_gone_has_no_live_data(run: Run) -> None:
    """Its objects are named, and nothing is deleted for that (issue 16)."""
    run.topics = [KnownTopic(topic="", topic_id=one.topic_id, is_gone=True) for one in run.topics]
    assert {finding.kind for finding in (await run()).findings} <= {
        FindingKind.UNKNOWN_TOPIC_ID,
        FindingKind.ORPHAN_OBJECT,
    }


async def test_an_event_that_cannot_be_read_is_named_and_keeps_nothing_else_from_being_found(run: Run) -> None:
    run.extra = [b"\x00\xff"]
    key = missing(run.bucket.root)
    found = {finding.kind: finding for finding in (await run()).findings}
    assert found[FindingKind.MISSING_OBJECT].key == key
    assert f"offset {len(run.bucket.events) - 2}" in found[FindingKind.UNREADABLE_EVENT].detail


async def test_what_the_sidecars_put_beside_is_nobodys_business(run: Run) -> None:
    own = run.bucket.root / OWN_DIRECTORY / "reports"
    own.mkdir(parents=True)
    (own / "latest.json").write_text("{}")
    assert (await run()).findings == []


async def test_a_listing_that_breaks_off_is_no_listing(run: Run) -> None:
    """Else all that was not listed would be missing."""
    run.seen_through = BreaksOff
    with pytest.raises(StoreError, match="no answer any more"):
        await run()


@pytest.mark.parametrize(
    "has_arrow",
    [
        pytest.param(True, id="with Arrow", marks=pytest.mark.spark),
        pytest.param(False, id="without the extra spark"),
    ],
)
def test_a_report_is_read_as_it_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, has_arrow: bool
) -> None:
    if not has_arrow:
        monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    (tmp_path / PARQUET_FILE).write_bytes(b"of a former run")
    findings = [
        Finding(kind=FindingKind.ORPHAN_OBJECT, key="a/é", found_bytes=5),
        Finding(kind=FindingKind.OFFSET_GAP, topic="t", partition=3, start_offset=7, end_offset=9, detail="x"),
    ]
    counts = write_findings(map(finding_document, findings), tmp_path)
    assert dict(counts) == {"orphan-object": 1, "offset-gap": 1}
    assert list(read_findings(tmp_path)) == [finding_document(finding) for finding in findings]
    assert report_files(tmp_path) == [PARQUET_FILE, LINES_FILE] if has_arrow else [LINES_FILE]
