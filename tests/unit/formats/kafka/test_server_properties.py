"""A server.properties is read as Java does, and says where a node keeps its data (issue 21)."""

from __future__ import annotations

import pytest

from tiersidecar.domain.errors import CorruptDataError
from tiersidecar.formats.kafka.server_properties import NodePlaces, read_node_places, read_properties

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
    assert read_node_places(text.encode(), where="server.properties") == wanted


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
        read_node_places(text.encode(), where="server.properties")


def test_a_file_of_properties() -> None:
    text = """
# a comment
! another
log.dirs=/data/a,\\
    /data/b
rsm.config.key.prefix = tier/
listeners: PLAINTEXT\\://0.0.0.0\\:9092
empty=
flag
url=https://store:9000/path?a=b
"""
    assert read_properties(text.encode(), where="server.properties") == {
        "log.dirs": "/data/a,/data/b",
        "rsm.config.key.prefix": "tier/",
        "listeners": "PLAINTEXT://0.0.0.0:9092",
        "empty": "",
        "flag": "",
        "url": "https://store:9000/path?a=b",
    }


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        pytest.param("# ours \\\na=1\n", {"a": "1"}, id="a comment does not go on, whatever it ends in"),
        pytest.param("a=1,\\\n#2\n", {"a": "1,#2"}, id="a line that goes on is no comment"),
        pytest.param("\\\n#a=1\n\\\n\nb=2\n", {"b": "2"}, id="after a backslash alone a line begins"),
        pytest.param("a=1,\\\n\nb=2\n", {"a": "1,", "b": "2"}, id="an empty line ends it"),
        pytest.param("a=C:\\\\\nb=2\n", {"a": "C:\\", "b": "2"}, id="two backslashes at the end are one, and no more"),
        pytest.param("a=x\\\\\\\ny\n", {"a": "x\\y"}, id="three are one, and the line goes on"),
        pytest.param("a=x\\", {"a": "x"}, id="one at the end of the file is none"),
        pytest.param("a=\\u0061\\t\\n\\q\n", {"a": "a\t\nq"}, id="escapes"),
        pytest.param("a=\\ud83d\\ude00\n", {"a": "\U0001f600"}, id="a character of two escapes"),
        pytest.param("a\\ b\\=c=1\n", {"a b=c": "1"}, id="escapes in a key"),
        pytest.param("a  1\nb\t:\f2\nc = = 3\n", {"a": "1", "b": "2", "c": "= 3"}, id="what may part key and value"),
        pytest.param("a=1\rb=2\r\nc=3", {"a": "1", "b": "2", "c": "3"}, id="all ends of lines"),
        pytest.param("a=x\x0bb=\x1cy\x85z\n", {"a": "x\x0bb=\x1cy\xc2\x85z"}, id="and what is none in Java"),
        pytest.param("a=1\na=2 \n", {"a": "2 "}, id="the last one counts; blanks at its end are its"),
        pytest.param("a=\u00e4\n", {"a": "\u00c3\u00a4"}, id="Kafka reads UTF-8 as ISO-8859-1"),
        pytest.param("=1\n!x\n  \n", {"": "1"}, id="an empty key"),
    ],
)
def test_it_is_read_as_java_does(text: str, wanted: dict[str, str]) -> None:
    assert read_properties(text.encode(), where="server.properties") == wanted


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        pytest.param("a=1\nb=\\u12x4\n", "line 2: .*no \\\\u with four", id="an escape cut short"),
        pytest.param("a=\\ud83d\n", "line 1: .* half a character", id="half a character"),
        pytest.param("\ufeffa=1\n", "byte order mark", id="a byte order mark, of which Java makes a part of the key"),
    ],
)
def test_what_no_node_could_use_is_named(text: str, reason: str) -> None:
    with pytest.raises(CorruptDataError, match=reason):
        read_properties(text.encode(), where="server.properties")
