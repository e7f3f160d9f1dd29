/* SPDX-License-Identifier: Apache-2.0 */
#include "idle.h"

#include "client.h"

#include <errno.h>

int idle_main(int fd, void *context)
{
    static struct client clients[IDLE_CLIENTS_MAX];
    const struct idle_context *i = context;
    struct idle_request request;
    struct idle_answer answer = {0};
    uint32_t open = 0;
    int rc;

    while ((rc = proc_recv(fd, &request, sizeof(request), -1)) == 0) {
        while (open > request.clients)
            client_close(&clients[--open]);
        while (open < request.clients && open < IDLE_CLIENTS_MAX) {
            rc = client_open(&clients[open], i->socket, "idle", 0, NULL);
            if (rc != 0)
                goto out;
            open++;
        }
        proc_send(fd, &answer, sizeof(answer));
    }
    rc = rc == -EPIPE ? 0 : rc; /* the parent has closed its side: done */
out:
    while (open > 0)
        client_close(&clients[--open]);
    return rc;
}
