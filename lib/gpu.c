/* SPDX-License-Identifier: Apache-2.0 */
/* The driver, the devices of this process, and the end of both. */
#include "gpu.h"
#include "gate.h"

#include <signal.h>
#include <stdlib.h>

#define PREFIX "cuda:"
#define ORDINAL_DIGITS 4u /* "cuda:" and up to so many digits is an ordinal, more are a UUID's */
#define UUID_DIGITS_MIN 8u

bool mcl_gpu_is_location(const char *location)
{
    return strncmp(location, PREFIX, strlen(PREFIX)) == 0;
}

/* ---- errors ------------------------------------------------------------------------ */

static mcshm_status status_of(CUresult e)
{
    if (mcs_cuda_is_lost(e))
        return MCSHM_GPU_LOST;
    switch (e) {
    case CUDA_ERROR_OUT_OF_MEMORY:
        return MCSHM_NO_MEMORY;
    case CUDA_ERROR_NO_DEVICE:
    case CUDA_ERROR_INVALID_DEVICE:
        return MCSHM_NO_GPU;
    default:
        return MCSHM_GPU_CONTEXT;
    }
}

static const char *remedy(CUresult e)
{
    if (mcs_cuda_is_lost(e))
        return "the device is lost to this process: end it and start it anew";
    switch (e) {
    case CUDA_ERROR_OUT_OF_MEMORY:
        return "free memory of the device, or let others do so";
    case CUDA_ERROR_NOT_INITIALIZED:
    case CUDA_ERROR_DEINITIALIZED:
        return "a child of fork() cannot use CUDA that its parent has begun to use, nor can a "
               "process that is ending: "
               "exec() in between";
    case CUDA_ERROR_DEVICE_UNAVAILABLE:
        return "another process may have it to itself: nvidia-smi -c DEFAULT lets several have it";
    default:
        return "nvidia-smi and the kernel's log may say more";
    }
}

mcshm_status mcl_gpu_fail(struct mcshm *c, unsigned device, CUresult e, const char *what)
{
    const struct mcl_gpu_device *d = &c->gpu->devices[device];
    char id[MCS_GPU_ID_TEXT];

    mcs_gpu_id_print(&d->id, d->name, id);
    return mcl_fail(status_of(e), "%s on %s (%s): %s: %s", what, id, d->name,
                    mcs_cuda_error(c->gpu->driver, e), remedy(e));
}

/* ---- devices ----------------------------------------------------------------------- */

static CUresult discover(const struct mcs_cuda *driver, int ordinal, struct mcl_gpu_device *d)
{
    CUuuid uuid;
    int flushes = 0;
    CUresult e = driver->device_get(&d->device, ordinal);

    if (e == CUDA_SUCCESS)
        e = driver->device_get_uuid(&uuid, d->device);
    if (e == CUDA_SUCCESS)
        e = driver->device_get_name(d->name, sizeof(d->name), d->device);
    if (e == CUDA_SUCCESS) {
        static_assert(sizeof(uuid.bytes) == sizeof(d->id.bytes), "a UUID");
        memcpy(d->id.bytes, uuid.bytes, sizeof(d->id.bytes));
        d->name[sizeof(d->name) - 1] = '\0';
        /* what NICs have written before the word was set is seen by what follows in the stream */
        (void)driver->device_get_attribute(&flushes, CU_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES,
                                           d->device);
        d->wait_flags = CU_STREAM_WAIT_VALUE_GEQ | (flushes != 0 ? CU_STREAM_WAIT_VALUE_FLUSH : 0u);
    }
    return e;
}

mcshm_status mcl_gpu_open(struct mcshm *c)
{
    const struct mcs_cuda *driver;
    struct mcl_gpu *g;
    char why[256];
    int count = 0;
    CUresult e;

    /* relaxed: partner take_info(), reconnect.c */
    if (mcs_load_relaxed(&c->gpus) == 0)
        return mcl_fail(MCSHM_NO_GPU,
                        "the agent has no GPU memory to give: its [gpu] enable is off, "
                        "or it is of a version without it");
    if (c->gpu != NULL)
        return MCSHM_OK;
    if (mcs_cuda_load(&driver, why, sizeof(why)) != 0)
        return mcl_fail(MCSHM_NO_GPU, "%s", why);
    e = driver->device_get_count(&count);
    if (e != CUDA_SUCCESS || count <= 0)
        return mcl_fail(MCSHM_NO_GPU, "cuDeviceGetCount: %s, %d devices: %s",
                        mcs_cuda_error(driver, e), count, remedy(e));
    g = calloc(1, sizeof(*g) + (size_t)count * sizeof(g->devices[0]));
    if (g == NULL)
        return mcl_fail(MCSHM_NO_MEMORY, "out of memory for %d devices", count);
    g->driver = driver;
    g->ndevices = (unsigned)count;
    for (int i = 0; i < count && e == CUDA_SUCCESS; i++)
        e = discover(driver, i, &g->devices[i]);
    if (e != CUDA_SUCCESS) {
        free(g);
        return mcl_fail(MCSHM_NO_GPU, "asking what the devices are: %s: %s",
                        mcs_cuda_error(driver, e), remedy(e));
    }
    c->gpu = g;
    return MCSHM_OK;
}

