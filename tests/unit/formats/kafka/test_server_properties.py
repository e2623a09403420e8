"""Where a node keeps its data, by its server.properties."""

from __future__ import annotations

import pytest

from tiersidecar.domain.errors import CorruptDataError
from tiersidecar.formats.kafka.server_properties import NodePlaces, read_node_places

BROKER = "process.roles=broker,controller\nnode.id=3\nlog.dirs=/a,/b\n"


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        pytest.param(
            BROKER,
            NodePlaces(node_id=3, is_broker=True, is_controller=True, log_dirs=("/a", "/b"), metadata_log_dir="/a"),
            id="a combined node keeps the cluster's metadata in its first log dir",
        ),
        pytest.param(
            "# a comment\n process.roles = controller\r\nnode.id: 9\nlog.dir /data\nmetadata.log.dir=/meta\n",
            NodePlaces(node_id=9, is_broker=False, is_controller=True, log_dirs=("/data",), metadata_log_dir="/meta"),
            id="spaces, colons, comments, the old name of log.dirs, and a directory of their own",
        ),
        pytest.param(
            "process.roles=broker\nnode.id=1\nlog.dirs=/a,\\\n  /b\\ c\nlog.dirs.not=/x\n",
            NodePlaces(node_id=1, is_broker=True, is_controller=False, log_dirs=("/a", "/b c"), metadata_log_dir="/a"),
            id="a value that goes on in the next line, and an escaped space",
        ),
    ],
)
def test_what_it_says(text: str, wanted: NodePlaces) -> None:
    assert read_node_places(text, where="server.properties") == wanted


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        pytest.param("node.id=1\nlog.dirs=/a\n", "process.roles", id="no role: of ZooKeeper days"),
        pytest.param("process.roles=broker\nlog.dirs=/a\n", "node.id", id="no node id"),
        pytest.param("process.roles=broker\nnode.id=1\n", "log.dirs", id="no log dir"),
    ],
)
def test_what_is_missing_is_named(text: str, reason: str) -> None:
    with pytest.raises(CorruptDataError, match=reason):
        read_node_places(text, where="server.properties")
