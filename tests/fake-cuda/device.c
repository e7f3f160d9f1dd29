/* SPDX-License-Identifier: Apache-2.0 */
/* Devices, what is said of them, and their primary contexts. */
#include "inside.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STACK 32

static __thread struct {
    CUcontext stack[STACK];
    unsigned depth, pushed;
    bool host_function;
} me;

static pthread_key_t thread_end;
static bool has_thread_end;

/* A thread that ends with more pushes than pops has forgotten one. */
static void thread_ended(void *count)
{
    const unsigned *pushed = count;

    if (*pushed != 0)
        fake_misuse(CUDA_ERROR_ILLEGAL_STATE, "a thread has ended with %u contexts pushed",
                    *pushed);
}

/* ---- devices -------------------------------------------------------------------------------- */

/* The first 13 bytes must differ: locations are printed with so many. */
static void uuid_of(int device, uint8_t out[16])
{
    static const uint8_t like[16] = {0xfa, 0xce, 0xcd, 0x00, 0xfa, 0x4e, 0x4c, 0xda,
                                     0x80, 0x00, 0xfa, 0xce, 0xfa, 0xce, 0xfa, 0xce};

    memcpy(out, like, 16);
    out[3] = (uint8_t)device;
}

static void uuid_text(int device, char text[MCS_GPU_ID_TEXT])
{
    uint8_t u[16];

    uuid_of(device, u);
    snprintf(text, MCS_GPU_ID_TEXT,
             "%s-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x",
             fake.settings.mig ? "MIG" : "GPU", u[0], u[1], u[2], u[3], u[4], u[5], u[6], u[7],
             u[8], u[9], u[10], u[11], u[12], u[13], u[14], u[15]);
}

/* A device by ordinal or by the beginning of its UUID; -1: none, or not one alone. */
static int device_named(const char *text, size_t length)
{
    char uuid[MCS_GPU_ID_TEXT], copy[MCS_GPU_ID_TEXT] = "";
    int found = -1, n = 0;
    char *end;
    unsigned long ordinal;

    if (length == 0 || length >= sizeof(copy))
        return -1;
    memcpy(copy, text, length);
    ordinal = strtoul(copy, &end, 10);
    if (*end == '\0')
        return ordinal < fake.settings.devices ? (int)ordinal : -1;
    for (unsigned d = 0; d < fake.settings.devices; d++) {
        uuid_text((int)d, uuid);
        if (length >= 5 && strncasecmp(uuid, copy, length) == 0) {
            found = (int)d;
            n++;
        }
    }
    return n == 1 ? found : -1;
}

/* CUDA_VISIBLE_DEVICES: those before the first that is not there; one twice, and none is visible. */
static void devices_choose(void)
{
    const char *text = getenv("CUDA_VISIBLE_DEVICES"), *end;
    int d;

    fake.visible = 0;
    if (text == NULL) {
        for (; fake.visible < fake.settings.devices; fake.visible++)
            fake.order[fake.visible] = (int)fake.visible;
        return;
    }
    for (; *text != '\0'; text = *end == ',' ? end + 1 : end) {
        end = strchrnul(text, ',');
        d = device_named(text, (size_t)(end - text));
        if (d < 0)
            break;
        for (unsigned i = 0; i < fake.visible; i++) {
            if (fake.order[i] == d) {
                fake.visible = 0;
                return;
            }
        }
        fake.order[fake.visible++] = d;
    }
}

int fake_device_of(CUdevice d)
{
    return d >= 0 && (unsigned)d < fake.visible ? fake.order[d] : -1;
}

int fake_ordinal_of(int device)
{
    for (unsigned i = 0; i < fake.visible; i++) {
        if (fake.order[i] == device)
            return (int)i;
    }
    return -1;
}

bool fake_reaches(int device, int peer)
{
    return device == peer || (fake.settings.peer && !fake.settings.mig);
}

