# SPDX-License-Identifier: Apache-2.0
"""What clients of the object store have seen, against docs/consistency.md.

Every put writes a value that says who wrote it and for which key; an operation is written down when it begins and when it has
ended. Times are of one clock.
"""
import collections
import json
import os
import random

OK, NOT_FOUND = 0, 16


def value(writer, key, size):
    """size bytes, at least 64: the writer, the key, and bytes that follow from both."""
    head = f"{writer} {key.decode()} {size} ".encode()
    return head + random.Random(head).randbytes(size - len(head))


def identify(data, key):
    """Who wrote it. An assertion fails unless it is wholly one value of this key's."""
    words = data[:64].split(b" ")
    if len(words) < 4:
        raise AssertionError(f"{key}: bytes of nobody: {data[:64]!r}, {len(data)} bytes")
    writer, of, size = words[0].decode(), words[1], int(words[2])
    if of != key or size != len(data) or value(writer, key, size) != data:
        raise AssertionError(f"{key}: a mixture, or another key's bytes: {data[:64]!r}, {len(data)} bytes")
    return writer


class Operation:
    def __init__(self, line):
        self.__dict__.update(line)
        self.end, self.status, self.version, self.value = float("inf"), None, 0, None

    def __repr__(self):
        return f"{self.begin:.3f}-{self.end:.3f} {self.id} {self.op} on host {self.host}: status {self.status}, " \
               f"version {self.version >> 32}.{self.version & (1 << 32) - 1}, value {self.value}"


def read(folder):
    """All operations, by key."""
    keys = collections.defaultdict(list)
    for name in sorted(os.listdir(folder)):
        byid = {}
        with open(os.path.join(folder, name)) as f:
            for text in f:
                if not text.endswith("\n"):
                    continue  # its writer was killed over it
                line = json.loads(text)
                if "op" in line:
                    byid[line["id"]] = o = Operation(line)
                    keys[o.key].append(o)
                else:
                    byid[line["id"]].__dict__.update(line)
    for operations in keys.values():
        operations.sort(key=lambda o: o.begin)
    return keys


def wrong(what, *operations):
    raise AssertionError(what + "\n" + "\n".join(map(repr, operations)))


def disturbed(windows, begin, end, host=None):
    return any(begin < to and end > since for h, since, to in windows if host is None or h == host)


def check_values(operations):
    """A value that was read was put to this key before the read was over; one version is one value."""
    puts = {o.id: o for o in operations if o.op in ("put", "upsert", "twice")}
    of_version = {}
    for o in operations:
        if o.op != "get" or o.status != OK:
            continue
        if o.value not in puts:
            wrong("a value that nobody has put", o)
        if puts[o.value].begin > o.end:
            wrong("a value that was put later", puts[o.value], o)
        other = of_version.setdefault(o.version, o)
        if other.value != o.value:
            wrong("two values of one version", other, o)


def check_monotonic(operations, windows):
    """Nobody reads an earlier life after a later one, but where the key was removed while some host was away: with that one it may
    come back."""
    last, removals = {}, [o for o in operations if o.op == "remove" and disturbed(windows, o.begin, o.end)]
    for o in operations:
        if o.op != "get" or o.status != OK:
            continue
        before = last.get(o.worker)
        if before is not None and o.version < before.version and \
                not any(r.begin < o.begin and r.end > before.begin for r in removals):
            wrong("back in time", before, o)
        last[o.worker] = o


def check_replaced(operations, windows):
    """After an upsert or a removal has ended with OK, no read that begins reads an earlier life, but for those of a host that
    is not whole."""
    gone = None  # the greatest version that is known to be over or replaced, and by whom
    events = sorted([(o.begin, 1, o) for o in operations if o.op == "get" and o.status == OK] +
                    [(o.end, 0, o) for o in operations if o.op in ("upsert", "remove") and o.status == OK],
                    key=lambda e: e[:2])
    n = 0
    for _, kind, o in events:
        if kind == 0 and o.op == "upsert" and (gone is None or o.version > gone.version):
            gone = o
        elif kind == 1 and gone is not None and o.version < gone.version:
            if not disturbed(windows, o.begin, o.end, o.host):
                wrong("read after it was replaced", gone, o)
        n += kind
    return n


def check_removed(operations, windows):
    """What was read before a removal began is not read after it has ended, but for where a host was not whole."""
    reads = [o for o in operations if o.op == "get" and o.status == OK]
    n = 0
    for r in operations:
        if r.op != "remove" or r.status != OK or disturbed(windows, r.begin, r.end):
            continue
        before = [o for o in reads if o.end < r.begin]
        if not before:
            continue
        greatest = max(before, key=lambda o: o.version)
        for o in reads:
            if o.begin > r.end and o.version <= greatest.version and not disturbed(windows, o.begin, o.end, o.host):
                wrong("read after it was removed", greatest, r, o)
        n += 1
    return n


def check_there(operations, windows):
    """NOT_FOUND needs a reason: no put has ended with OK yet, or somebody may have removed it since."""
    n = 0
    acked = [o for o in operations if o.op in ("put", "upsert", "twice") and o.status == OK]
    # one that was asked again over a change of the leader, which may be back at once with a later token, may find that its first try
    # has done it
    removals = [o for o in operations if o.op == "remove" and (o.status != NOT_FOUND or o.end - o.begin > 0.02)]
    for o in operations:
        if o.op not in ("get", "exist") or o.status != NOT_FOUND or disturbed(windows, o.begin, o.end):
            continue
        before = [p for p in acked if p.end < o.begin]
        if not before:
            continue
        last = max(before, key=lambda p: p.end)
        if not any(r.begin < o.end and r.end > last.begin for r in removals):
            wrong("an acknowledged put is not found", last, o)
        n += 1
    return n


def check_all(keys, windows):
    done = collections.Counter()
    for operations in keys.values():
        check_values(operations)
        check_monotonic(operations, windows)
        done["reads after upserts"] += check_replaced(operations, windows)
        done["removals"] += check_removed(operations, windows)
        done["not found"] += check_there(operations, windows)
        done["operations"] += len(operations)
        done["ended OK"] += sum(o.status == OK for o in operations)
    return dict(done)
