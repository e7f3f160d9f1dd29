# SPDX-License-Identifier: Apache-2.0
"""What a Client of mcshm.py can do with objects."""
import ctypes as C
import json

from libmcshm import (CREATE, EXIST, GET, HOLD, NORMAL, OK, PATIENCE, PREFIX, PUT, REMOVE, SEAL, Key,
                      ObjectRequest, ObjectResult, Span, TaskStatus)


class ObjectCalls:
    """Keys and data are bytes; results one a key."""

    def object_request(self, op, keys=(), spans=None, sizes=None, holds=None, groups=None, **more):
        """spans: for each key a list of (address, size) or (address, size, offset)."""
        keys = [k if isinstance(k, bytes) else k.encode() for k in keys]
        n = len(holds) if holds is not None else len(keys)
        r = ObjectRequest(op=op, priority=more.pop("priority", NORMAL), count=n, **more)
        if keys:
            r.keys = (Key * n)(*[Key(k, len(k)) for k in keys])
        if spans is not None:
            flat = [s for of_key in spans for s in of_key]
            r.spans = (Span * max(len(flat), 1))(*[Span(*s) for s in flat])
            r.span_counts = (C.c_uint32 * n)(*[len(of_key) for of_key in spans])
        if sizes is not None:
            r.sizes = (C.c_uint64 * n)(*sizes)
        if holds is not None:
            r.holds = (C.c_uint64 * n)(*holds)
        if groups is not None:
            r.groups = (Key * n)(*[Key(g, len(g)) for g in groups])
        return r

    def submit_objects(self, b, request):
        self.do("submit_objects", self.q, b, C.byref(request))

    def object_results(self, b, n, index=0, first=0):
        out = (ObjectResult * n)()
        self.do("object_results", self.q, b, index, first, out, n)
        return list(out)

    def objects(self, op, keys=(), seconds=PATIENCE, **more):
        """One request, to its end; its results. The task's status is left in self.last."""
        r = self.object_request(op, keys, **more)
        out = (ObjectResult * r.count)()
        self.last = TaskStatus()
        self.do("objects", self.q, C.byref(r), None if op == PREFIX else out, C.byref(self.last),
                int(seconds * 1e6))
        return list(out)

    def room(self, size):
        """Pool memory of the client's own, at least so much; always the same."""
        if getattr(self, "room_size", 0) < size:
            if getattr(self, "room_size", 0):
                self.free(self.room_at)
            self.room_at, self.room_size = self.alloc(size), size
        return self.room_at

    def put(self, *pairs, **more):
        """put((key, data), ...): results."""
        at = self.room(max(sum(len(data) for _, data in pairs), 1))
        spans = []
        for _, data in pairs:
            C.memmove(at, data, len(data))
            spans.append([(at, len(data))] if data else [])
            at += len(data)
        return self.objects(PUT, [k for k, _ in pairs], spans=spans, **more)

    def get(self, *keys, room=65536, **more):
        """A pair for each key: status, and its bytes when that is OK."""
        at = self.room(room * len(keys))
        spans = [[(at + i * room, room)] for i in range(len(keys))]
        results = self.objects(GET, keys, spans=spans, **more)
        return [(r.status, C.string_at(at + i * room, r.size) if r.status == OK else None)
                for i, r in enumerate(results)]

    def exist(self, *keys, **more):
        return [r.status for r in self.objects(EXIST, keys, **more)]

    def prefix(self, *keys, **more):
        self.objects(PREFIX, keys, **more)
        return self.last.bytes

    def remove(self, *keys, **more):
        return [r.status for r in self.objects(REMOVE, keys, **more)]

    def create(self, *pairs, **more):
        """create((key, size), ...): results."""
        return self.objects(CREATE, [k for k, _ in pairs], sizes=[n for _, n in pairs], **more)

    def seal(self, *holds, **more):
        return self.objects(SEAL, holds=holds, **more)

    def hold(self, *keys, **more):
        return self.objects(HOLD, keys, **more)

    def release(self, *holds):
        self.do("object_release", self.q, (C.c_uint64 * len(holds))(*holds), len(holds), None)

    def removed(self, what, *args):
        """removed("prefix", b"a", 1, flags): how many."""
        n = C.c_uint64()
        self.do("objects_remove_" + what, self.c, *args, C.byref(n))
        return n.value

    def object_json(self, call, *args):
        text = C.c_void_p()
        self.do(call, self.c, *args, C.byref(text))
        value = json.loads(C.string_at(text.value))
        C.CDLL(None).free(text)
        return value

    def list(self, prefix=b"", flags=0, skip=0, limit=1000000):
        return self.object_json("objects_list", prefix, len(prefix), flags, skip, limit)

    def stat(self, key):
        return self.object_json("object_stat", C.byref(Key(key, len(key))))

    def place(self, key, to, of=None):
        """To one more agent; with `of`: from that one."""
        return self.object_json("object_place", C.byref(Key(key, len(key))), of.encode() if of else None, to.encode())

    def events(self, first=0, limit=1000000):
        return self.object_json("objects_events", first, limit)
