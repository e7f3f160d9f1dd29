/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `mcshm doctor rdma --peer HOST[:PORT]` beside `mcshm doctor rdma --serve` at the other host: bytes there and
 * back through both agents, compared, with the way they took.  What somebody with hardware runs first.
 */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "doctor.h"
#include "table.h"

#define SEGMENT "mcshm-doctor"
#define SERVED (UINT64_C(64) << 20)
#define LARGEST (UINT64_C(16) << 20)
#define ODD 40 /* bytes past a page's start, where everything begins */
#define PING_MS 5000u
#define TASK_US 10000000u
#define SAMPLES 200u                   /* transfers one after the other, of each size, at most */
#define SAMPLES_NS UINT64_C(300000000) /* and for about this long */
#define FLOOD (UINT64_C(64) << 20)     /* bytes at once, at most */
#define FLOOD_TASKS 64u

static const uint64_t sizes[] = {8,      256, 4096, 65536, UINT64_C(1) << 20, UINT64_C(4) << 20,
                                 LARGEST};
#define NSIZES (sizeof(sizes) / sizeof(sizes[0]))

static const struct column columns[] = {
    {"SIZE", "size", CELL_BYTES},        {"PATH", "path", CELL_TEXT},
    {"BYTES", "bytes", CELL_TEXT},       {"WRITE us", "write_us", CELL_COUNT},
    {"READ us", "read_us", CELL_COUNT},  {"WRITE/s", "write_rate", CELL_BYTES},
    {"READ/s", "read_rate", CELL_BYTES},
};
static const struct column devices[] = {
    {"NIC", "name", CELL_TEXT},
    {"LINK", "link", CELL_TEXT},
    {"GID", "gid", CELL_TEXT},
};
#define NCOLUMNS (sizeof(columns) / sizeof(columns[0]))

struct run {
    mcshm *c;
    mcshm_queue *q;
    mcshm_segment segment;
    uint64_t remote; /* where it begins in the segment */
    uint8_t *source, *sink;
    mcshm_path path; /* the last task's */
    bool rdma;       /* all tasks' */
    char why[400];   /* of the first failure */
};

static uint64_t now_ns(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

/* n equal tasks at once; how long until the last has ended, 0: one of them failed, and r->why tells. */
static uint64_t move(struct run *r, mcshm_opcode op, uint64_t size, unsigned n)
{
    mcshm_request q = {.opcode = op,
                       .deadline_us = TASK_US,
                       .segment = r->segment,
                       .remote_address = r->remote,
                       .local = op == MCSHM_WRITE ? r->source : r->sink,
                       .length = size};
    const char *verb = op == MCSHM_WRITE ? "WRITE" : "READ";
    mcshm_task_status s = {.state = MCSHM_STATE_COMPLETED};
    mcshm_request all[FLOOD_TASKS];
    mcshm_batch batch;
    mcshm_status status = mcshm_batch_alloc(r->q, n, &batch);
    uint64_t begin = now_ns(), end;

    for (unsigned i = 0; i < n; i++)
        all[i] = q;
    if (status == MCSHM_OK)
        status = mcshm_submit(r->q, batch, all, n);
    if (status == MCSHM_OK)
        status = mcshm_batch_wait(r->q, batch, (int64_t)TASK_US * 2);
    end = now_ns();
    if (status != MCSHM_OK) {
        snprintf(r->why, sizeof(r->why), "a %s of %llu bytes: %s", verb, (unsigned long long)size,
                 mcshm_strerror(status));
        return 0;
    }
    for (unsigned i = 0; i < n && s.state == MCSHM_STATE_COMPLETED; i++) {
        mcshm_task_poll(r->q, batch, i, &s);
        r->path = s.path;
        r->rdma = r->rdma && s.path == MCSHM_PATH_RDMA;
    }
    mcshm_batch_free(r->q, batch);
    if (s.state == MCSHM_STATE_COMPLETED)
        return end - begin + (end == begin);
    snprintf(r->why, sizeof(r->why), "a %s of %llu bytes ended %s, %s", verb,
             (unsigned long long)size, mcshm_state_name(s.state), mcshm_strerror(s.error));
    return 0;
}

/* Other bytes with each seed, and nowhere zero twice in a row. */
static void fill(uint8_t *p, uint64_t size, uint64_t seed)
{
    for (uint64_t i = 0; i < size; i++)
        p[i] = (uint8_t)((i + seed) * UINT64_C(0x9e3779b97f4a7c15) >> 56);
}

/* There and back. */
static bool verify(struct run *r, uint64_t size)
{
    fill(r->source, size, size + 1);
    memset(r->sink, 0, size);
    if (move(r, MCSHM_WRITE, size, 1) == 0 || move(r, MCSHM_READ, size, 1) == 0)
        return false;
    for (uint64_t i = 0; i < size; i++)
        if (r->sink[i] != r->source[i]) {
            snprintf(r->why, sizeof(r->why),
                     "byte %llu of %llu came back as 0x%02x, written was 0x%02x",
                     (unsigned long long)i, (unsigned long long)size, r->sink[i], r->source[i]);
            return false;
        }
    return true;
}

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return x < y ? -1 : x > y;
}

