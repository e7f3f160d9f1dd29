/* SPDX-License-Identifier: Apache-2.0 */
/* NVIDIA's driver: found, loaded and initialised once a process; what its errors mean. */
#include "cuda.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define REMEDY "CPU memory is not affected"
#define AGAIN_MS 2000u /* a driver that did not start is tried again so much later */

/* What loading came to, for all later calls; or, where it may come to something else, for a while. */
static struct {
    pthread_mutex_t lock;
    bool tried;
    uint64_t until; /* ms: `result` holds so long; 0: for good */
    int result;
    char why[256];
    struct mcs_cuda table;
} driver = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* The first required function that the library does not have; NULL: it has all. */
static const char *fill(struct mcs_cuda *d, void *library)
{
    const char *missing = NULL;

#define FILL(required, field, symbol, arguments)                                                   \
    d->field = (CUresult(*) arguments)dlsym(library, #symbol);                                     \
    if ((required) && d->field == NULL && missing == NULL)                                         \
        missing = #symbol;
    MCS_CUDA_FUNCTIONS(FILL)
#undef FILL
    return missing;
}

/* -EPROTO: as long as this process lives. */
static int load(struct mcs_cuda *d, char *why, size_t why_size)
{
    CUresult (*get_version)(int *version);
    const char *missing;
    CUresult e;
    int count = 0;

    if (d->library == NULL) /* else it did not start */
        d->library = dlopen(MCS_CUDA_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (d->library == NULL) {
        const char *text = dlerror();

        snprintf(
            why, why_size,
            "the GPU driver cannot be loaded (%.120s): install NVIDIA's driver, or mount it into "
            "the container; " REMEDY,
            text != NULL ? text : MCS_CUDA_LIBRARY);
        return -ENOENT;
    }
    /* An old driver is called so, rather than by the first function that it lacks. */
    get_version = (CUresult(*)(int *))dlsym(d->library, "cuDriverGetVersion");
    if (get_version != NULL && get_version(&d->version) == CUDA_SUCCESS &&
        d->version < MCS_CUDA_VERSION_MIN) {
        snprintf(why, why_size,
                 "the GPU driver is for CUDA %d.%d, the least that is needed is %d.%d: install a "
                 "later driver; " REMEDY,
                 d->version / 1000, d->version % 1000 / 10, MCS_CUDA_VERSION_MIN / 1000,
                 MCS_CUDA_VERSION_MIN % 1000 / 10);
        return -EPROTO;
    }
    missing = fill(d, d->library);
    if (missing != NULL) {
        snprintf(why, why_size,
                 "the GPU driver (CUDA %d.%d) has no function %s: install a later driver; " REMEDY,
                 d->version / 1000, d->version % 1000 / 10, missing);
        return -EPROTO;
    }
    e = d->init(0);
    if (e == CUDA_SUCCESS)
        e = d->device_get_count(&count);
    if (e == CUDA_ERROR_NO_DEVICE || (e == CUDA_SUCCESS && count == 0)) {
        snprintf(
            why, why_size,
            "the GPU driver (CUDA %d.%d) sees no device: see nvidia-smi, CUDA_VISIBLE_DEVICES and "
            "the container's devices; " REMEDY,
            d->version / 1000, d->version % 1000 / 10);
        return -ENODEV;
    }
    if (e != CUDA_SUCCESS) {
        snprintf(
            why, why_size,
            "the GPU driver (CUDA %d.%d) does not start, cuInit: %s (%d): see nvidia-smi and the "
            "kernel's log; " REMEDY,
            d->version / 1000, d->version % 1000 / 10, mcs_cuda_error(d, e), (int)e);
        return -EIO;
    }
    return 0;
}

static uint64_t now_ms(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000u + (uint64_t)ts.tv_nsec / 1000000u;
}

int mcs_cuda_load(const struct mcs_cuda **out, char *why, size_t why_size)
{
    int res;

    pthread_mutex_lock(&driver.lock);
    if (!driver.tried || (driver.until != 0 && now_ms() >= driver.until)) {
        /* It stays loaded whatever comes of it: a driver may have started threads of its own. What is not there yet at boot
         * (its files, the kernel's module, the fabric of the devices) may be there later. */
        driver.result = load(&driver.table, driver.why, sizeof(driver.why));
        driver.tried = true;
        driver.until = driver.result == 0 || driver.result == -EPROTO ? 0 : now_ms() + AGAIN_MS;
    }
    res = driver.result;
    pthread_mutex_unlock(&driver.lock);
    *out = res == 0 ? &driver.table : NULL;
    if (res != 0 && why_size > 0)
        snprintf(why, why_size, "%s", driver.why);
    return res;
}

const char *mcs_cuda_error(const struct mcs_cuda *d, CUresult e)
{
    const char *name = NULL;

    if (d->get_error_name(e, &name) != CUDA_SUCCESS || name == NULL)
        name = "an error without a name";
    return name;
}

bool mcs_cuda_is_lost(CUresult e)
{
    /* Those whose description in the manual says that the process must be ended and relaunched, and hardware's own. */
    switch (e) {
    case CUDA_ERROR_ECC_UNCORRECTABLE:
    case CUDA_ERROR_NVLINK_UNCORRECTABLE:
    case CUDA_ERROR_CONTAINED:
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_LAUNCH_TIMEOUT:
    case CUDA_ERROR_CONTEXT_IS_DESTROYED:
    case CUDA_ERROR_ASSERT:
    case CUDA_ERROR_HARDWARE_STACK_ERROR:
    case CUDA_ERROR_ILLEGAL_INSTRUCTION:
    case CUDA_ERROR_MISALIGNED_ADDRESS:
    case CUDA_ERROR_INVALID_ADDRESS_SPACE:
    case CUDA_ERROR_INVALID_PC:
    case CUDA_ERROR_LAUNCH_FAILED:
    case CUDA_ERROR_TENSOR_MEMORY_LEAK:
    case CUDA_ERROR_MPS_CLIENT_TERMINATED:
    case CUDA_ERROR_EXTERNAL_DEVICE:
        return true;
    default:
        return false;
    }
}

CUresult mcs_cuda_enter(const struct mcs_cuda *d, CUcontext primary)
{
    return d->ctx_push(primary);
}

void mcs_cuda_leave(const struct mcs_cuda *d)
{
    CUcontext was;

    (void)d->ctx_pop(&was);
}

bool mcs_gpu_is_instance(const char *name)
{
    return strstr(name, " MIG ") != NULL;
}

void mcs_gpu_id_print(const struct mcs_gpu_id *id, const char *name, char text[MCS_GPU_ID_TEXT])
{
    char *at = text;

    memcpy(at, name != NULL && mcs_gpu_is_instance(name) ? "MIG" : "GPU", 3);
    at += 3;
    for (unsigned i = 0; i < sizeof(id->bytes); i++) {
        if (i == 0 || i == 4 || i == 6 || i == 8 || i == 10)
            *at++ = '-';
        *at++ = "0123456789abcdef"[id->bytes[i] >> 4];
        *at++ = "0123456789abcdef"[id->bytes[i] & 15u];
    }
    *at = '\0';
}

/* -1: not a hexadecimal digit. */
static int digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c = (char)(c | 0x20);
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

int mcs_gpu_id_parse(const char *text, struct mcs_gpu_id *out)
{
    struct mcs_gpu_id id;

    if (strncmp(text, "GPU-", 4) == 0 || strncmp(text, "MIG-", 4) == 0)
        text += 4;
    for (unsigned i = 0; i < sizeof(id.bytes); i++) {
        int high, low;

        if ((i == 4 || i == 6 || i == 8 || i == 10) && *text++ != '-')
            return -EINVAL;
        high = digit(text[0]);
        low = high < 0 ? -1 : digit(text[1]);
        if (low < 0)
            return -EINVAL;
        id.bytes[i] = (uint8_t)(high << 4 | low);
        text += 2;
    }
    if (*text != '\0')
        return -EINVAL;
    *out = id;
    return 0;
}
