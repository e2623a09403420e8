"""What a worker is given, and its part of the configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.app.config.config_files import LEAST, faults_of, load
from tiersidecar.app.builders.gateway import listener_settings
from tiersidecar.app.config.top_level import Role
from tiersidecar.app.gateway_workers.place import (
    WorkerPlace,
    directories_left,
    is_served_by_workers,
    worker_config,
    worker_directory,
)

LISTENERS = "gateway:\n  workers: 2\n  listeners:\n  - listen: 127.0.0.1:9192\n  - {listen: '127.0.0.1:0', name: B}\n"
PLACE = WorkerPlace(number=2, starter_pid=77, control_fd=9, table_fd=10, begun_with=5, ports=(9192, 40_001))


def test_it_is_given_on_the_command_line() -> None:
    assert str(PLACE) == "2,77,9,10,5,9192,40001"
    assert WorkerPlace.parse(str(PLACE)) == PLACE


@pytest.mark.parametrize("text", ["", "1,2", "a,b,c,d"])
def test_anything_else_is_none(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        WorkerPlace.parse(text)


def test_a_worker_has_files_of_its_own_and_its_part_of_the_caches(tmp_path: Path) -> None:
    """What cannot be lent to another worker is divided; what can stays whole, for the table says who has how much."""
    config = load(tmp_path, LEAST + LISTENERS + f"state.dir: {tmp_path}/state\nremote.log.reader.threads: 5\n")
    part = worker_config(config, PLACE)
    assert part.state_dir == f"{tmp_path}/state/gateway-worker-2"
    assert part.read.chunk_cache_memory_bytes == config.read.chunk_cache_memory_bytes // 2
    assert part.read.ahead_memory_bytes == config.read.ahead_memory_bytes // 2
    index_bytes = config.remote_log_index_file_cache_total_size_bytes
    assert part.remote_log_index_file_cache_total_size_bytes == index_bytes // 2
    assert part.remote_log_reader_threads == 3
    assert part.gateway.response_memory_bytes == config.gateway.response_memory_bytes
    assert part.read.opened_memory_bytes == config.read.opened_memory_bytes
    assert part.gateway.listeners[0].max_connections == config.gateway.listeners[0].max_connections
    assert [listener.listen.port for listener in part.gateway.listeners] == [9192, 40_001]
    assert part.file == config.file
    settings = listener_settings(part, part.gateway.listeners[1], is_one_of_several=True)
    assert (settings.port, settings.is_one_of_several) == (40_001, True)


@pytest.mark.parametrize(
    ("workers", "roles", "expected"),
    [
        pytest.param(2, {Role.GATEWAY}, True, id="a gateway in a process of its own"),
        pytest.param(2, set(Role), True, id="all roles in one process"),
        pytest.param(2, {Role.TIER, Role.READ}, False, id="the sidecar beside it, with the same file"),
        pytest.param(1, {Role.GATEWAY}, False, id="one worker is the process itself"),
    ],
)
def test_which_process_starts_workers(tmp_path: Path, workers: int, roles: set[Role], expected: bool) -> None:
    config = load(tmp_path, LEAST + LISTENERS.replace("workers: 2", f"workers: {workers}"))
    assert is_served_by_workers(config, frozenset(roles)) is expected


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("gateway:\n  workers: 2\n", "needs listeners"),
        ("gateway:\n  workers: 0\n", "workers"),
        ("gateway:\n  workers: 65\n", "workers"),
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path: Path, text: str, fault: str) -> None:
    assert any(fault in told for told in faults_of(tmp_path, LEAST + text))


def test_directories_of_a_former_configuration_are_found(tmp_path: Path) -> None:
    config = load(tmp_path, LEAST + LISTENERS + f"state.dir: {tmp_path}\n")
    for name in ("gateway-worker-1", "gateway-worker-2", "gateway-worker-3", "gateway-worker-x", "remote"):
        (tmp_path / name).mkdir()
    (tmp_path / "gateway-worker-9").symlink_to(tmp_path / "remote")
    assert directories_left(config, workers=2) == [tmp_path / "gateway-worker-3"]
    assert worker_directory(config, 1) == tmp_path / "gateway-worker-1"
