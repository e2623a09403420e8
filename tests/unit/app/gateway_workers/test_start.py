"""Addresses and files of a gateway's workers belong to one process."""

from __future__ import annotations

import socket
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.unit.app.config.config_files import LEAST, load
from tiersidecar.app.builders.gateway import listener_settings
from tiersidecar.app.config.config import Config
from tiersidecar.app.gateway_workers.start import prepare_workers, remove_what_workers_left
from tiersidecar.domain.errors import ConfigError, ListenError
from tiersidecar.services.gateway.listener import listen


def config_of(tmp_path: Path, *, port: int = 0, state: str = "state") -> Config:
    text = f"gateway:\n  workers: 2\n  listeners:\n  - listen: 127.0.0.1:{port}\nstate.dir: {tmp_path / state}\n"
    return load(tmp_path, LEAST + text)


async def test_workers_listen_at_one_address_and_nothing_does_before(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    async with AsyncExitStack() as stack:
        (port,) = (await prepare_workers(stack, config)).ports
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), timeout=5)
        real = config_of(tmp_path, port=port)
        settings = listener_settings(real, real.gateway.listeners[0], is_one_of_several=True)
        workers = [await listen(settings) for _ in range(2)]
        came = [0, 0]
        for _ in range(64):
            client = socket.create_connection(("127.0.0.1", port), timeout=5)
            for number, worker in enumerate(workers):
                try:
                    worker.accept()[0].close()
                    came[number] += 1
                except BlockingIOError:
                    continue
            client.close()
        assert sum(came) == 64
        assert min(came) > 8, "the system distributes them"
        for worker in workers:
            worker.close()


async def test_another_gateway_cannot_have_the_address(tmp_path: Path) -> None:
    """Each of two gateways would get half of the clients: of this one's, if it has begun or not, and of one without workers."""
    async with AsyncExitStack() as stack:
        (port,) = (await prepare_workers(stack, config_of(tmp_path))).ports
        real = config_of(tmp_path, port=port, state="other")
        alone = listener_settings(real, real.gateway.listeners[0])
        for _ in range(2):
            async with AsyncExitStack() as other:
                with pytest.raises(ListenError, match="address already in use"):
                    await prepare_workers(other, real)
            settings = listener_settings(real, real.gateway.listeners[0], is_one_of_several=True)
            stack.callback((await listen(settings)).close)
        with pytest.raises(ListenError, match="address already in use"):
            await listen(alone)


async def test_the_address_must_be_free(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        config = config_of(tmp_path, port=other.getsockname()[1])
        async with AsyncExitStack() as stack:
            with pytest.raises(ListenError):
                await prepare_workers(stack, config)


async def test_two_processes_cannot_have_workers_with_one_state_directory(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        await prepare_workers(stack, config_of(tmp_path))
        with pytest.raises(ConfigError, match="another process has gateway workers"):
            await prepare_workers(stack, config_of(tmp_path))


async def test_what_a_former_configuration_left_is_removed(tmp_path: Path) -> None:
    state = tmp_path / "state"
    for name in ("gateway-worker-2", "gateway-worker-3", "remote-log-chunk-cache-gateway", "remote-log-chunk-cache"):
        (state / name).mkdir(parents=True)
        (state / name / "file").touch()
    async with AsyncExitStack() as stack:
        await prepare_workers(stack, config_of(tmp_path))
    left = {path.name for path in state.iterdir() if path.is_dir()}
    assert left == {"gateway-worker-2", "remote-log-chunk-cache"}


async def test_nothing_is_removed_before_the_addresses_are_ours(tmp_path: Path) -> None:
    """They are of a gateway that runs, without workers: its caches are in use."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        config = config_of(tmp_path, port=other.getsockname()[1])
        cache = tmp_path / "state" / "remote-log-chunk-cache-gateway"
        cache.mkdir(parents=True)
        async with AsyncExitStack() as stack:
            with pytest.raises(ListenError):
                await prepare_workers(stack, config)
        assert cache.exists()


async def test_a_gateway_without_workers_removes_what_they_left_and_nothing_of_those_that_run(tmp_path: Path) -> None:
    left = tmp_path / "state" / "gateway-worker-1" / "remote-log-chunk-cache-gateway"
    left.mkdir(parents=True)
    own = tmp_path / "state" / "remote-log-chunk-cache-gateway"
    async with AsyncExitStack() as stack:
        await prepare_workers(stack, config_of(tmp_path))
        remove_what_workers_left(config_of(tmp_path))
        assert left.exists(), "they run"
    own.mkdir()
    remove_what_workers_left(config_of(tmp_path))
    assert not left.parent.exists()
    assert own.exists()
    remove_what_workers_left(config_of(tmp_path, state="none"))
    assert not (tmp_path / "none").exists()
