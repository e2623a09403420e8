from __future__ import annotations
import asyncio, os, signal, socket, time, struct, threading
from contextlib import ExitStack
from pathlib import Path
import pytest
from tests.integration.test_gateway_workers import *
from tests.integration.test_gateway_workers import tiered
from tests.support.daemon import wait_for
pytestmark = [pytest.mark.broker, pytest.mark.timeout(400)]

def children(pid): return [int(x) for x in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

def test_fds_and_environ(tiered, tmp_path):
    with tiered.gateway(tmp_path/"g") as g:
        g.wait_until_ready()
        for pid in [g.pid, *worker_pids(g)]:
            print(pid, Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode())
            for fd in sorted(Path(f"/proc/{pid}/fd").iterdir(), key=lambda p:int(p.name)):
                try: t=os.readlink(fd)
                except OSError: continue
                if "socket" in t or "anon" in t or "pipe" in t: 
                    continue
                print("  ", fd.name, t)
        os.system(f"ls -laR {tmp_path/'g'/'state'} | head -60")
        print(g.status("/readyz"), g.status("/healthz"))
        print(g.status("/status.json")[1][:400])

def test_stop_with_slow_clients(tiered, tmp_path):
    "clients that never read; idle clients"
    with tiered.gateway(tmp_path/"g") as g, ExitStack() as st:
        g.wait_until_ready()
        port=port_of(g); ws=worker_pids(g)
        cs=[st.enter_context(socket.create_connection(("127.0.0.1",port))) for _ in range(50)]
        # requests for ApiVersions pipelined without reading
        body=struct.pack(">hhih",18,0,1,-1); req=struct.pack(">i",len(body))+body
        for c in cs:
            c.setblocking(False)
            try:
                for _ in range(2000): c.send(req*50)
            except BlockingIOError: pass
        time.sleep(2)
        t=time.monotonic(); rc=g.stop(); dt=time.monotonic()-t
        print("stop", rc, dt, [ (e["event"],e.get("worker"),e.get("reason")) for e in g.events() if e["event"].startswith("daemon.st")])
        assert rc==0

def test_kill_parent_term_twice(tiered, tmp_path):
    "group signal like systemd's control-group"
    with tiered.gateway(tmp_path/"g") as g, ExitStack() as st:
        g.wait_until_ready()
        port=port_of(g); ws=worker_pids(g)
        cs=[st.enter_context(socket.create_connection(("127.0.0.1",port))) for _ in range(50)]
        os.killpg(g.pid, signal.SIGTERM)
        rc=g.wait_for_exit()
        print("rc", rc, [ (e["event"],e.get("worker"),e.get("how")) for e in g.events() if e["event"].startswith(("daemon.st","gateway.worker"))])

def test_per_ip_and_unauth(tiered, tmp_path):
    with tiered.gateway(tmp_path/"g", listener={"max.connections.per.ip": 20}, **{"unauthenticated.max.connections":10,"unauthenticated.max.connections.per.ip":5}) as g, ExitStack() as st:
        g.wait_until_ready()
        port=port_of(g); ws=worker_pids(g)
        def held(): return [connections_of(p,port) for p in ws]
        peak=0
        def flood():
            for _ in range(300):
                try: 
                    c=socket.create_connection(("127.0.0.1",port),timeout=5); cs.append(c)
                except OSError as e: print(e)
        cs=[]
        ts=[threading.Thread(target=flood) for _ in range(8)]
        for t in ts: t.start()
        while any(t.is_alive() for t in ts):
            h=held(); peak=max(peak,sum(h)); time.sleep(0.01)
        time.sleep(2)
        print("peak", peak, "now", held(), "refused", [l for l in g.status("/metrics")[1].splitlines() if "refused" in l and not l.startswith("#")])
        for c in cs: c.close()
        time.sleep(2)
        print("after", held())
        # kill 9 each in the middle
        for n in (1,2):
            cs=[]
            ts=[threading.Thread(target=flood) for _ in range(4)]
            for t in ts: t.start()
            time.sleep(0.05); os.kill(worker_pids(g)[n-1], 9)
            for t in ts: t.join()
            for c in cs: c.close()
            g.wait_until_ready()
        ws=worker_pids(g)
        cs=[]
        flood()
        time.sleep(2); print("after kills", held(), [l for l in g.status("/metrics")[1].splitlines() if ("refused" in l or "worker" in l or "connections" in l) and not l.startswith("#")])

def test_limit_logged_in(tiered, tmp_path):
    import asyncio
    with tiered.gateway(tmp_path/"g", listener={"max.connections.per.ip": 20}) as g:
        g.wait_until_ready()
        port=port_of(g); ws=worker_pids(g)
        async def teach():
            await asyncio.gather(*(read_all(g,tiered) for _ in range(4)))
        asyncio.run(teach())
        def held(): return [connections_of(p,port) for p in ws]
        time.sleep(1); print("before", held())
        cs=[]; peak=0
        def flood():
            for _ in range(200):
                try: cs.append(socket.create_connection(("127.0.0.1",port),timeout=5))
                except OSError as e: print(e)
        ts=[threading.Thread(target=flood) for _ in range(8)]
        for t in ts: t.start()
        while any(t.is_alive() for t in ts):
            peak=max(peak,sum(held())); time.sleep(0.005)
        time.sleep(1.5)
        print("peak", peak, "now", held(), [l for l in g.status("/metrics")[1].splitlines() if ("refused" in l ) and not l.startswith("#")])
        for c in cs: c.close()

def test_kill9_restart_port(tiered, tmp_path):
    with tiered.gateway(tmp_path/"g") as g:
        g.wait_until_ready(); port=port_of(g)
        for i in range(3):
            ws=worker_pids(g)
            cs=[socket.create_connection(("127.0.0.1",port)) for _ in range(20)]
            t=time.monotonic(); g.kill9()
            n=0
            while True:
                s=socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR,1)
                try: s.bind(("127.0.0.1",port)); s.listen(1); s.close(); break
                except OSError as e: n+=1; s.close(); time.sleep(0.001)
            print("port free after kill9+wait, s:", time.monotonic()-t, "failed binds", n, "workers alive", [Path(f"/proc/{p}").exists() for p in ws])
            for c in cs: c.close()
            g.start(); g.wait_until_ready()

async def test_sum(tiered, tmp_path):
    import asyncio
    with tiered.gateway(tmp_path/"g") as g:
        await asyncio.to_thread(g.wait_until_ready)
        await asyncio.gather(*(read_all(g,tiered) for _ in range(8)))
        least = 8 * sum(len(value or b"") for _, value in tiered.records)
        for i in range(4):
            await asyncio.sleep(1)
            print("least", least, "filled", g.metric("tiersidecar_gateway_filled_bytes_total"), "out", g.metric("tiersidecar_gateway_bytes_total", direction="out"))
        print("\n".join(l for l in g.status("/metrics")[1].splitlines() if ("gateway" in l or "worker" in l or "cold" in l) and not l.startswith("#")))
