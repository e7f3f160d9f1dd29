# SPDX-License-Identifier: Apache-2.0
"""The library as ctypes see it: constants, structures, signatures. mcshm.py has all of it."""
import ctypes as C
import os
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
B = os.path.abspath(os.path.join(ROOT, os.environ.get("B", "build")))
SAN = os.environ.get("SAN", "")
PATIENCE = 60 if SAN else 20  # seconds to await a condition; everything is slower under a sanitizer

if SAN == "address" and "libasan" not in os.environ.get("LD_PRELOAD", ""):
    asan = subprocess.run(["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True,
                          check=True).stdout.strip()
    # Python itself leaks on purpose; leaks of the library are the unit tests' to find
    os.environ["ASAN_OPTIONS"] = os.environ.get("ASAN_OPTIONS", "") + ":detect_leaks=0"
    os.environ["LD_PRELOAD"] = os.path.realpath(asan)
    os.execv(sys.executable, [sys.executable] + sys.argv)

lib = C.CDLL(os.path.join(ROOT, "build/lib/libmcshm.so.0") if SAN == "thread"
             else os.path.join(B, "lib/libmcshm.so.0"), use_errno=True)

(OK, INVALID_ARGUMENT, INVALID_HANDLE, BAD_RANGE, ACCESS, NOT_REGISTERED, NO_MEMORY, NO_HUGEPAGES,
 RING_FULL, NO_SLOTS, ARGS_FULL, TOO_MANY_TASKS, NO_BATCHES, BUSY, TIMEOUT, CANCELED, NOT_FOUND,
 EXISTS, VERSION, AGENT_DOWN, PERMISSION, NOT_SUPPORTED, BAD_SHM, REVOKED, OVERLAP, FORKED,
 INBOX_FULL, STRICT, LIMIT, PROTOCOL, MEMORY_FAULT, INTERNAL, PEER_UNREACHABLE, STALE, CHECKSUM, RAIL,
 METADATA, AUTH, ENCRYPTION, LOCAL_RESOURCE, AGENT_RESTARTED, REBUILDING, NO_DIRECTORY, NO_SPACE, IN_USE,
 BAD_KEY, TOO_SMALL, LEASE, FENCED, DISK, NOT_OWNER, NO_GPU, GPU_CONTEXT, GPU_LOST, GPU_ORDER) = range(55)
WAITING, PENDING, INVALID, S_CANCELED, COMPLETED, S_TIMEOUT, FAILED = range(7)
READ, WRITE = 1, 2
A_READ, A_WRITE, A_MAP_READ, A_MAP_WRITE = 1, 2, 4, 8
RW = A_READ | A_WRITE
HIGH, NORMAL, BACKGROUND = range(3)
FENCE, NOTIFY, SYNCED = 1, 2, 0x20
PUT, GET, EXIST, PREFIX, REMOVE, CREATE, SEAL, HOLD = range(5, 13)
UPSERT, NEW, HARD_PIN, RANGES, VERIFY, FORCE, LOCAL, CHAIN, LEASED = (1 << i for i in range(9))
TIERS = ["none", "memory", "disk", "remote"]
PATHS = ["none", "local", "caller", "staged", "tcp", "rdma", "cuda", "file", "mooncake"]


class Options(C.Structure):
    _fields_ = [("size", C.c_size_t), ("socket_path", C.c_char_p), ("name", C.c_char_p),
                ("connect_timeout_ms", C.c_uint32), ("control_timeout_ms", C.c_uint32),
                ("caller_max", C.c_uint64), ("strict", C.c_bool), ("log", C.c_void_p),
                ("log_context", C.c_void_p), ("reconnect_ms", C.c_uint32)]


class QueueOptions(C.Structure):
    _fields_ = [("size", C.c_size_t), ("depth", C.c_uint32), ("slots", C.c_uint32),
                ("batches", C.c_uint32), ("args_size", C.c_uint64)]


class Notification(C.Structure):
    _fields_ = [("name", C.c_void_p), ("name_size", C.c_size_t), ("message", C.c_void_p),
                ("message_size", C.c_size_t)]


class Order(C.Structure):
    _fields_ = [("wait", C.c_void_p), ("wait_value", C.c_uint32), ("signal_value", C.c_uint32), ("signal", C.c_void_p)]


class Gate(C.Structure):
    _fields_ = [("word", C.c_void_p), ("device", C.c_uint64), ("last", C.c_uint32), ("reserved", C.c_uint32), ("state", C.c_void_p)]


class Request(C.Structure):
    _fields_ = [("opcode", C.c_int), ("flags", C.c_uint32), ("priority", C.c_int),
                ("deadline_us", C.c_uint32), ("local", C.c_void_p), ("segment", C.c_uint32),
                ("remote_address", C.c_uint64), ("length", C.c_uint64), ("cookie", C.c_uint64),
                ("notify", C.POINTER(Notification)), ("order", C.POINTER(Order))]


class Piece(C.Structure):
    _fields_ = [("local_offset", C.c_uint64), ("remote_offset", C.c_uint64), ("length", C.c_uint64)]


class Stride(C.Structure):
    _fields_ = [("count", C.c_uint64), ("block", C.c_uint64), ("local_stride", C.c_uint64),
                ("remote_stride", C.c_uint64)]


class TaskStatus(C.Structure):
    _fields_ = [("state", C.c_int), ("error", C.c_int), ("path", C.c_int),
                ("remote_quiesced", C.c_bool), ("bytes", C.c_uint64), ("cookie", C.c_uint64),
                ("queue_ns", C.c_uint32), ("move_ns", C.c_uint32), ("notify_ns", C.c_uint32)]


class Buffer(C.Structure):
    _fields_ = [("address", C.c_uint64), ("size", C.c_uint64), ("access", C.c_uint32),
                ("location", C.c_char * 32)]


class Info(C.Structure):
    _fields_ = [(n, C.c_uint64) for n in ("agent_incarnation", "session_incarnation", "tenant",
                                          "page_size", "caller_max", "tick_hz")] + \
        [("deadline_us", C.c_uint32), ("never_sleeps", C.c_bool), ("agent_version", C.c_char * 32),
         ("restarts", C.c_uint64)]


class Stats(C.Structure):
    _fields_ = [(n, C.c_uint64) for n in
                ("submitted", "caller_tasks", "caller_bytes", "staged_tasks", "staged_bytes",
                 "doorbells", "sleeps", "ring_full", "notifications")]


class Key(C.Structure):
    _fields_ = [("bytes", C.c_char_p), ("size", C.c_size_t)]


class Span(C.Structure):
    _fields_ = [("address", C.c_void_p), ("size", C.c_uint64), ("offset", C.c_uint64)]


class ObjectRequest(C.Structure):
    _fields_ = [("op", C.c_int), ("flags", C.c_uint32), ("fence", C.c_bool), ("gpu_synced", C.c_bool),
                ("priority", C.c_int), ("deadline_us", C.c_uint32), ("cookie", C.c_uint64), ("keys", C.POINTER(Key)),
                ("count", C.c_size_t), ("spans", C.POINTER(Span)), ("span_counts", C.POINTER(C.c_uint32)),
                ("sizes", C.POINTER(C.c_uint64)), ("holds", C.POINTER(C.c_uint64)),
                ("groups", C.POINTER(Key)), ("replicas", C.c_uint32), ("soft_pin_ms", C.c_uint32),
                ("host", C.c_char_p), ("lease_ms", C.c_uint32), ("position", C.c_uint32), ("order", C.POINTER(Order))]


class ObjectResult(C.Structure):
    _fields_ = [("status", C.c_int), ("tier", C.c_int), ("path", C.c_int), ("copies", C.c_uint32),
                ("size", C.c_uint64), ("version", C.c_uint64), ("crc", C.c_uint32),
                ("address", C.c_void_p), ("hold", C.c_uint64)]


lib.mcshm_last_error.restype = C.c_char_p
lib.mcshm_strerror.restype = C.c_char_p
for name, types in {
        "mcshm_connect": [C.POINTER(Options), C.POINTER(C.c_void_p)],
        "mcshm_close": [C.c_void_p], "mcshm_last_error": [C.c_void_p],
        "mcshm_alloc": [C.c_void_p, C.c_size_t, C.c_size_t, C.c_char_p, C.POINTER(C.c_void_p)],
        "mcshm_free": [C.c_void_p, C.c_void_p],
        "mcshm_register_memfd": [C.c_void_p, C.c_int, C.c_size_t, C.POINTER(C.c_void_p)],
        "mcshm_register": [C.c_void_p, C.c_void_p, C.c_size_t],
        "mcshm_register_gpu": [C.c_void_p, C.c_void_p, C.c_size_t],
        "mcshm_unregister": [C.c_void_p, C.c_void_p],
        "mcshm_gate_create": [C.c_void_p, C.c_char_p, C.POINTER(Gate)],
        "mcshm_gate_destroy": [C.c_void_p, C.POINTER(Gate)],
        "mcshm_gate_record": [C.c_void_p, C.POINTER(Gate), C.c_void_p, C.POINTER(C.c_uint32)],
        "mcshm_gate_follow": [C.c_void_p, C.POINTER(Gate), C.c_void_p, C.c_uint32],
        "mcshm_segment_publish": [C.c_void_p, C.c_char_p, C.c_uint32],
        "mcshm_segment_withdraw": [C.c_void_p],
        "mcshm_buffer_publish": [C.c_void_p, C.c_void_p, C.c_size_t, C.c_uint32,
                                 C.POINTER(C.c_uint64)],
        "mcshm_buffer_withdraw": [C.c_void_p, C.c_void_p, C.c_size_t],
        "mcshm_revoke": [C.c_void_p, C.c_void_p, C.c_size_t],
        "mcshm_segment_open": [C.c_void_p, C.c_char_p, C.POINTER(C.c_uint32)],
        "mcshm_segment_close": [C.c_void_p, C.c_uint32],
        "mcshm_segment_describe": [C.c_void_p, C.c_uint32, C.POINTER(Buffer),
                                   C.POINTER(C.c_size_t)],
        "mcshm_map": [C.c_void_p, C.c_uint32, C.c_uint64, C.c_size_t, C.POINTER(C.c_void_p)],
        "mcshm_unmap": [C.c_void_p, C.c_void_p],
        "mcshm_queue_open": [C.c_void_p, C.POINTER(QueueOptions), C.POINTER(C.c_void_p)],
        "mcshm_queue_close": [C.c_void_p],
        "mcshm_batch_alloc": [C.c_void_p, C.c_uint32, C.POINTER(C.c_uint64)],
        "mcshm_batch_free": [C.c_void_p, C.c_uint64],
        "mcshm_batch_poll": [C.c_void_p, C.c_uint64, C.c_void_p],
        "mcshm_batch_wait": [C.c_void_p, C.c_uint64, C.c_int64],
        "mcshm_submit": [C.c_void_p, C.c_uint64, C.POINTER(Request), C.c_size_t],
        "mcshm_submit_list": [C.c_void_p, C.c_uint64, C.POINTER(Request), C.POINTER(Piece),
                              C.c_size_t],
        "mcshm_submit_stride": [C.c_void_p, C.c_uint64, C.POINTER(Request), C.POINTER(Stride)],
        "mcshm_submit_notify": [C.c_void_p, C.c_uint64, C.POINTER(Request)],
        "mcshm_task_poll": [C.c_void_p, C.c_uint64, C.c_uint32, C.POINTER(TaskStatus)],
        "mcshm_cancel": [C.c_void_p, C.c_uint64, C.c_uint32],
        "mcshm_notify_recv": [C.c_void_p, C.POINTER(Notification), C.c_int64],
        "mcshm_get_stats": [C.c_void_p, C.POINTER(Stats)],
        "mcshm_get_info": [C.c_void_p, C.POINTER(Info)],
        "mcshm_submit_objects": [C.c_void_p, C.c_uint64, C.POINTER(ObjectRequest)],
        "mcshm_object_results": [C.c_void_p, C.c_uint64, C.c_uint32, C.c_size_t,
                                 C.POINTER(ObjectResult), C.c_size_t],
        "mcshm_object_release": [C.c_void_p, C.POINTER(C.c_uint64), C.c_size_t, C.POINTER(C.c_size_t)],
        "mcshm_objects": [C.c_void_p, C.POINTER(ObjectRequest), C.POINTER(ObjectResult),
                          C.POINTER(TaskStatus), C.c_int64],
        "mcshm_objects_remove_prefix": [C.c_void_p, C.c_char_p, C.c_size_t, C.c_uint32,
                                        C.POINTER(C.c_uint64)],
        "mcshm_objects_remove_regex": [C.c_void_p, C.c_char_p, C.c_uint32, C.POINTER(C.c_uint64)],
        "mcshm_objects_remove_all": [C.c_void_p, C.c_uint32, C.POINTER(C.c_uint64)],
        "mcshm_objects_list": [C.c_void_p, C.c_char_p, C.c_size_t, C.c_uint32, C.c_uint64, C.c_uint64,
                               C.POINTER(C.c_void_p)],
        "mcshm_object_stat": [C.c_void_p, C.POINTER(Key), C.POINTER(C.c_void_p)],
        "mcshm_objects_events": [C.c_void_p, C.c_uint64, C.c_uint64, C.POINTER(C.c_void_p)],
        "mcshm_object_place": [C.c_void_p, C.POINTER(Key), C.c_char_p, C.c_char_p, C.POINTER(C.c_void_p)],
        "mcshm_drain": [C.c_void_p, C.c_char_p, C.c_bool, C.POINTER(C.c_void_p)]}.items():
    getattr(lib, name).argtypes = types
