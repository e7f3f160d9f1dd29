/* SPDX-License-Identifier: Apache-2.0 */
/* The process on the other side: it publishes device memory, and looks at what came there by itself. */
#include "gpu_run.h"

#include "client.h"
#include "device.h"
#include "proc.h"
#include "say.h"

#include <errno.h>

struct target {
    const struct gpu_context *x;
    struct device device;
    struct client k;
    uint64_t memory;
};

static int publish(struct target *t, uint64_t *address)
{
    mcshm_status s = mcshm_segment_publish(t->k.c, t->x->segment, 0);

    if (s == MCSHM_OK)
        s = mcshm_buffer_publish(t->k.c, (void *)(uintptr_t)t->memory, t->x->region,
                                 MCSHM_ACCESS_READ | MCSHM_ACCESS_WRITE, address);
    return s == MCSHM_OK ? 0 : say_status(t->k.c, s, "publishing device memory");
}

static int do_job(struct target *t, const struct gpu_job *job, struct gpu_result *out)
{
    switch (job->what) {
    case GPU_OPEN:
        return publish(t, &out->value);
    case GPU_PUT:
        return device_put(&t->device, t->memory, t->x->desk, job->value);
    case GPU_GET:
        return device_get(&t->device, t->x->desk, t->memory, job->value);
    default:
        return say_error(-EPROTO, "the target was asked for what it does not do");
    }
}

int gpu_target_main(int fd, void *context)
{
    struct target t = {.x = context};
    void *memory = NULL;
    struct gpu_job job;
    mcshm_status s;
    int rc = device_open(t.x->location, &t.device);

    if (rc == 0)
        rc = client_open(&t.k, t.x->socket, t.x->segment, 0, NULL);
    if (rc != 0)
        goto out;
    s = mcshm_alloc(t.k.c, t.x->region, 0, t.x->location, &memory);
    if (s != MCSHM_OK)
        rc = say_status(t.k.c, s, "allocating the target's device memory");
    t.memory = (uintptr_t)memory;
    while (rc == 0 && (rc = proc_recv(fd, &job, sizeof(job), -1)) == 0) {
        struct gpu_result result = {.value = 0};

        rc = do_job(&t, &job, &result);
        if (rc == 0)
            rc = proc_send(fd, &result, sizeof(result));
    }
    client_close(&t.k);
out:
    device_close(&t.device);
    return rc == -EPIPE ? 0 : rc; /* the parent has closed its side: done */
}
