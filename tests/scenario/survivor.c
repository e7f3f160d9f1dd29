/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A client that writes and compares for some seconds, whatever becomes of its agent meanwhile, for deb-boot.sh:
 * survivor SECONDS. Says how many tasks completed and failed and what the longest pause was; ends with 1 if a
 * completed task's bytes are not where they should be, or if a call fails.
 */
#include <mcshm.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SIZE 4096u

static mcshm *c;

static int check(mcshm_status status, const char *what)
{
    if (status != MCSHM_OK)
        fprintf(stderr, "%s: %s: %s\n", what, mcshm_strerror(status), mcshm_last_error(c));
    return status != MCSHM_OK;
}

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

int main(int argc, char **argv)
{
    unsigned long completed = 0, failed = 0, wrong = 0;
    double end = now() + (argc > 1 ? atof(argv[1]) : 1), last, pause = 0;
    mcshm_request r = {.opcode = MCSHM_WRITE, .length = SIZE, .priority = MCSHM_CLASS_NORMAL};
    mcshm_queue *q;
    mcshm_batch b;
    mcshm_options o;
    void *mem;
    unsigned char *source, *target;

    mcshm_options_init(&o);
    o.caller_max = 0; /* all of it by the agent */
    if (check(mcshm_connect(&o, &c), "connect") ||
        check(mcshm_queue_open(c, NULL, &q), "queue_open") ||
        check(mcshm_alloc(c, 2 * SIZE, 0, NULL, &mem), "alloc") ||
        check(mcshm_segment_publish(c, "survivor", 0), "publish") ||
        check(mcshm_buffer_publish(c, mem, SIZE, MCSHM_ACCESS_WRITE, &r.remote_address),
              "buffer") ||
        check(mcshm_segment_open(c, "survivor", &r.segment), "open"))
        return 1;
    target = mem;
    source = target + SIZE;
    r.local = source;
    puts("ready");
    fflush(stdout);
    for (last = now(); last < end;) {
        mcshm_task_status t;
        double at;

        memset(source, (int)(completed % 251), SIZE);
        if (check(mcshm_batch_alloc(q, 1, &b), "batch_alloc") ||
            check(mcshm_submit(q, b, &r, 1), "submit") ||
            check(mcshm_batch_wait(q, b, 30000000), "wait") ||
            check(mcshm_task_poll(q, b, 0, &t), "poll") ||
            check(mcshm_batch_free(q, b), "batch_free"))
            return 1;
        if (t.state == MCSHM_STATE_COMPLETED) {
            completed++;
            wrong += memcmp(source, target, SIZE) != 0;
        } else {
            failed++;
        }
        at = now();
        pause = at - last > pause ? at - last : pause;
        last = at;
    }
    printf("%lu completed, %lu failed, %lu wrong, longest pause %.0f ms\n", completed, failed,
           wrong, pause * 1000);
    mcshm_close(c);
    return wrong != 0 || completed == 0;
}
