/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "doctor_gpu.h"

bool doctor_gpu_is_fake(const struct doctor_gpu *g)
{
    return strncmp(g->name, "FAKE GPU", 8) == 0;
}

bool doctor_gpu_is_mig(const struct doctor_gpu *g)
{
    return mcs_gpu_is_instance(g->name);
}

static int attribute(const struct mcs_cuda *driver, CUdevice number, CUdevice_attribute a)
{
    int value = 0;

    return driver->device_get_attribute(&value, a, number) == CUDA_SUCCESS ? value : 0;
}

/* Needs no context, so it takes no memory of the device. */
static void look(const struct mcs_cuda *driver, int ordinal, int count, struct doctor_gpu *out)
{
    struct mcs_gpu_id id;
    CUdevice number, peer;
    size_t total = 0;
    CUuuid uuid;

    if (driver->device_get(&number, ordinal) != CUDA_SUCCESS)
        return;
    driver->device_get_name(out->name, sizeof(out->name), number);
    driver->device_get_pci_bus_id(out->pci, sizeof(out->pci), number);
    driver->device_total_mem(&total, number);
    out->total = total;
    if (driver->device_get_uuid(&uuid, number) == CUDA_SUCCESS) {
        memcpy(id.bytes, uuid.bytes, sizeof(id.bytes));
        mcs_gpu_id_print(&id, out->name, out->uuid);
    }
    out->compute_mode = attribute(driver, number, CU_DEVICE_ATTRIBUTE_COMPUTE_MODE);
    out->vmm = attribute(driver, number, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
    out->posix_handles =
        attribute(driver, number, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED);
    out->dmabuf = attribute(driver, number, CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED);
    /* as the agent wants it, transports/cuda/device.c */
    out->rdma = attribute(driver, number, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED) > 0 &&
                attribute(driver, number,
                          CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED) > 0 &&
                attribute(driver, number, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING) >=
                    CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER;
    for (int i = 0; i < count; i++) {
        int can = 0;

        if (i != ordinal && driver->device_get(&peer, i) == CUDA_SUCCESS &&
            driver->device_can_access_peer(&can, number, peer) == CUDA_SUCCESS && can != 0)
            out->peers++;
    }
}

static void ask(struct doctor_gpus *out)
{
    const struct mcs_cuda *driver;
    int count = 0;

    out->result = mcs_cuda_load(&driver, out->why, sizeof(out->why));
    if (out->result != 0)
        return;
    out->version = driver->version;
    driver->device_get_count(&count);
    out->count = (uint32_t)count < DOCTOR_GPUS ? (uint32_t)count : DOCTOR_GPUS;
    out->left_out = (uint32_t)count - out->count;
    for (uint32_t i = 0; i < out->count; i++)
        look(driver, (int)i, count, &out->gpus[i]);
}

static int64_t now_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* Bytes that came before the deadline, or the end of the pipe; -ETIMEDOUT: it was the deadline. */
static ssize_t take(int fd, void *out, size_t size, int timeout_ms)
{
    int64_t end = now_ms() + timeout_ms;
    size_t have = 0;

    while (have < size) {
        struct pollfd wait = {.fd = fd, .events = POLLIN};
        int64_t left = end - now_ms();
        int ready = left > 0 ? poll(&wait, 1, (int)left) : 0;
        ssize_t n;

        if (ready < 0 && errno == EINTR)
            continue;
        if (ready <= 0)
            return -ETIMEDOUT;
        n = read(fd, (char *)out + have, size - have);
        if (n <= 0)
            break;
        have += (size_t)n;
    }
    return (ssize_t)have;
}

static void tell(int fd)
{
    struct doctor_gpus seen = {.count = 0};
    const char *p = (const char *)&seen;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    ask(&seen);
    for (size_t done = 0; done < sizeof(seen);) {
        ssize_t n = write(fd, p + done, sizeof(seen) - done);

        if (n <= 0)
            break;
        done += (size_t)n;
    }
    _exit(0); /* no destructors of the driver's */
}

void doctor_gpus_ask(struct doctor_gpus *out, int timeout_ms)
{
    int ends[2], status = 0;
    ssize_t n;
    pid_t pid;

    memset(out, 0, sizeof(*out));
    if (pipe(ends) != 0) {
        out->result = -errno;
        snprintf(out->why, sizeof(out->why), "no pipe: %s", strerror(errno));
        return;
    }
    fflush(stdout);
    pid = fork();
    if (pid == 0) {
        close(ends[0]);
        tell(ends[1]);
    }
    close(ends[1]);
    n = pid < 0 ? 0 : take(ends[0], out, sizeof(*out), timeout_ms);
    close(ends[0]);
    if (pid > 0) {
        kill(pid, SIGKILL);
        /* one that hangs inside the driver may not end for a while: it is not waited for */
        waitpid(pid, &status, n == -ETIMEDOUT ? WNOHANG : 0);
    }
    if (n == (ssize_t)sizeof(*out))
        return;
    memset(out, 0, sizeof(*out));
    out->result = n == -ETIMEDOUT ? -ETIMEDOUT : -EIO;
    if (n == -ETIMEDOUT)
        snprintf(out->why, sizeof(out->why), "the GPU driver did not answer within %d s",
                 timeout_ms / 1000);
    else
        snprintf(out->why, sizeof(out->why), "the process that loaded the GPU driver ended%s",
                 WIFSIGNALED(status) ? ", killed by a signal" : " without a word");
}
