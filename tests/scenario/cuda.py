# SPDX-License-Identifier: Apache-2.0
"""The CUDA driver as a framework uses it: memory of its own, streams, fills, copies.  To be imported before agents are started.

Everybody gets the double of tests/fake-cuda, with a control file (cuda.control), unless MCSHM_CUDA=real: then it is the driver
of this host, cuda.control is None, and what needs the double begins with requires_double().  As with CUDA, a process that has used
the driver cannot fork others that do: the test itself only starts agents and children, which call cuda.Device()."""
import atexit
import contextlib
import ctypes as C
import os
import shutil
import tempfile

from fake_cuda import FAIL, HANG, LOSE, SLEEP, Control
from mcshm import B, check, skip

REAL = os.environ.get("MCSHM_CUDA") == "real"
MiB = 1 << 20
GRANULARITY = 2 * MiB
(INVALID_VALUE, OUT_OF_MEMORY, ECC_UNCORRECTABLE, ILLEGAL_ADDRESS, NOT_READY, NOT_SUPPORTED) = (1, 2, 214, 700, 600, 801)
control = None

if not REAL:
    _folder = os.path.join(B, "fake-cuda")
    if not os.path.exists(os.path.join(_folder, "libcuda.so.1")):
        skip("there is no " + _folder + "/libcuda.so.1: make unit builds it")
    # Agents and others that are started find it by this; who asks for it by its name in this process, and in its children, gets the
    # one that is loaded.
    os.environ["LD_LIBRARY_PATH"] = os.pathsep.join([_folder] + list(filter(None, [os.environ.get("LD_LIBRARY_PATH")])))
    C.CDLL(os.path.join(_folder, "libcuda.so.1"))
    _control = tempfile.mkdtemp(dir=os.environ.get("TMPDIR"), prefix="cuda")
    # Children end by os._exit() and leave it alone.
    atexit.register(shutil.rmtree, _control, ignore_errors=True)
    control = Control(os.path.join(_control, "control"))


def requires_double(why="needs the test double"):
    if REAL:
        skip(why)


def requires_gpu():
    """Nothing to be done with the double, which has two. Asked in a child: the test itself must not begin with the driver."""
    if not REAL:
        return
    pid = os.fork()
    if pid == 0:
        try:
            os._exit(C.CDLL("libcuda.so.1").cuInit(0) != 0)
        finally:
            os._exit(1)
    if os.waitpid(pid, 0)[1] != 0:
        skip("there is no GPU here")


class Location(C.Structure):
    _fields_ = [("type", C.c_int), ("id", C.c_int)]


class Properties(C.Structure):
    _fields_ = [("type", C.c_int), ("handle_types", C.c_int), ("location", Location), ("win32", C.c_void_p), ("flags", C.c_uint8 * 8)]


class Access(C.Structure):
    _fields_ = [("location", Location), ("flags", C.c_int)]


class CudaError(Exception):
    def __init__(self, call, result):
        super().__init__(f"{call}: {result}")
        self.result = result


class Device:
    """One device of this process, in its primary context, which is current only inside of calls."""

    def __init__(self, ordinal=0):
        self.library = C.CDLL("libcuda.so.1")
        self.ordinal = ordinal
        self.device, self.context = C.c_int(), C.c_void_p()
        self("cuInit", 0)
        self("cuDeviceGet", C.byref(self.device), ordinal)
        self("cuDevicePrimaryCtxRetain", C.byref(self.context), self.device)

    def __call__(self, name, *args):
        result = getattr(self.library, name)(*args)
        if result != 0:
            raise CudaError(name, result)

    @contextlib.contextmanager
    def current(self):
        self("cuCtxPushCurrent_v2", self.context)
        try:
            yield
        finally:
            self("cuCtxPopCurrent_v2", C.byref(C.c_void_p()))

    def release(self):
        self("cuDevicePrimaryCtxRelease_v2", self.device)

    def uuid(self):
        text = C.create_string_buffer(16)
        self("cuDeviceGetUuid_v2", text, self.device)
        h = text.raw.hex()
        return f"GPU-{h[:8]}-{h[8:12]}-{h[12:16]}-{h[16:20]}-{h[20:]}"

    # memory of one's own

    def alloc(self, size):
        at = C.c_uint64()
        with self.current():
            self("cuMemAlloc_v2", C.byref(at), C.c_size_t(size))
        return at.value

    def free(self, at):
        with self.current():
            self("cuMemFree_v2", C.c_uint64(at))

    def segments(self, *sizes, exportable=True):
        """Allocations that are mapped one behind the other, as PyTorch's expandable segments."""
        return Segments(self, sizes, exportable)

    # bytes

    def put(self, at, data):
        data = bytes(data)
        with self.current():
            self("cuMemcpyHtoD_v2", C.c_uint64(at), data, C.c_size_t(len(data)))

    def get(self, at, size):
        data = C.create_string_buffer(size)
        with self.current():
            self("cuMemcpyDtoH_v2", data, C.c_uint64(at), C.c_size_t(size))
        return data.raw

    def fill(self, at, size, byte, stream=None):
        """On the stream; without one it has been done when this returns."""
        with self.current():
            self("cuMemsetD8Async", C.c_uint64(at), C.c_ubyte(byte), C.c_size_t(size), stream)
            if stream is None:
                self("cuStreamSynchronize", None)

    def copy(self, to, source, size, stream=None):
        with self.current():
            self("cuMemcpyAsync", C.c_uint64(to), C.c_uint64(source), C.c_size_t(size), stream)
            if stream is None:
                self("cuStreamSynchronize", None)

    # streams

    def stream(self):
        s = C.c_void_p()
        with self.current():
            self("cuStreamCreate", C.byref(s), 1)  # CU_STREAM_NON_BLOCKING
        return s

    def sync(self, stream):
        with self.current():
            self("cuStreamSynchronize", stream)

    def idle(self, stream):
        with self.current():
            result = self.library.cuStreamQuery(stream)
        check(result in (0, NOT_READY), "cuStreamQuery", result)
        return result == 0

    def destroy(self, stream):
        with self.current():
            self("cuStreamDestroy_v2", stream)


class Segments:
    def __init__(self, device, sizes, exportable):
        self.device, self.sizes, self.handles = device, sizes, []
        p = Properties(type=1, handle_types=1 if exportable else 0, location=Location(1, device.ordinal))
        a = Access(Location(1, device.ordinal), 3)
        at = C.c_uint64()
        with device.current():
            device("cuMemAddressReserve", C.byref(at), C.c_size_t(sum(sizes)), C.c_size_t(0), C.c_uint64(0), C.c_ulonglong(0))
            self.at, place = at.value, at.value
            for size in sizes:
                h = C.c_uint64()
                device("cuMemCreate", C.byref(h), C.c_size_t(size), C.byref(p), C.c_ulonglong(0))
                device("cuMemMap", C.c_uint64(place), C.c_size_t(size), C.c_size_t(0), h, C.c_ulonglong(0))
                device("cuMemSetAccess", C.c_uint64(place), C.c_size_t(size), C.byref(a), C.c_size_t(1))
                self.handles.append(h)
                place += size

    def free(self):
        with self.device.current():
            place = self.at
            for size, h in zip(self.sizes, self.handles):
                self.device("cuMemUnmap", C.c_uint64(place), C.c_size_t(size))
                self.device("cuMemRelease", h)
                place += size
            self.device("cuMemAddressFree", C.c_uint64(self.at), C.c_size_t(sum(self.sizes)))
