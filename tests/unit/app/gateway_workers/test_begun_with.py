"""Workers that are started again have the configuration of the others, or none."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.app.config.config_files import LEAST, load
from tiersidecar.app.config.values import Address
from tiersidecar.app.gateway_workers import begun_with as begun_with_module
from tiersidecar.app.gateway_workers.begun_with import begun_with, require_same
from tiersidecar.app.gateway_workers.group import worker_command
from tiersidecar.app.gateway_workers.place import WorkerPlace, worker_config
from tiersidecar.domain.errors import ConfigError

GATEWAY = """\
gateway:
  workers: 2
  listeners:
  - {listen: '127.0.0.1:9192', name: INSIDE}
  - {listen: '127.0.0.1:9193', name: OUTSIDE}
"""
PLACE = WorkerPlace(number=1, starter_pid=7, control_fd=9, table_fd=10, ports=(9192, 9193))


def started_with(tmp_path: Path, text: str) -> WorkerPlace:
    """Return what the process gives a worker that has read ``text``."""
    *_, place = worker_command(load(tmp_path, text).with_status_listen(Address(host="127.0.0.1", port=1)))(PLACE)
    return WorkerPlace.parse(place)


def begin_worker(tmp_path: Path, text: str, place: WorkerPlace) -> None:
    require_same(worker_config(load(tmp_path, text), place), place.begun_with)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param("", "", id="nothing has changed"),
        pytest.param("", "read: {store.requests.per.minute: 5}\n", id="a rate, that a reload puts into force"),
        pytest.param("", "logging: {level: debug}\n", id="what it logs"),
    ],
)
def test_it_begins(tmp_path: Path, before: str, after: str) -> None:
    begin_worker(tmp_path, LEAST + GATEWAY + after, started_with(tmp_path, LEAST + GATEWAY + before))


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(
            "\n".join(GATEWAY.splitlines()[i] for i in (0, 1, 2, 4, 3)) + "\n", id="listeners in another order"
        ),
        pytest.param(GATEWAY.replace("workers: 2", "workers: 4"), id="more workers"),
        pytest.param(GATEWAY.rpartition("  - ")[0], id="a listener less"),
        pytest.param(GATEWAY + "mode: observe\n", id="another mode"),
        pytest.param(GATEWAY + "state.dir: /srv/other\n", id="files elsewhere"),
    ],
)
def test_it_does_not_begin_with_another_configuration(tmp_path: Path, text: str) -> None:
    """A listener for the inside, without a login, would answer at the address of the other one."""
    place = started_with(tmp_path, LEAST + GATEWAY)
    with pytest.raises(ConfigError, match="restart that process"):
        begin_worker(tmp_path, LEAST + text, place)


def test_nor_with_another_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is in the table, and on the channel, may be another thing there."""
    config = load(tmp_path, LEAST + GATEWAY)
    expected = begun_with(config)
    monkeypatch.setattr(begun_with_module, "version", lambda _: "999")
    with pytest.raises(ConfigError, match="release"):
        require_same(config, expected)