/* The hexadecimal digits of a UUID, or of its beginning, without what stands between them. False: it is none. */
static bool uuid_digits(const char *text, char digits[33])
{
    unsigned n = 0;

    if (strncmp(text, "GPU-", 4) == 0 || strncmp(text, "MIG-", 4) == 0)
        text += 4;
    for (; *text != '\0'; text++) {
        char low = (char)(*text | 0x20);

        if (*text == '-')
            continue;
        if (n == 32 || !((*text >= '0' && *text <= '9') || (low >= 'a' && low <= 'f')))
            return false;
        digits[n++] = *text >= 'a' ? *text : low == *text ? *text : low;
    }
    digits[n] = '\0';
    return n >= UUID_DIGITS_MIN;
}

static void print_digits(const struct mcs_gpu_id *id, char digits[33])
{
    for (unsigned i = 0; i < sizeof(id->bytes); i++)
        snprintf(digits + 2 * i, 3, "%02x", id->bytes[i]);
}

static mcshm_status find_uuid(const struct mcl_gpu *g, const char *location, const char *digits,
                              unsigned *out)
{
    unsigned found = 0;

    for (unsigned i = 0; i < g->ndevices; i++) {
        char all[33];

        print_digits(&g->devices[i].id, all);
        if (strncmp(all, digits, strlen(digits)) == 0) {
            *out = i;
            found++;
        }
    }
    if (found == 0)
        return mcl_fail(MCSHM_NO_GPU,
                        "location \"%.60s\": none of this process's %u devices has that UUID: "
                        "nvidia-smi -L lists them, CUDA_VISIBLE_DEVICES chooses among them",
                        location, g->ndevices);
    if (found > 1)
        return mcl_fail(MCSHM_NO_GPU, "location \"%.60s\" is the beginning of %u devices' UUIDs",
                        location, found);
    return MCSHM_OK;
}

static mcshm_status find(const struct mcl_gpu *g, const char *location, unsigned *out)
{
    const char *name = location + strlen(PREFIX);
    size_t length = strnlen(name, 64);
    char digits[33];

    if (length != 0 && length <= ORDINAL_DIGITS && strspn(name, "0123456789") == length) {
        *out = (unsigned)strtoul(name, NULL, 10);
        if (*out < g->ndevices)
            return MCSHM_OK;
        return mcl_fail(MCSHM_NO_GPU,
                        "location \"%s\": this process has %u devices, \"cuda:0\" to \"cuda:%u\", "
                        "as its CUDA_VISIBLE_DEVICES leaves them",
                        location, g->ndevices, g->ndevices - 1);
    }
    if (length >= 64 || !uuid_digits(name, digits))
        return mcl_fail(MCSHM_NOT_SUPPORTED,
                        "location \"%.60s\" is not \"cuda:N\" or \"cuda:GPU-\" and a UUID",
                        location);
    return find_uuid(g, location, digits, out);
}

mcshm_status mcl_gpu_use(struct mcshm *c, const char *location, unsigned *device)
{
    mcshm_status status = mcl_gpu_open(c);
    struct mcl_gpu_device *d;
    CUcontext primary;
    CUresult e;

    if (status == MCSHM_OK)
        status = find(c->gpu, location, device);
    if (status != MCSHM_OK)
        return status;
    d = &c->gpu->devices[*device];
    if (d->primary != NULL)
        return MCSHM_OK;
    e = c->gpu->driver->primary_retain(&primary, d->device);
    if (e != CUDA_SUCCESS)
        return mcl_gpu_fail(c, *device, e, "a primary context");
    d->primary = primary;
    return MCSHM_OK;
}

mcshm_status mcl_gpu_enter(struct mcshm *c, unsigned device, CUcontext context)
{
    CUresult e =
        mcs_cuda_enter(c->gpu->driver, context != NULL ? context : c->gpu->devices[device].primary);

    return e == CUDA_SUCCESS ? MCSHM_OK : mcl_gpu_fail(c, device, e, "making the context current");
}

void mcl_gpu_leave(struct mcshm *c)
{
    mcs_cuda_leave(c->gpu->driver);
}

/* ---- the end ----------------------------------------------------------------------- */

struct mapping {
    uint8_t *base;
    uint64_t size;
    unsigned device;
};

/* What is left to be done by the driver, in a thread of its own. */
struct end {
    struct mcl_gpu *gpu;
    size_t nmappings;
    struct mapping *mappings;
    unsigned failures;
    pthread_mutex_t mutex;
    pthread_cond_t over_cond;
    bool over;
    bool left; /* nobody waits any more: it frees itself */
};