CUresult fake_cuInit(unsigned flags)
{
    CUresult res = fake_enter(FAKE_cuInit, FAKE_ANY);

    if (res == CUDA_SUCCESS) {
        if (!fake.initialised)
            devices_choose();
        if (flags != 0)
            res = fake_misuse(CUDA_ERROR_INVALID_VALUE, "flags must be 0, not %u", flags);
        else if (fake.visible == 0)
            res = CUDA_ERROR_NO_DEVICE;
        else
            fake.initialised = true;
        if (!has_thread_end)
            has_thread_end = pthread_key_create(&thread_end, thread_ended) == 0;
        fake_leave(res);
    }
    return res;
}

CUresult fake_cuDriverGetVersion(int *version)
{
    CUresult res = fake_enter(FAKE_cuDriverGetVersion, FAKE_ANY);

    if (res == CUDA_SUCCESS) {
        *version = fake.settings.version;
        fake_leave(res);
    }
    return res;
}

CUresult fake_cuDeviceGetCount(int *count)
{
    CUresult res = fake_enter(FAKE_cuDeviceGetCount, FAKE_INIT);

    if (res == CUDA_SUCCESS) {
        *count = (int)fake.visible;
        fake_leave(res);
    }
    return res;
}

CUresult fake_cuDeviceGet(CUdevice *d, int ordinal)
{
    CUresult res = fake_enter(FAKE_cuDeviceGet, FAKE_INIT);

    if (res == CUDA_SUCCESS) {
        if (fake_device_of(ordinal) < 0)
            res = CUDA_ERROR_INVALID_DEVICE;
        else
            *d = ordinal;
        fake_leave(res);
    }
    return res;
}

/* The way into calls about a device. */
static CUresult device_enter(enum fake_call call, CUdevice d, int *out)
{
    CUresult res = fake_enter(call, FAKE_INIT);

    if (res == CUDA_SUCCESS) {
        *out = fake_device_of(d);
        if (*out < 0)
            res = fake_leave(fake_misuse(CUDA_ERROR_INVALID_DEVICE, "there is no device %d", d));
    }
    return res;
}

CUresult fake_cuDeviceGetName(char *name, int size, CUdevice d)
{
    int device;
    CUresult res = device_enter(FAKE_cuDeviceGetName, d, &device);

    if (res == CUDA_SUCCESS) {
        snprintf(name, (size_t)size, "FAKE GPU %d%s (tests/fake-cuda, no hardware)", device,
                 fake.settings.mig ? " MIG 1g.10gb" : "");
        fake_leave(res);
    }
    return res;
}

CUresult fake_cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice d)
{
    int device;
    CUresult res = device_enter(FAKE_cuDeviceGetUuid_v2, d, &device);

    if (res == CUDA_SUCCESS) {
        uuid_of(device, (uint8_t *)uuid->bytes);
        fake_leave(res);
    }
    return res;
}

CUresult fake_cuDeviceTotalMem_v2(size_t *bytes, CUdevice d)
{
    int device;
    CUresult res = device_enter(FAKE_cuDeviceTotalMem_v2, d, &device);

    if (res == CUDA_SUCCESS) {
        *bytes = fake.settings.memory;
        fake_leave(res);
    }
    return res;
}

CUresult fake_cuDeviceGetAttribute(int *value, CUdevice_attribute a, CUdevice d)
{
    const struct fake_settings *s = &fake.settings;
    int device;
    CUresult res = device_enter(FAKE_cuDeviceGetAttribute, d, &device);

    if (res != CUDA_SUCCESS)
        return res;
    switch ((int)a) {
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
    case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
    case CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM:
    case CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED:
        *value = 1;
        break;
    case CU_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES:
        *value = s->flush;
        break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_MODE:
        *value = s->compute_mode;
        break;
    case CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT:
        *value = 2;
        break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
        *value = 9;
        break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
    case CU_DEVICE_ATTRIBUTE_MPS_ENABLED:
        *value = 0;
        break;
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
        *value = s->vmm;
        break;
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
        *value = s->vmm && s->posix;
        break;
    case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS:
        *value = s->rdma;
        break;
    case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING:
        *value = s->rdma ? 200 : 0; /* CU_GPU_DIRECT_RDMA_WRITES_ORDERING_ALL_DEVICES */
        break;
    case CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED:
        *value = s->dmabuf;
        break;
    case CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID:
        *value = 0;
        break;
    default:
        res = fake_misuse(CUDA_ERROR_INVALID_VALUE, "attribute %d is not known to the double", a);
    }
    return fake_leave(res);
}

