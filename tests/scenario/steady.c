/* SPDX-License-Identifier: Apache-2.0 */
/* A polling client in steady state, for test_no_syscalls.sh: what happens between the two lines
 * that it writes is what an application does all day. */
#include <mcshm.h>
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>

#define ROUNDS 200000

static mcshm *c;

static int check(mcshm_status status, const char *what)
{
    if (status != MCSHM_OK)
        fprintf(stderr, "%s: %s: %s\n", what, mcshm_strerror(status), mcshm_last_error(c));
    return status != MCSHM_OK;
}

/* As mcshm_objects(), but for the waiting: it polls. */
static int ask(mcshm_queue *q, const mcshm_object_request *r, mcshm_object_result *results)
{
    mcshm_batch b;

    if (check(mcshm_batch_alloc(q, 1, &b), "batch") ||
        check(mcshm_submit_objects(q, b, r), "submit objects"))
        return 1;
    while (mcshm_batch_poll(q, b, NULL) == MCSHM_BUSY)
        ;
    return check(mcshm_object_results(q, b, 0, 0, results, r->count), "results") ||
           check(mcshm_batch_free(q, b), "free");
}

/* One round of everything that can be done with objects: put, looked up, got, held, given back. */
static int objects(mcshm_queue *q, void *memory, int round)
{
    mcshm_key keys[2] = {{"steady", 6}, {"nobody", 6}};
    mcshm_span spans[2] = {{.address = memory, .size = 5000},
                           {.address = (char *)memory + 8192, .size = 5000}};
    mcshm_object_result results[2];
    mcshm_object_request r = {.op = MCSHM_PUT,
                              .flags = round % 8 == 0 ? MCSHM_OBJECT_UPSERT : 0,
                              .priority = MCSHM_CLASS_NORMAL,
                              .keys = keys,
                              .count = 1,
                              .spans = spans};

    if (ask(q, &r, results) || check(results[0].status, "the put"))
        return 1;
    r.op = MCSHM_EXIST;
    r.flags = 0;
    r.count = 2;
    if (ask(q, &r, results) || check(results[0].status, "existence") ||
        results[1].status != MCSHM_NOT_FOUND)
        return 1;
    r.op = MCSHM_GET;
    r.spans = spans + 1;
    r.count = 1;
    if (ask(q, &r, results) || check(results[0].status, "the get"))
        return 1;
    r.op = MCSHM_HOLD;
    if (ask(q, &r, results) || check(results[0].status, "the hold") || results[0].address == NULL ||
        check(mcshm_object_release(q, &results[0].hold, 1, NULL), "release"))
        return 1;
    return 0;
}

int main(int argc, char **argv)
{
    mcshm_piece pieces[4] = {{0, 0, 64}, {128, 256, 64}, {512, 512, 128}, {2048, 1024, 64}};
    mcshm_stride stride = {.count = 4, .block = 64, .local_stride = 64, .remote_stride = 128};
    mcshm_request r = {.opcode = MCSHM_WRITE, .priority = MCSHM_CLASS_NORMAL, .length = 64};
    mcshm_options o;
    mcshm_segment segment;
    mcshm_queue *q;
    uint64_t address;
    void *memory;

    mcshm_options_init(&o);
    o.socket_path = argc > 1 ? argv[1] : NULL;
    o.caller_max = 0; /* through the ring, every time */
    if (check(mcshm_connect(&o, &c), "connect") || check(mcshm_queue_open(c, NULL, &q), "queue") ||
        check(mcshm_alloc(c, 1 << 20, 0, NULL, &memory), "alloc") ||
        check(mcshm_segment_publish(c, "steady", 0), "publish") ||
        check(mcshm_buffer_publish(c, (char *)memory + (1 << 19), 1 << 19,
                                   MCSHM_ACCESS_READ | MCSHM_ACCESS_WRITE, &address),
              "buffer") ||
        check(mcshm_segment_open(c, "steady", &segment), "open"))
        return 1;
    r.local = memory;
    r.segment = segment;
    r.remote_address = address;
    for (int i = 0; i < ROUNDS + 1000; i++) {
        mcshm_task_status t;
        mcshm_batch b;

        if (i == 1000 && write(STDOUT_FILENO, "steady from here\n", 17) != 17)
            return 1;
        if (check(mcshm_batch_alloc(q, 3, &b), "batch") ||
            check(mcshm_submit(q, b, &r, 1), "submit") ||
            check(mcshm_submit_list(q, b, &r, pieces, 4), "list") ||
            check(mcshm_submit_stride(q, b, &r, &stride), "stride"))
            return 1;
        while (mcshm_batch_poll(q, b, NULL) == MCSHM_BUSY)
            ;
        if (check(mcshm_task_poll(q, b, 2, &t), "task") || t.state != MCSHM_STATE_COMPLETED ||
            check(mcshm_batch_free(q, b), "free"))
            return 1;
        if ((i < 1000 || i % 64 == 0) && objects(q, memory, i))
            return 1;
    }
    if (write(STDOUT_FILENO, "up to here\n", 11) != 11)
        return 1;
    mcshm_close(c);
    return 0;
}