/* Median of transfers one after the other, in ns; 0: one failed. */
static uint64_t latency(struct run *r, mcshm_opcode op, uint64_t size)
{
    uint64_t took[SAMPLES], begin = now_ns();
    unsigned n = 0;

    while (n < SAMPLES && (n < 3 || now_ns() - begin < SAMPLES_NS))
        if ((took[n++] = move(r, op, size, 1)) == 0)
            return 0;
    qsort(took, n, sizeof(took[0]), by_value);
    return took[n / 2];
}

/* Bytes a second with many at once; 0: one failed. */
static double flood(struct run *r, mcshm_opcode op, uint64_t size)
{
    uint64_t n = FLOOD / size, took;

    n = n > FLOOD_TASKS ? FLOOD_TASKS : n;
    took = move(r, op, size, (unsigned)n);
    return took == 0 ? 0 : (double)(size * n) * 1e9 / (double)took;
}

/* A row of the table. False: something failed. */
static bool measure(struct run *r, uint64_t size, cJSON *rows)
{
    cJSON *o = cJSON_CreateObject();
    uint64_t write_ns = 0, read_ns = 0;
    double write_rate = 0, read_rate = 0;
    bool right = verify(r, size), done;

    done = right && (write_ns = latency(r, MCSHM_WRITE, size)) != 0 &&
           (read_ns = latency(r, MCSHM_READ, size)) != 0 &&
           (write_rate = flood(r, MCSHM_WRITE, size)) > 0 &&
           (read_rate = flood(r, MCSHM_READ, size)) > 0;
    cJSON_AddNumberToObject(o, "size", (double)size);
    cJSON_AddStringToObject(o, "path", mcshm_path_name(r->path));
    cJSON_AddStringToObject(o, "bytes", right ? "right" : "failed");
    if (done) {
        cJSON_AddNumberToObject(o, "write_us", (double)write_ns / 1000);
        cJSON_AddNumberToObject(o, "read_us", (double)read_ns / 1000);
        cJSON_AddNumberToObject(o, "write_rate", write_rate);
        cJSON_AddNumberToObject(o, "read_rate", read_rate);
    }
    cJSON_AddItemToArray(rows, o);
    return done;
}

/* ---- the connection ------------------------------------------------------------------- */

static mcshm_status connect_to(const struct doctor *d, bool strict, mcshm **out)
{
    mcshm_options o;

    mcshm_options_init(&o);
    o.socket_path = d->socket;
    o.name = "mcshm doctor";
    o.reconnect_ms = 0; /* nothing to come back for */
    o.caller_max = 0;   /* through the agent, whatever is asked */
    o.strict = strict;
    return mcshm_connect(&o, out);
}

/* Where the other side's [peer] listen is: a port that is not given is our own's. False: there is none. */
static bool find_address(const struct doctor *d, const char *peer, char *out, size_t size)
{
    const char *own = strrchr(doctor_setting(d, "peer.listen"), ':');
    const char *colon = strrchr(peer, ':');
    bool bare_v6 = peer[0] != '[' && colon != NULL && strchr(peer, ':') != colon;

    if (colon != NULL && !bare_v6 && (peer[0] != '[' || colon[-1] == ']')) {
        snprintf(out, size, "%s", peer);
        return true;
    }
    if (own == NULL || strcmp(own, ":0") == 0)
        return false;
    snprintf(out, size, bare_v6 ? "[%s]%s" : "%s%s", peer, own);
    return true;
}

/* Opens the served segment and takes memory. False, with r->why. */
static bool prepare(struct run *r, const struct doctor *d, const char *address, bool strict)
{
    mcshm_buffer buffer;
    size_t count = 1;
    char name[320];
    void *memory = NULL;
    mcshm_status status = connect_to(d, strict, &r->c);

    snprintf(name, sizeof(name), "%s/" SEGMENT, address);
    if (status == MCSHM_OK)
        status = mcshm_segment_open(r->c, name, &r->segment);
    if (status == MCSHM_NOT_FOUND) {
        snprintf(r->why, sizeof(r->why),
                 "nothing serves there: start `mcshm doctor rdma --serve` on that host, and ask "
                 "again");
        return false;
    }
    if (status == MCSHM_OK)
        status = mcshm_segment_describe(r->c, r->segment, &buffer, &count);
    if (status == MCSHM_OK && (count == 0 || buffer.size < LARGEST + ODD)) {
        snprintf(r->why, sizeof(r->why), "what is served as " SEGMENT " there is not the doctor's");
        return false;
    }
    if (status == MCSHM_OK)
        status = mcshm_alloc(r->c, 2 * (LARGEST + 4096), 4096, NULL, &memory);
    if (status == MCSHM_OK)
        status = mcshm_queue_open(r->c, NULL, &r->q);
    if (status != MCSHM_OK) {
        snprintf(r->why, sizeof(r->why), "%s",
                 mcshm_last_error(r->c)[0] != '\0' ? mcshm_last_error(r->c)
                                                   : mcshm_strerror(status));
        return false;
    }
    r->source = (uint8_t *)memory + ODD;
    r->sink = (uint8_t *)memory + LARGEST + 4096 + 1;
    r->remote = buffer.address + ODD;
    r->rdma = true;
    return true;
}