CUresult fake_cuDeviceGetPCIBusId(char *id, int size, CUdevice d)
{
    int device;
    CUresult res = device_enter(FAKE_cuDeviceGetPCIBusId, d, &device);

    if (res == CUDA_SUCCESS) {
        if (snprintf(id, (size_t)size, "FACE:%02X:00.0", 0x10 + device) >= size)
            res = fake_misuse(CUDA_ERROR_INVALID_VALUE, "%d bytes do not hold a bus id", size);
        fake_leave(res);
    }
    return res;
}

CUresult fake_cuDeviceCanAccessPeer(int *can, CUdevice d, CUdevice peer)
{
    int device;
    CUresult res = device_enter(FAKE_cuDeviceCanAccessPeer, d, &device);

    if (res == CUDA_SUCCESS) {
        if (fake_device_of(peer) < 0)
            res = fake_misuse(CUDA_ERROR_INVALID_DEVICE, "there is no device %d", peer);
        else
            *can = d != peer && fake_reaches(device, fake_device_of(peer));
        fake_leave(res);
    }
    return res;
}

/* ---- contexts ------------------------------------------------------------------------------- */

struct fake_context *fake_current(void)
{
    const CUcontext top = me.depth > 0 ? me.stack[me.depth - 1] : NULL;

    for (unsigned d = 0; top != NULL && d < FAKE_CUDA_DEVICES; d++) {
        if (fake.contexts[d].retains > 0 && fake.contexts[d].handle == (uint64_t)(uintptr_t)top)
            return &fake.contexts[d];
    }
    return NULL; /* also where what is current was released */
}

void fake_in_host_function(bool in)
{
    me.host_function = in;
}

bool fake_is_in_host_function(void)
{
    return me.host_function;
}

CUresult fake_cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice d)
{
    struct fake_context *c;
    int device;
    CUresult res = device_enter(FAKE_cuDevicePrimaryCtxRetain, d, &device);

    if (res != CUDA_SUCCESS)
        return res;
    c = &fake.contexts[device];
    if (c->retains == 0 && (fake.settings.compute_mode == CU_COMPUTEMODE_PROHIBITED ||
                            (fake.settings.compute_mode == CU_COMPUTEMODE_EXCLUSIVE_PROCESS &&
                             fake_others_on(device)))) {
        res = CUDA_ERROR_DEVICE_UNAVAILABLE;
    } else {
        if (c->retains++ == 0) {
            memset(c, 0, sizeof(*c));
            c->retains = 1;
            c->device = device;
            c->handle = fake_object_add(FAKE_KIND_CONTEXT, c);
            fake_count(device, FAKE_CONTEXTS, 1);
        }
        fake_count(device, FAKE_RETAINS, 1);
        *out = (CUcontext)(uintptr_t)c->handle;
    }
    return fake_leave(res);
}

CUresult fake_cuDevicePrimaryCtxRelease_v2(CUdevice d)
{
    struct fake_context *c;
    int device;
    CUresult res = device_enter(FAKE_cuDevicePrimaryCtxRelease_v2, d, &device);

    if (res != CUDA_SUCCESS)
        return res;
    c = &fake.contexts[device];
    if (c->retains == 0) {
        res = fake_misuse(CUDA_ERROR_INVALID_CONTEXT,
                          "the primary context of device %d is not held", d);
    } else if (c->retains == 1 && c->things > 0 && c->lost == CUDA_SUCCESS) {
        res = fake_misuse(CUDA_ERROR_ILLEGAL_STATE,
                          "the last release of the context of device %d, with %u streams, events, "
                          "allocations, opened or registered memory left in it",
                          d, c->things);
    } else {
        fake_count(device, FAKE_RETAINS, -1);
        if (--c->retains == 0) {
            fake_null_stream_end(c);
            fake_object_remove(c->handle);
            fake_count(device, FAKE_CONTEXTS, -1);
        }
    }
    return fake_leave(res);
}

