"""A program in the place of a gateway's worker: it speaks the channel, and behaves as it is told.  Imports nothing of ours, so
that a test of a hundred starts takes seconds."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time

_EVERY_S = 0.02


def main() -> None:
    behaviour, place = sys.argv[1], [int(part) for part in sys.argv[2].split(",")]
    channel = socket.socket(fileno=place[2])
    if behaviour == "silent":
        signal.pause()
    if behaviour.startswith("exit"):
        sys.exit(int(behaviour.removeprefix("exit")))
    reloads, number = 0, 0
    channel.settimeout(_EVERY_S)
    while True:
        number += 1
        report = {
            "reasons": [] if behaviour != "not ready" else ["it waits for a broker"],
            "warnings": ["the same of all", f"pid {os.getpid()} reloaded {reloads} times"],
            "cold": [["User:a", "c", "t", 1, 10]],
            "node": ["cluster", 7],
            "metrics": {
                "counts": [["tiersidecar_gateway_requests_total", ["GATEWAY"], 1]],
                "gauges": [["tiersidecar_gateway_connections", ["GATEWAY"], 5]],
            },
        }
        line = json.dumps(report) if behaviour != "nonsense" or number < 3 else '{"reasons": 1}'
        channel.sendall(line.encode() + b"\n")
        if behaviour == "falls silent" and number == 3:
            time.sleep(1000)
        try:
            said = channel.recv(100)
        except TimeoutError:
            continue
        if not said or b"stop" in said:
            sys.exit(0)
        reloads += said.count(b"reload")


if __name__ == "__main__":
    main()