static void finish(struct run *r)
{
    if (r->q != NULL)
        mcshm_queue_close(r->q);
    mcshm_close(r->c);
    r->q = NULL;
    r->c = NULL;
}

/* ---- what the agent tells of that peer -------------------------------------------------- */

static cJSON *query(mcshm *c, mcshm_query_what what)
{
    char *text = NULL;
    cJSON *answer = mcshm_query(c, what, &text) == MCSHM_OK ? cJSON_Parse(text) : NULL;

    free(text);
    return answer;
}

/* The rows of an answer's list whose field `key` is this text, and of the text "" all; taken out of it. */
static cJSON *pick(cJSON *answer, const char *list, const char *key, const char *value)
{
    cJSON *out = cJSON_CreateArray();
    cJSON *rows = cJSON_GetObjectItemCaseSensitive(answer, list);
    cJSON *row = rows != NULL ? rows->child : NULL, *next;

    for (; row != NULL; row = next) {
        const cJSON *v = cJSON_GetObjectItemCaseSensitive(row, key);

        next = row->next;
        if (value[0] == '\0' || (cJSON_IsString(v) && strcmp(v->valuestring, value) == 0))
            cJSON_AddItemToArray(out, cJSON_DetachItemViaPointer(rows, row));
    }
    return out;
}

/* Adds "rails" and "nics". The peer is known by its incarnation: it may have been asked for by another name. */
static void add_views(mcshm *c, uint64_t incarnation, cJSON *out)
{
    cJSON *peers = query(c, MCSHM_QUERY_PEERS), *rails = query(c, MCSHM_QUERY_RAILS);
    cJSON *nics = query(c, MCSHM_QUERY_NICS), *rows, *address;
    char hex[24];

    snprintf(hex, sizeof(hex), "0x%llx", (unsigned long long)incarnation);
    rows = pick(peers, "peers", "incarnation", hex);
    address = cJSON_GetObjectItemCaseSensitive(cJSON_GetArrayItem(rows, 0), "address");
    cJSON_AddItemToObject(out, "rails",
                          cJSON_IsString(address)
                              ? pick(rails, "rails", "peer", address->valuestring)
                              : cJSON_CreateArray());
    cJSON_AddItemToObject(out, "nics", pick(nics, "nics", "", ""));
    cJSON_AddItemToObject(out, "peer", rows);
    cJSON_Delete(peers);
    cJSON_Delete(rails);
    cJSON_Delete(nics);
}

/* ---- all of it --------------------------------------------------------------------------- */

/* The transfers of all sizes; rows, and what the agent tells after them, into `out`. */
static enum severity transfers(const struct doctor *d, const char *address, uint64_t incarnation,
                               cJSON *out, char *why, size_t why_size)
{
    cJSON *rows = cJSON_AddArrayToObject(out, "sizes");
    struct run r = {.c = NULL};
    enum severity verdict = DOCTOR_BAD;
    bool right = prepare(&r, d, address, true);

    for (size_t i = 0; i < NSIZES && right; i++)
        right = measure(&r, sizes[i], rows);
    snprintf(why, why_size, "%s", r.why);
    if (right && r.rdma) {
        verdict = DOCTOR_OK;
        snprintf(why, why_size, "all bytes were right, and all went over RDMA");
    } else if (right) {
        verdict = DOCTOR_WARN;
        snprintf(why, why_size, "all bytes were right, but not all went over RDMA (the last: %s)",
                 mcshm_path_name(r.path));
    } else if (r.q != NULL) { /* does anything work? */
        struct run any = {.c = NULL};

        if (prepare(&any, d, address, false) && verify(&any, 65536))
            snprintf(why, why_size, "%.300s; what may take any way works, over %s", r.why,
                     mcshm_path_name(any.path));
        finish(&any);
    }
    if (r.c != NULL) /* while the memory is there that is registered for it */
        add_views(r.c, incarnation, out);
    finish(&r);
    return verdict;
}

