# SPDX-License-Identifier: Apache-2.0
"""Metadata services that misbehave on request: a TCP proxy to put before a real one, etcd's JSON
gateway with a small etcd behind it, and Mooncake's HTTP metadata server.

A fault is a function of (path, body) that returns None (answer properly) or one of the words below.
"""
import base64
import json
import random
import socket
import struct
import threading
import time
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

SWALLOW = "swallow"  # take the request, never answer
RESET = "reset"  # RST
CLOSE = "close"  # answer with headers only, then close


def reset(s):
    """Closes with RST."""
    try:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        s.shutdown(socket.SHUT_RD)
    except OSError:
        pass
    s.close()


class Proxy:
    """Relays to host:port. mode says what happens to bytes and to new connections from now on:
    pass, refuse (RST), swallow (nothing comes through, nobody is told), half (a few bytes of the
    answer, then nothing), or bytes, which it answers itself before it closes."""

    def __init__(self, host, port):
        self.target = (host, port)
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port = self.listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.forgotten = set()
        self.mode, self.pairs, self.accepted, self.lock = "pass", [], 0, threading.Lock()
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            self.accepted += 1
            if self.mode == "refuse":
                reset(client)
                continue
            try:
                server = socket.create_connection(self.target)
            except OSError:
                reset(client)
                continue
            with self.lock:
                self.pairs.append((client, server))
            for a, b, answers in ((client, server, False), (server, client, True)):
                threading.Thread(target=self.relay, args=(a, b, answers), daemon=True).start()

    def relay(self, a, b, answers):
        try:
            while True:
                data = a.recv(65536)
                mode = "swallow" if a in self.forgotten else self.mode
                if not data:
                    break
                if mode == "swallow":
                    continue
                if isinstance(mode, bytes):
                    if not answers:
                        a.sendall(mode)
                        break
                    continue
                if mode == "half" and answers:
                    b.sendall(data[:40])
                    self.hold()
                b.sendall(data)
        except OSError:
            pass
        for s in (a, b):
            try:
                s.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def hold(self):
        """Until the fault is over."""
        while self.mode == "half":
            time.sleep(0.02)

    def forget(self):
        """The connections there are go silent; new ones work. So does a load balancer after idling."""
        with self.lock:
            self.forgotten.update(s for pair in self.pairs for s in pair)

    def cut(self):
        """RST to all there are."""
        with self.lock:
            pairs, self.pairs = self.pairs, []
        for pair in pairs:
            for s in pair:
                reset(s)

    def close(self):
        self.listener.close()
        self.cut()


