/* SPDX-License-Identifier: Apache-2.0 */
#include "target.h"

#include "client.h"
#include "say.h"

#include <errno.h>
#include <stdbool.h>

int target_main(int fd, void *context)
{
    const struct target_context *t = context;
    struct target_request request;
    struct target_answer answer = {0};
    struct client k;
    mcshm_info info;
    mcshm_status s;
    void *memory = NULL;
    bool published = false;
    int rc;

    rc = client_open(&k, t->socket, t->segment, 0, NULL);
    if (rc != 0)
        return rc;
    s = mcshm_alloc(k.c, t->size, 2u << 20, NULL, &memory);
    if (s == MCSHM_OK)
        s = mcshm_segment_publish(k.c, t->segment, 0);
    if (s == MCSHM_OK)
        s = mcshm_get_info(k.c, &info);
    if (s != MCSHM_OK) {
        rc = say_status(k.c, s, "preparing the target");
        goto out;
    }
    answer.page_size = info.page_size;
    while ((rc = proc_recv(fd, &request, sizeof(request), -1)) == 0) {
        if (published)
            s = mcshm_buffer_withdraw(k.c, memory, t->size);
        if (s == MCSHM_OK)
            s = mcshm_buffer_publish(k.c, memory, t->size, request.access, &answer.address);
        if (s != MCSHM_OK) {
            rc = say_status(k.c, s, "publishing the target");
            goto out;
        }
        published = true;
        proc_send(fd, &answer, sizeof(answer));
    }
    rc = rc == -EPIPE ? 0 : rc; /* the parent has closed its side: done */
out:
    client_close(&k);
    return rc;
}