CUresult fake_cuCtxPushCurrent_v2(CUcontext c)
{
    CUresult res = fake_enter(FAKE_cuCtxPushCurrent_v2, FAKE_INIT);

    if (res != CUDA_SUCCESS)
        return res;
    if (fake_object_find(FAKE_KIND_CONTEXT, (uint64_t)(uintptr_t)c) == NULL) {
        res = CUDA_ERROR_INVALID_CONTEXT;
    } else if (me.depth == STACK) {
        res = fake_misuse(CUDA_ERROR_INVALID_VALUE, "%u contexts are pushed already on this thread",
                          STACK);
    } else {
        me.stack[me.depth++] = c;
        me.pushed++;
        pthread_setspecific(thread_end, &me.pushed);
    }
    return fake_leave(res);
}

CUresult fake_cuCtxPopCurrent_v2(CUcontext *c)
{
    CUresult res = fake_enter(FAKE_cuCtxPopCurrent_v2, FAKE_INIT);

    if (res != CUDA_SUCCESS)
        return res;
    if (me.pushed == 0) {
        res = fake_misuse(CUDA_ERROR_INVALID_CONTEXT, "nothing was pushed on this thread");
    } else {
        me.pushed--;
        me.depth--;
        if (c != NULL)
            *c = me.stack[me.depth];
    }
    return fake_leave(res);
}

CUresult fake_cuCtxSetCurrent(CUcontext c)
{
    CUresult res = fake_enter(FAKE_cuCtxSetCurrent, FAKE_INIT);

    if (res != CUDA_SUCCESS)
        return res;
    if (c != NULL && fake_object_find(FAKE_KIND_CONTEXT, (uint64_t)(uintptr_t)c) == NULL) {
        res = CUDA_ERROR_INVALID_CONTEXT;
    } else {
        if (me.depth == 0)
            me.depth = 1;
        me.stack[me.depth - 1] = c;
    }
    return fake_leave(res);
}

CUresult fake_cuCtxGetCurrent(CUcontext *c)
{
    CUresult res = fake_enter(FAKE_cuCtxGetCurrent, FAKE_INIT);

    if (res == CUDA_SUCCESS) {
        *c = me.depth > 0 ? me.stack[me.depth - 1] : NULL;
        fake_leave(res);
    }
    return res;
}

CUresult fake_cuCtxGetDevice(CUdevice *d)
{
    CUresult res = fake_enter(FAKE_cuCtxGetDevice, FAKE_CURRENT);

    if (res == CUDA_SUCCESS) {
        *d = fake_ordinal_of(fake_current()->device);
        fake_leave(res);
    }
    return res;
}

CUresult fake_cuCtxEnablePeerAccess(CUcontext peer, unsigned flags)
{
    struct fake_context *c, *p;
    CUresult res = fake_enter(FAKE_cuCtxEnablePeerAccess, FAKE_CURRENT);

    if (res != CUDA_SUCCESS)
        return res;
    c = fake_current();
    p = fake_object_find(FAKE_KIND_CONTEXT, (uint64_t)(uintptr_t)peer);
    if (p == NULL)
        res = CUDA_ERROR_INVALID_CONTEXT;
    else if (flags != 0 || p == c)
        res = fake_misuse(CUDA_ERROR_INVALID_VALUE, "a context as its own peer, or flags");
    else if (!fake_reaches(c->device, p->device))
        res = CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
    else if (c->peers >> p->device & 1)
        res = CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
    else
        c->peers |= UINT32_C(1) << p->device;
    return fake_leave(res);
}
