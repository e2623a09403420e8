"""Sidecars are asked all at once, and none holds up the command: not one that is silent, nor one that trickles."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.support.loopback_ports import free_port
from tests.unit.app.commands.test_commands import CONFIG
from tiersidecar.app.commands.asking import LOCAL_TIMEOUT_S, KnownSidecar, ask, find_sidecars, seconds_since_start
from tiersidecar.app.config.config import Config, load_config
from tiersidecar.domain.errors import NoSidecarError
from tiersidecar.services.status.answers import is_host_and_port

ROW = {"node_id": 7, "address": "b7:8091", "host": "b7", "version": "1", "is_over": False}


@contextmanager
def serving(
    body: bytes, *, code: int = 200, location: str = "", trickle: threading.Event | None = None
) -> Iterator[str]:
    """A server with one answer; with ``trickle`` a byte of it at a time, until that is set."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(code)
            self.send_header("Content-Length", str(len(body)))
            if location:
                self.send_header("Location", location)
            self.end_headers()
            if trickle is None:
                self.wfile.write(body)
                return
            for number in range(len(body)):
                self.wfile.write(body[number : number + 1])
                self.wfile.flush()
                if trickle.wait(0.05):
                    return

        def log_message(self, *args: object) -> None:
            return None

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        if trickle is not None:
            trickle.set()
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def silent() -> Iterator[str]:
    """As a process that SIGSTOP holds: the kernel takes the connection, and nobody answers."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield f"127.0.0.1:{listening.getsockname()[1]}"


def config_with(tmp_path: Path, listen: str) -> Config:
    file = tmp_path / "tiersidecar.yaml"
    file.write_text(f"{CONFIG}status: {{listen: '{listen}'}}\n")
    return load_config(file, {})


def test_each_has_its_answer_and_the_time_is_bounded() -> None:
    body, refused = json.dumps({"node_id": 1}).encode(), f"127.0.0.1:{free_port()}"
    with (
        serving(body) as well,
        serving(b'{"problem": "no"}', code=503) as unwell,
        serving(b"<html>") as other,
        silent() as stopped,
        serving(b" " * 10_000, trickle=threading.Event()) as trickling,
    ):
        addresses = [well, unwell, other, stopped, trickling, refused]
        began_s = time.monotonic()
        answers = ask([KnownSidecar(address=one) for one in addresses], "/status", 0.5)
        assert time.monotonic() - began_s < 5
    assert [answer.sidecar.address for answer in answers] == addresses
    assert [answer.code for answer in answers] == [200, 503, 0, 0, 0, 0]
    assert (answers[0].document, answers[1].document) == ({"node_id": 1}, {"problem": "no"})
    assert ["answer" in answers[3].problem, "0.5 s" in answers[4].problem] == [True, True]
    assert "cannot be reached" in answers[5].problem


@pytest.mark.parametrize(
    ("spent_s", "others_answer", "at_least_s", "is_all"),
    [
        pytest.param(0.0, True, 2.0, True, id="the whole time limit if nothing was spent"),
        pytest.param(1.5, True, 1.0, False, id="half of it at least, however late the command is"),
        pytest.param(1.5, False, 2.0, True, id="all of it while nobody has answered: the machine may be busy"),
    ],
)
def test_a_silent_one_costs_less_when_the_command_is_late(
    spent_s: float, others_answer: bool, at_least_s: float, is_all: bool
) -> None:
    with serving(b"{}") as well, silent() as stopped:
        addresses = [stopped, well] if others_answer else [stopped]
        began_s = time.monotonic()
        answers = ask([KnownSidecar(address=one) for one in addresses], "/status", 2.0, spent_s=spent_s)
        took_s = time.monotonic() - began_s
    assert took_s >= at_least_s
    assert ("within 2 s" in answers[0].problem) is is_all
    assert [answer.code for answer in answers[1:]] == [200] * others_answer


def test_the_start_of_this_process_lies_in_the_past() -> None:
    assert 0 < seconds_since_start() < 24 * 3600


def test_one_that_is_not_asked_says_why() -> None:
    (answer,) = ask([KnownSidecar(address="", note="it is of a former release")], "/status", 0.5)
    assert (answer.code, answer.problem) == (0, "it is of a former release")


def test_one_that_only_its_own_machine_reaches_is_told_apart() -> None:
    (answer,) = ask([KnownSidecar(address=f"127.0.0.1:{free_port()}", host="b7")], "/status", 0.5)
    assert "listens on b7 for that machine alone" in answer.problem


def test_the_sidecar_at_status_listen_tells_of_the_others(tmp_path: Path) -> None:
    with serving(json.dumps({"sidecars": [ROW]}).encode()) as address:
        known = find_sidecars(config_with(tmp_path, address))
    assert [(one.node_id, one.address, one.note) for one in known] == [(7, "b7:8091", "")]


def test_one_that_only_observes_has_itself_alone_to_tell_of(tmp_path: Path) -> None:
    with serving(b'{"sidecars": []}') as address:
        assert [sidecar.address for sidecar in find_sidecars(config_with(tmp_path, address))] == [address]


def test_any_of_those_that_are_named_will_do(tmp_path: Path) -> None:
    config = config_with(tmp_path, "127.0.0.1:1")
    with silent() as stopped, serving(json.dumps({"sidecars": [ROW]}).encode()) as well:
        began_s = time.monotonic()
        known = find_sidecars(config, [stopped, well])
        assert time.monotonic() - began_s < LOCAL_TIMEOUT_S, "one answer is enough: the silent one is not waited for"
        assert [(one.node_id, one.address) for one in known] == [(7, "b7:8091"), (None, stopped), (None, well)]
        with pytest.raises(NoSidecarError, match=f"none of {stopped} answers .* within 0.5 s"):
            find_sidecars(config, [stopped])
    with pytest.raises(NoSidecarError, match="'nonsense', must be HOST:PORT"):
        find_sidecars(config, ["nonsense"])


def test_who_has_neither_a_sidecar_nor_a_broker_is_told_of_both(tmp_path: Path) -> None:
    with pytest.raises(NoSidecarError) as raised:
        find_sidecars(config_with(tmp_path, "127.0.0.1:1"))
    assert "the one at 127.0.0.1:1 (status.listen)" in str(raised.value)
    assert "broker at 127.0.0.1:1 could not be reached" in str(raised.value)


def test_processes_without_a_lease_are_asked_where_they_are_named(tmp_path: Path) -> None:
    """Gateways and readers of their own: by the caller, or by ``status.also.ask``; one that has a lease is there once."""
    with serving(json.dumps({"sidecars": [ROW]}).encode()) as well:
        file = tmp_path / "tiersidecar.yaml"
        file.write_text(f"{CONFIG}status: {{listen: '{well}', also.ask: ['gateway:8092', 'b7:8091']}}\n")
        config = load_config(file, {})
        for known in (find_sidecars(config), find_sidecars(config, through=["127.0.0.1:1", well])):
            assert [one.address for one in known] == ["b7:8091", "gateway:8092"]


def test_a_redirect_is_not_followed() -> None:
    """A forged lease would have the command ask anything that its machine reaches."""
    with serving(b'{"secret": 1}') as elsewhere, serving(b"", code=302, location=f"http://{elsewhere}/") as forged:
        (answer,) = ask([KnownSidecar(address=forged)], "/status", 5)
    assert (answer.code, answer.document) == (302, None)


@pytest.mark.parametrize("address", ["{}/elsewhere?", "user@{}", "{}#", "{}\n"])
def test_an_address_that_is_more_than_host_and_port_is_not_asked(address: str) -> None:
    with serving(b"{}") as elsewhere:
        (answer,) = ask([KnownSidecar(address=address.format(elsewhere))], "/status", 5)
    assert answer.code == 0
    assert "must be HOST:PORT" in answer.problem


@pytest.mark.parametrize("address", ["b7:8091", "10.0.0.7:8091", "[::1]:8091", "a-b.c_d.example:1"])
def test_addresses_that_are_asked(address: str) -> None:
    assert is_host_and_port(address)


@pytest.mark.parametrize("body", [b"[]", b"7", b"<html>", b"[" * 100_000])
def test_what_is_no_document_is_no_answer(body: bytes) -> None:
    with serving(body) as address:
        (answer,) = ask([KnownSidecar(address=address)], "/status", 5)
    assert (answer.code, answer.document) == (0, None)
    assert "status.listen" in answer.problem


@pytest.mark.parametrize("document", [{}, {"sidecars": 1}, {"sidecars": [1]}, {"sidecars": [ROW | {"address": None}]}])
def test_what_is_no_list_of_sidecars_is_not_taken_for_one(tmp_path: Path, document: dict[str, object]) -> None:
    config = config_with(tmp_path, "127.0.0.1:1")
    with serving(json.dumps(document).encode()) as address, pytest.raises(NoSidecarError, match="answers"):
        find_sidecars(config, [address])