static void end_free(struct end *end)
{
    pthread_cond_destroy(&end->over_cond);
    pthread_mutex_destroy(&end->mutex);
    free(end->mappings);
    free(end->gpu);
    free(end);
}

static void end_work(struct end *end)
{
    struct mcl_gpu *g = end->gpu;

    for (size_t i = 0; i < end->nmappings; i++) {
        const struct mapping *m = &end->mappings[i];

        end->failures += mcl_gpu_unmap(g, m->device, m->base, m->size) != CUDA_SUCCESS;
    }
    end->failures += mcl_gates_fini(g, true);
    for (unsigned i = 0; i < g->ndevices; i++) {
        if (g->devices[i].primary != NULL)
            end->failures += g->driver->primary_release(g->devices[i].device) != CUDA_SUCCESS;
    }
}

static void *end_run(void *arg)
{
    struct end *end = arg;
    bool left;

    (void)pthread_setname_np(pthread_self(), "mcshm-gpu-end");
    end_work(end);
    pthread_mutex_lock(&end->mutex);
    end->over = true;
    left = end->left;
    pthread_cond_signal(&end->over_cond);
    pthread_mutex_unlock(&end->mutex);
    if (left)
        end_free(end);
    return NULL;
}

/* Takes the device memory off the connection's lists; end: NULL, it is forgotten. */
static void collect(struct mcshm *c, struct end *end)
{
    for (size_t i = 0; i < c->nextents; i++) {
        struct mcl_extent *e = &c->extents[i];

        if (end != NULL && e->gpu && e->import == NULL && e->base != NULL)
            end->mappings[end->nmappings++] =
                (struct mapping){.base = e->base, .size = e->map_size, .device = e->device};
        if (e->gpu)
            e->base = NULL;
    }
    for (size_t i = 0; i < c->nmaps;) {
        struct mcl_map *m = &c->maps[i];

        if (!m->gpu) {
            i++;
            continue;
        }
        if (end != NULL)
            end->mappings[end->nmappings++] =
                (struct mapping){.base = m->base, .size = m->size, .device = m->device};
        *m = c->maps[--c->nmaps];
    }
}

static struct end *end_create(struct mcshm *c)
{
    struct end *end = calloc(1, sizeof(*end));
    pthread_condattr_t attr;

    if (end == NULL)
        return NULL;
    end->mappings = calloc(c->nextents + c->nmaps + 1, sizeof(*end->mappings));
    if (end->mappings == NULL) {
        free(end);
        return NULL;
    }
    pthread_mutex_init(&end->mutex, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&end->over_cond, &attr);
    pthread_condattr_destroy(&attr);
    end->gpu = c->gpu;
    return end;
}

/* True: it is over, and `end` the caller's again. */
static bool end_await(struct end *end, uint32_t ms)
{
    int64_t until = mcl_now_ns() + (int64_t)ms * 1000000;
    struct timespec ts = {.tv_sec = until / 1000000000, .tv_nsec = until % 1000000000};
    bool over;

    pthread_mutex_lock(&end->mutex);
    while (!end->over && pthread_cond_timedwait(&end->over_cond, &end->mutex, &ts) != ETIMEDOUT)
        ;
    over = end->over;
    end->left = !over;
    pthread_mutex_unlock(&end->mutex);
    return over;
}

static bool end_start(struct end *end)
{
    sigset_t all, before;
    pthread_attr_t attr;
    pthread_t thread;
    int res;

    pthread_attr_init(&attr);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    sigfillset(&all); /* signals are the caller's threads' */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    res = pthread_create(&thread, &attr, end_run, end);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attr);
    return res == 0;
}

void mcl_gpu_fini(struct mcshm *c, bool mapped)
{
    struct end *end;

    if (c->gpu == NULL)
        return;
    end = end_create(c);
    collect(c, end);
    if (end == NULL || !mapped) {
        /* The mappings go with the process. In a forked child they, and the driver's state, are the parent's. */
        if (mapped)
            mcl_log(c, MCSHM_LOG_WARNING, "out of memory: GPU memory stays mapped in this process");
        (void)mcl_gates_fini(c->gpu, false);
        if (end == NULL)
            free(c->gpu);
        else
            end_free(end);
    } else if (!end_start(end)) {
        end_work(end);
        end_free(end);
    } else if (end_await(end, c->control_timeout_ms)) {
        if (end->failures != 0)
            mcl_log(c, MCSHM_LOG_WARNING, "%u calls of the GPU driver failed while closing",
                    end->failures);
        end_free(end);
    } else {
        mcl_log(c, MCSHM_LOG_ERROR,
                "the GPU driver has not unmapped this connection's memory within %u ms "
                "(control_timeout_ms): it is left to its thread",
                c->control_timeout_ms);
    }
    c->gpu = NULL;
}
