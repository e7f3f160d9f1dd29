# SPDX-License-Identifier: Apache-2.0
"""Agents' protocols spoken by hand (docs/protocol.md): what a broken or hostile agent could say."""
import os
import socket
import struct

from hosts import *  # noqa: F401,F403

NONE, PSK, TLS = range(3)
GREETING, REFUSAL, PROOF = 0x314c54434d434d01, 0x315355464552434d, 0x31464f4f5250434d
FRAME = 0x3146434d
HELLO, OPEN, CLOSE, DESCRIBE, CHANGED, RAILS, PING, BYE = range(1, 9)

DATA_MAGIC, DATA_FRAME = 0x3154414450434d01, 0x5243
D_READ, D_WRITE, D_NOTIFY, D_KILL, D_PING = range(1, 6)
D_DATA, D_DONE, D_KILLED, D_PONG = 0x81, 0x82, 0x84, 0x85

CRC = []
for n in range(256):
    for _ in range(8):
        n = n >> 1 ^ (0x82f63b78 if n & 1 else 0)
    CRC.append(n)


def crc32c(data):
    c = 0xffffffff
    for byte in data:
        c = CRC[(c ^ byte) & 255] ^ c >> 8
    return c ^ 0xffffffff


def varint(n):
    out = b""
    while n > 127:
        out += bytes([n & 127 | 128])
        n >>= 7
    return out + bytes([n])


def message(**fields):
    """Protobuf of f1=..., f2=...: integers, strings, bytes, and lists of these."""
    out = b""
    for name, values in fields.items():
        number = int(name[1:])
        for v in values if isinstance(values, list) else [values]:
            if isinstance(v, int):
                out += varint(number << 3) + varint(v)
            else:
                v = v.encode() if isinstance(v, str) else v
                out += varint(number << 3 | 2) + varint(len(v)) + v
    return out


def parse(data):
    """{field: [values]}; integers as such, all else as bytes."""
    def number(i):
        n = shift = 0
        while True:
            n |= (data[i] & 127) << shift
            shift += 7
            i += 1
            if data[i - 1] < 128:
                return n, i
    found, i = {}, 0
    while i < len(data):
        key, i = number(i)
        if key & 7 == 0:
            v, i = number(i)
        elif key & 7 == 1:
            v, i = data[i:i + 8], i + 8
        elif key & 7 == 5:
            v, i = data[i:i + 4], i + 4
        else:
            n, i = number(i)
            v, i = data[i:i + n], i + n
        found.setdefault(key >> 3, []).append(v)
    return found


class Stream:
    """A TCP connection from inside a host."""

    def __init__(self, host, to):
        self.s = host.connect(to)

    def send(self, data):
        self.s.sendall(data)

    def take(self, n):
        """Exactly n bytes, or None when the agent hung up."""
        data = b""
        while len(data) < n:
            try:
                more = self.s.recv(min(n - len(data), 1 << 20))
            except (ConnectionResetError, BrokenPipeError):
                return None
            if not more:
                return None
            data += more
        return data

    def closed(self, seconds=PATIENCE):
        """Has the agent ended this connection? Reads what it still had to say."""
        self.s.settimeout(seconds)
        try:
            while self.s.recv(1 << 16):
                pass
        except (ConnectionResetError, BrokenPipeError):
            pass
        except socket.timeout:
            return False
        return True

    def close(self):
        self.s.close()


def greeting(magic=GREETING, low=1, high=1, method=NONE, role=1, incarnation=7, nonce=None):
    return struct.pack("<QHHBBHQ32sQ", magic, low, high, method, role, 0, incarnation,
                       nonce or os.urandom(32), 0)


class RawWire(Stream):
    """A control connection without authentication, of an agent that calls itself something new each time."""
    ports = itertools.count(10000)

    def __init__(self, host, to, address=None, incarnation=None):
        super().__init__(host, to)
        self.sequence, self.id = 0, 0
        self.send(greeting(incarnation=incarnation or int.from_bytes(os.urandom(7), "little") + 1))
        check(self.take(64) is not None, "no greeting")
        self.send(struct.pack("<QQ32s", PROOF, 0, b""))
        check(self.take(48) is not None, "no proof")
        self.tell(HELLO, message(f1="0.0.0", f2=1, f3=address or host.at(next(RawWire.ports)), f6=1))

    def frame(self, type_, body=b"", magic=FRAME, version=1, flags=0, status=0, length=None, id_=0,
              deadline=0, sequence=None):
        self.send(struct.pack("<IHHHHIIIQ", magic, version, type_, flags, status,
                              len(body) if length is None else length, id_, deadline,
                              self.sequence if sequence is None else sequence) + body)
        self.sequence += 1

    def tell(self, type_, body=b""):
        self.frame(type_, body)

    def ask(self, type_, body=b""):
        """(status, fields) of the answer; what comes between is not for us."""
        self.id += 1
        self.frame(type_, body, id_=self.id, deadline=5000)
        while True:
            head = self.take(32)
            check(head is not None, "the agent hung up")
            _, _, kind, flags, status, length, id_, _, _ = struct.unpack("<IHHHHIIIQ", head)
            payload = self.take(length)
            if flags & 1 and id_ == self.id:
                equal(kind, type_, "type of an answer")
                return status, parse(payload)

    def open(self, name, tenant=0):
        """(status, export, incarnation)"""
        status, m = self.ask(OPEN, message(f1=name, f2=tenant))
        return status, m.get(1, [0])[0], m.get(2, [0])[0]

    def tokens(self, count=1, route=None):
        status, m = self.ask(RAILS, message(f1=route or 4711, f2=count))
        check(status == OK, "leave for data connections", status, m)
        return m[1]


class RawData(Stream):
    """A data connection."""

    def __init__(self, host, to, token, magic=DATA_MAGIC, version=1, size=64, conn=None):
        super().__init__(host, to)
        self.id, self.conn = 0, conn or int.from_bytes(os.urandom(7), "little") + 1
        self.send(struct.pack("<QHHIQQ32s", magic, version, 0, size, self.conn, 1, token))

    def opened(self):
        """The status of the answer, or None."""
        answer = self.take(32)
        return None if answer is None else struct.unpack("<QHHIQQ", answer)[2]

    def header(self, type_, address=0, length=0, incarnation=0, export=0, magic=DATA_FRAME, flags=0,
               name_length=0, id_=None, check_=None, reserved=0, source=0):
        if id_ is None:
            self.id += 1
            id_ = self.id
        h = struct.pack("<HBBHHQQQQIIQIHH", magic, type_, flags, 0, name_length, id_, address, length,
                        incarnation, export, reserved, source, 0, 0, 0)
        return h[:-2] + struct.pack("<H", crc32c(h[:-2]) & 0xffff if check_ is None else check_)

    def trailer(self, payload=b"", status=0, id_=None, crc=0, magic=DATA_FRAME):
        return struct.pack("<HHIQ", magic, status, crc, self.id if id_ is None else id_)

    def request(self, type_, payload=None, **more):
        """Sends one request, takes its answer: (type, status, payload)."""
        h = self.header(type_, length=more.pop("length", len(payload or b"")), **more)
        self.send(h + (b"" if payload is None else payload + self.trailer()))
        return self.answer()

    def answer(self):
        head = self.take(64)
        if head is None:
            return None
        _, type_, _, status, _, id_, _, length = struct.unpack("<HBBHHQQQ", head[:32])
        payload = b""
        if type_ == D_DATA and status == OK:
            payload = self.take(length)
            check(self.take(16) is not None, "no trailer")
        return type_, status, payload