static void print(const cJSON *o, const char *address, enum severity verdict, const char *why)
{
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(o, "sizes");

    printf("\npeer %s\n", address);
    if (cJSON_GetArraySize(list) != 0)
        table_print(columns, NCOLUMNS, list);
    list = cJSON_GetObjectItemCaseSensitive(o, "nics");
    if (cJSON_GetArraySize(list) != 0) {
        printf("\ndevices of this host's agent\n");
        cli_print_list("nics", list);
    }
    list = cJSON_GetObjectItemCaseSensitive(
        cJSON_GetArrayItem(cJSON_GetObjectItemCaseSensitive(o, "peer"), 0), "nics");
    if (cJSON_GetArraySize(list) != 0) {
        printf("\ndevices that it takes connections on\n");
        table_print(devices, sizeof(devices) / sizeof(devices[0]), list);
    }
    list = cJSON_GetObjectItemCaseSensitive(o, "rails");
    if (cJSON_GetArraySize(list) != 0) {
        printf("\nrails to it\n");
        cli_print_list("rails", list);
    }
    printf("\n%s: %s\n",
           verdict == DOCTOR_OK     ? "ok"
           : verdict == DOCTOR_WARN ? "WARN"
                                    : "BAD",
           why);
}

enum severity doctor_peer(const struct doctor *d, const char *peer, cJSON *out)
{
    enum severity verdict = DOCTOR_BAD;
    char address[300], why[500];
    mcshm_peer info;
    mcshm *c = NULL;
    mcshm_status status;

    if (!find_address(d, peer, address, sizeof(address))) {
        snprintf(address, sizeof(address), "%.290s", peer);
        snprintf(why, sizeof(why), "name its port, as in its [peer] listen: --peer %s:PORT", peer);
        goto tell;
    }
    status = connect_to(d, false, &c);
    if (status == MCSHM_OK)
        status = mcshm_ping(c, address, PING_MS, &info);
    if (status != MCSHM_OK) {
        snprintf(why, sizeof(why), "its agent cannot be asked: %s",
                 mcshm_last_error(c)[0] != '\0' ? mcshm_last_error(c) : mcshm_strerror(status));
        goto tell;
    }
    cJSON_AddStringToObject(out, "version", info.agent_version);
    cJSON_AddNumberToObject(out, "rtt_us", (double)info.rtt_ns / 1000);
    verdict = transfers(d, address, info.incarnation, out, why, sizeof(why));
tell:
    mcshm_close(c);
    cJSON_AddStringToObject(out, "address", address);
    cJSON_AddStringToObject(out, "verdict", why);
    cJSON_AddBoolToObject(out, "rdma", verdict == DOCTOR_OK);
    if (!d->cli->json)
        print(out, address, verdict, why);
    return verdict;
}

/* ---- the other side ------------------------------------------------------------------------ */

int doctor_serve(const struct doctor *d)
{
    const struct timespec pause = {.tv_sec = 1};
    uint64_t published;
    mcshm_options o;
    mcshm_status status;
    mcshm_notification dropped;
    void *memory = NULL;
    mcshm *c = NULL;
    sigset_t ends;
    int res = CLI_FAILED;

    sigemptyset(&ends);
    sigaddset(&ends, SIGINT);
    sigaddset(&ends, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &ends, NULL);
    mcshm_options_init(&o);
    o.socket_path = d->socket;
    o.name = SEGMENT;
    status = mcshm_connect(&o, &c);
    if (status == MCSHM_OK)
        status = mcshm_alloc(c, SERVED, 4096, NULL, &memory);
    if (status == MCSHM_OK)
        status = mcshm_buffer_publish(c, memory, SERVED, MCSHM_ACCESS_READ | MCSHM_ACCESS_WRITE,
                                      &published);
    if (status == MCSHM_OK)
        status = mcshm_segment_publish(c, SEGMENT, MCSHM_SEGMENT_PUBLIC);
    if (status != MCSHM_OK) {
        cli_error("cannot serve", status, c);
        goto out;
    }
    printf("serving " SEGMENT ", 64M that every peer may read and write, until ^C: "
           "mcshm doctor rdma --peer THIS_HOST%s there\n",
           strrchr(doctor_setting(d, "peer.listen"), ':') != NULL
               ? strrchr(doctor_setting(d, "peer.listen"), ':')
               : "");
    fflush(stdout);
    do { /* notifications, which peers may send, are dropped; the call tells when the session has ended */
        status = mcshm_notify_recv(c, &dropped, 1000);
    } while ((status == MCSHM_OK || status == MCSHM_TIMEOUT) &&
             sigtimedwait(&ends, NULL, &pause) < 0);
    res = status == MCSHM_OK || status == MCSHM_TIMEOUT ? CLI_OK
                                                        : cli_error("the agent is gone", status, c);
out:
    mcshm_close(c);
    return res;
}
