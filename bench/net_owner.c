/* SPDX-License-Identifier: Apache-2.0 */
#include "net_owner.h"

#include "client.h"
#include "pattern.h"
#include "proc.h"
#include "report.h"
#include "say.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

/* *page_size may be NULL. */
static int publish(struct client *k, const struct net_owner_context *x, uint8_t **memory,
                   uint64_t *page_size)
{
    mcshm_info info;
    uint64_t address;
    void *got = NULL;
    mcshm_status s;
    int rc = client_open(k, x->socket, "bench-owner", 0, NULL);

    if (rc != 0)
        return rc;
    s = mcshm_alloc(k->c, x->size, 2u << 20, NULL, &got);
    if (s == MCSHM_OK) {
        memset(got, 2, x->size); /* first touches, outside all measurements */
        s = mcshm_segment_publish(k->c, x->segment, MCSHM_SEGMENT_PUBLIC);
    }
    if (s == MCSHM_OK)
        s = mcshm_buffer_publish(k->c, got, x->size, MCSHM_ACCESS_READ | MCSHM_ACCESS_WRITE,
                                 &address);
    if (s == MCSHM_OK)
        s = mcshm_get_info(k->c, &info);
    if (s != MCSHM_OK)
        return say_status(k->c, s, "publishing the target's buffer");
    *memory = got;
    *page_size = info.page_size;
    return 0;
}

int net_owner_main(int fd, void *context)
{
    struct net_owner_answer answer = {.mismatches = 0};
    struct net_owner_request request;
    struct client k = {.c = NULL};
    uint8_t *memory;
    int rc = publish(&k, context, &memory, &answer.page_size);

    if (rc == 0)
        rc = proc_send(fd, &answer, sizeof(answer));
    while (rc == 0 && (rc = proc_recv(fd, &request, sizeof(request), -1)) == 0) {
        answer.mismatches = 0;
        if (request.fill)
            pattern_fill(memory + request.offset, request.bytes, request.seed);
        else
            answer.mismatches = pattern_check(memory + request.offset, request.bytes, request.seed);
        rc = proc_send(fd, &answer, sizeof(answer));
    }
    client_close(&k);
    return rc == -EPIPE ? 0 : rc; /* the parent has closed its side: done */
}

int net_owner_serve(const struct net_owner_context *x)
{
    struct client k = {.c = NULL};
    uint64_t page_size;
    uint8_t *memory;
    char text[32];
    int rc = publish(&k, x, &memory, &page_size);

    if (rc == 0) {
        say_note("%s has %s to be read and written by other hosts, until this program is ended",
                 x->segment, report_size(x->size, text, sizeof(text)));
        for (;;)
            pause();
    }
    client_close(&k);
    return rc;
}