class Server:
    """An HTTP server on a thread of its own; subclasses answer(path, body) -> (status, bytes)."""

    def __init__(self):
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def serve(self):
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                server.handle(self, body)
            do_GET = do_PUT = do_POST = do_DELETE = serve

            def log_message(self, *words):
                pass

        class Threads(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 256

            def handle_error(self, request, address):
                pass  # clients that leave
        self.http = Threads(("127.0.0.1", 0), Handler)
        self.port = self.http.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.fault, self.requests, self.lock = None, [], threading.RLock()
        self.chunks = False  # answers in pieces of random size
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def count(self, what):
        with self.lock:
            return sum(what in path for _, path, _ in self.requests)

    def times(self, what):
        with self.lock:
            return [t for t, path, _ in self.requests if what in path]

    def handle(self, h, body):
        with self.lock:
            self.requests.append((time.monotonic(), h.path, body))
            fault = self.fault(h.path, body) if self.fault else None
        if fault == SWALLOW:
            time.sleep(600)
        elif fault == RESET:
            reset(h.connection)
            h.close_connection = True
        elif fault == CLOSE:
            h.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 500\r\n\r\n")
            h.close_connection = True
        elif callable(fault):  # writes what it likes
            fault(h)
            h.close_connection = True
        elif fault is not None:
            self.reply(h, *fault)
        else:
            self.serve(h, body)

    def serve(self, h, body):
        self.reply(h, *self.answer(h, body))

    def reply(self, h, status, data):
        head = f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        whole = head.encode() + data
        if not self.chunks:
            h.wfile.write(whole)
            return
        at = 0
        while at < len(whole):
            n = random.randint(1, 200)
            h.wfile.write(whole[at:at + n])
            h.wfile.flush()
            at += n

    def close(self):
        self.http.shutdown()
        self.http.server_close()


def unb64(text):
    return base64.b64decode(text or "")


def b64(data):
    return base64.b64encode(data.encode() if isinstance(data, str) else data).decode()


class Gateway(Server):
    """etcd as far as mcshm asks it. Keys in self.kvs: key -> [value, lease, create, mod]."""

    def __init__(self):
        self.kvs, self.leases, self.revision = {}, {}, 1
        self.events, self.changed = [], threading.Condition(threading.RLock())
        self.generation = 0  # of watches
        super().__init__()
        self.lock = self.changed  # one lock for all

    def header(self):
        return {"cluster_id": "1", "member_id": "1", "revision": str(self.revision), "raft_term": "2"}

    def expire(self):
        now = time.monotonic()
        for lease in [i for i, (_, end) in self.leases.items() if end < now]:
            self.revoke(lease)

    def revoke(self, lease):
        del self.leases[lease]
        for key in [k for k, v in self.kvs.items() if v[1] == lease]:
            self.delete(key)

    def kv(self, key, keys_only=False):
        value, lease, create, mod = self.kvs[key]
        out = {"key": b64(key), "create_revision": str(create), "mod_revision": str(mod), "version": "1"}
        if not keys_only:
            out["value"] = b64(value)
        if lease:
            out["lease"] = str(lease)
        return out

    def put(self, key, value, lease=0):
        with self.changed:
            self.revision += 1
            create = self.kvs[key][2] if key in self.kvs else self.revision
            self.kvs[key] = [value, lease, create, self.revision]
            self.events.append((self.revision, key, {"kv": self.kv(key)}))
            self.changed.notify_all()

    def delete(self, key):
        with self.changed:
            if self.kvs.pop(key, None) is None:
                return 0
            self.revision += 1
            self.events.append((self.revision, key, {"type": "DELETE", "kv": {
                "key": b64(key), "mod_revision": str(self.revision)}}))
            self.changed.notify_all()
            return 1

    def empty(self):
        """As after a restart without data."""
        with self.changed:
            self.kvs, self.leases, self.revision, self.events = {}, {}, 1, []
            self.changed.notify_all()

    def range(self, q):
        first, end = unb64(q.get("key")), unb64(q.get("range_end"))
        keys = sorted(k for k in self.kvs if (first <= k < end if end else k == first))
        out = {"count": str(len(keys))} if keys else {}
        keys = [k for k in keys if self.kvs[k][3] >= int(q.get("min_mod_revision", 0))]
        if q.get("count_only"):
            return out
        limit = int(q.get("limit", 0))
        if limit and len(keys) > limit:
            keys, out["more"] = keys[:limit], True
        if keys:
            out["kvs"] = [self.kv(k, q.get("keys_only")) for k in keys]
        return out

    def true(self, c):
        kv = self.kvs.get(unb64(c["key"]))
        if c["target"] == "CREATE":
            return int(c.get("create_revision", 0)) == (kv[2] if kv else 0)
        if c["target"] == "MOD":
            return int(c.get("mod_revision", 0)) == (kv[3] if kv else 0)
        return kv is not None and kv[0] == unb64(c.get("value"))

    def operate(self, op):
        (name, q), = op.items()
        if name == "request_range":
            return {"response_range": {"header": {"revision": str(self.revision)}, **self.range(q)}}
        if name == "request_put":
            self.put(unb64(q["key"]), unb64(q.get("value")), int(q.get("lease", 0)))
            return {"response_put": {}}
        return {"response_delete_range": {"deleted": str(self.delete(unb64(q["key"])))}}

    @staticmethod
    def error(status, code, text):
        return status, json.dumps({"error": text, "message": text, "code": code}).encode()

    def answer(self, h, body):
        q = json.loads(body)
        with self.changed:
            self.expire()
            try:
                out = self.call(h.path, q)
            except KeyError as e:
                return self.error(404, 5, f"etcdserver: requested lease not found {e}")
            return 200, json.dumps({"header": self.header(), **out}
                                   if "result" not in out else out).encode() + b"\n"

    def call(self, path, q):
        if path == "/v3/kv/range":
            return self.range(q)
        if path == "/v3/kv/put":
            self.leases[int(q.get("lease", 0))]
            self.put(unb64(q["key"]), unb64(q.get("value")), int(q["lease"]))
            return {}
        if path == "/v3/kv/deleterange":
            return {"deleted": str(self.delete(unb64(q["key"])))}
        if path == "/v3/kv/txn":
            good = all(self.true(c) for c in q["compare"])
            ops = q["success"] if good else q.get("failure", [])
            for op in ops:
                if "request_put" in op:
                    self.leases[int(op["request_put"]["lease"])]
            return {**({"succeeded": True} if good else {}), "responses": [self.operate(op) for op in ops]}
        if path == "/v3/lease/grant":
            ttl = int(q["TTL"])
            self.leases[int(q["ID"])] = (ttl, time.monotonic() + ttl)
            return {"ID": q["ID"], "TTL": str(ttl)}
        if path == "/v3/lease/keepalive":
            lease = int(q["ID"])
            result = {"header": self.header(), "ID": q["ID"]}
            if lease in self.leases:
                ttl = self.leases[lease][0]
                self.leases[lease] = (ttl, time.monotonic() + ttl)
                result["TTL"] = str(ttl)
            return {"result": result}
        self.revoke(int(q["ID"]))
        return {}

    def serve(self, h, body):
        if h.path == "/v3/watch":
            self.watch(h, json.loads(body)["create_request"])
        else:
            super().serve(h, body)

    def watch(self, h, q):
        first, end, at = unb64(q["key"]), unb64(q["range_end"]), int(q["start_revision"])
        h.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
        self.send(h, {"result": {"header": self.header(), "created": True}})
        generation = self.generation
        while True:
            with self.changed:
                if self.generation != generation:
                    h.close_connection = True
                    return reset(h.connection)
                news = [e for r, k, e in self.events if r >= at and first <= k < end]
                if not news:
                    self.changed.wait(0.2)
                    self.expire()
                    continue
                at = self.revision + 1
                message = {"result": {"header": self.header(), "events": news}}
            self.send(h, message)

    def cut_watches(self):
        with self.changed:
            self.generation += 1
            self.changed.notify_all()

    def send(self, h, message):
        data = json.dumps(message).encode() + b"\n"
        while data:
            n = random.randint(1, 300) if self.chunks else len(data)
            h.wfile.write(b"%x\r\n" % len(data[:n]) + data[:n] + b"\r\n")
            h.wfile.flush()
            data = data[n:]


class MetadataServer(Server):
    """Mooncake's, on /metadata; records in self.kvs."""

    def __init__(self):
        self.kvs = {}
        super().__init__()
        self.url += "/metadata"

    def answer(self, h, body):
        url = urllib.parse.urlsplit(h.path)
        key = urllib.parse.parse_qs(url.query).get("key", [""])[0]
        if url.path != "/metadata" or not key:
            return 400, b"no key"
        with self.lock:
            if h.command == "PUT":
                if "rpc_meta" in key and key in self.kvs:
                    return 400, b"Duplicate rpc_meta key not allowed"
                self.kvs[key] = body
                return 200, b"metadata updated"
            if key not in self.kvs:
                return 404, b"metadata not found"
            if h.command == "DELETE":
                del self.kvs[key]
                return 200, b"metadata deleted"
            return 200, self.kvs[key]
