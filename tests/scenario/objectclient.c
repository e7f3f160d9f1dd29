/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads of one process that do everything with the same objects at once, for test_store_threads.sh:
 *
 *   objectclient SOCKET ROUNDS
 *
 * Each thread has a queue of the one connection.  A value says by its first word what the rest of it is, so
 * that whoever reads one can tell a whole value from any mixture, also while it is replaced and removed.
 */
#include <mcshm.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define THREADS 5u
#define KEYS 24u
#define BATCH 6u
#define LARGEST (48u << 10)
#define HOLDS 16u

static mcshm *c;
static unsigned rounds;

struct worker {
    pthread_t thread;
    mcshm_queue *q;
    uint64_t seed;
    uint8_t *memory;
    bool staged; /* private memory */
    unsigned stored, found, missing;
    struct {
        uint64_t hold, size;
        const void *at;
    } holds[HOLDS];
};

static void wrong(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));

static void wrong(const char *format, ...)
{
    va_list ap;

    va_start(ap, format);
    vfprintf(stderr, format, ap);
    va_end(ap);
    fprintf(stderr, ": %s\n", mcshm_last_error(NULL));
    exit(1);
}

static void check(mcshm_status status, const char *what)
{
    if (status != MCSHM_OK)
        wrong("%s: %s", what, mcshm_strerror(status));
}

static uint64_t next(uint64_t *seed)
{
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    return *seed;
}

/* Memory goes from one thread to the next through the agent, where ThreadSanitizer sees nothing of it. */
#define BY_THE_AGENT __attribute__((no_sanitize("thread")))

/* A value: its seed, and words made of it. */
BY_THE_AGENT static void make(uint8_t *at, uint64_t size, uint64_t seed)
{
    for (uint64_t i = 0; i + 8 <= size; i += 8) {
        memcpy(at + i, &seed, 8);
        seed = seed * 6364136223846793005u + 1442695040888963407u;
    }
}

BY_THE_AGENT static void verify(const void *bytes, uint64_t size, const char *how)
{
    const uint8_t *at = bytes;
    uint64_t seed, word;

    if (size % 8 != 0 || size > LARGEST)
        wrong("%s: an object of %llu bytes", how, (unsigned long long)size);
    if (size == 0)
        return;
    memcpy(&seed, at, 8);
    for (uint64_t i = 0; i < size; i += 8) {
        memcpy(&word, at + i, 8);
        if (word != seed)
            wrong("%s: a mixture at %llu of %llu", how, (unsigned long long)i,
                  (unsigned long long)size);
        seed = seed * 6364136223846793005u + 1442695040888963407u;
    }
}

struct names {
    char text[BATCH][16];
    mcshm_key keys[BATCH];
};

static unsigned name_some(struct worker *w, struct names *n)
{
    unsigned count = 1 + (unsigned)(next(&w->seed) % BATCH);

    for (unsigned i = 0; i < count; i++) {
        snprintf(n->text[i], sizeof(n->text[i]), "t/%u", (unsigned)(next(&w->seed) % KEYS));
        n->keys[i] = (mcshm_key){.bytes = n->text[i], .size = strlen(n->text[i])};
    }
    return count;
}

static void ask(struct worker *w, mcshm_object_request *r, mcshm_object_result *results,
                const char *what)
{
    r->priority = MCSHM_CLASS_NORMAL;
    check(mcshm_objects(w->q, r, results, NULL, -1), what);
}

/* What a key may say while others put, remove and hold it. */
static bool is_fine(mcshm_status status)
{
    return status == MCSHM_OK || status == MCSHM_NOT_FOUND || status == MCSHM_IN_USE ||
           status == MCSHM_EXISTS || status == MCSHM_NOT_OWNER;
}

static void put(struct worker *w)
{
    struct names n;
    mcshm_object_result results[BATCH];
    mcshm_span spans[BATCH];
    uint32_t counts[BATCH];
    unsigned count = name_some(w, &n), used = 0;
    mcshm_object_request r = {.op = MCSHM_PUT,
                              .flags = next(&w->seed) % 4 != 0 ? MCSHM_OBJECT_UPSERT : 0,
                              .keys = n.keys,
                              .count = count,
                              .spans = spans,
                              .span_counts = counts};

    for (unsigned i = 0; i < count; i++) {
        uint64_t size = next(&w->seed) % (LARGEST / 8 + 1) * 8;

        counts[i] = size != 0;
        if (size == 0)
            continue;
        spans[used++] = (mcshm_span){.address = w->memory + i * LARGEST, .size = size};
        make(w->memory + i * LARGEST, size, next(&w->seed));
    }
    ask(w, &r, results, "put");
    for (unsigned i = 0; i < count; i++) {
        if (!is_fine(results[i].status))
            wrong("put of %s: %s", n.text[i], mcshm_strerror(results[i].status));
        w->stored += results[i].status == MCSHM_OK;
    }
}

static void get(struct worker *w)
{
    struct names n;
    mcshm_object_result results[BATCH];
    mcshm_span spans[BATCH];
    unsigned count = name_some(w, &n);
    mcshm_object_request r = {.op = MCSHM_GET,
                              .flags = next(&w->seed) % 2 != 0 ? MCSHM_OBJECT_VERIFY : 0,
                              .keys = n.keys,
                              .count = count,
                              .spans = spans};

    for (unsigned i = 0; i < count; i++)
        spans[i] = (mcshm_span){.address = w->memory + i * LARGEST, .size = LARGEST};
    ask(w, &r, results, "get");
    for (unsigned i = 0; i < count; i++) {
        if (!is_fine(results[i].status))
            wrong("get of %s: %s", n.text[i], mcshm_strerror(results[i].status));
        w->found += results[i].status == MCSHM_OK;
        w->missing += results[i].status != MCSHM_OK;
        if (results[i].status == MCSHM_OK)
            verify(w->memory + i * LARGEST, results[i].size, "get");
    }
}

static void let_go(struct worker *w, unsigned i)
{
    if (w->holds[i].hold == 0)
        return;
    verify(w->holds[i].at, w->holds[i].size, "held to the end");
    while (mcshm_object_release(w->q, &w->holds[i].hold, 1, NULL) == MCSHM_RING_FULL)
        ;
    w->holds[i].hold = 0;
}

static void hold(struct worker *w)
{
    struct names n;
    mcshm_object_result results[BATCH];
    unsigned count = name_some(w, &n);
    mcshm_object_request r = {.op = MCSHM_HOLD, .keys = n.keys, .count = count};

    ask(w, &r, results, "hold");
    for (unsigned i = 0; i < count; i++) {
        unsigned at = (unsigned)(next(&w->seed) % HOLDS);

        if (!is_fine(results[i].status))
            wrong("hold of %s: %s", n.text[i], mcshm_strerror(results[i].status));
        if (results[i].status != MCSHM_OK)
            continue;
        verify(results[i].address, results[i].size, "hold");
        let_go(w, at);
        w->holds[at].hold = results[i].hold;
        w->holds[at].at = results[i].address;
        w->holds[at].size = results[i].size;
    }
}

static void create(struct worker *w)
{
    struct names n;
    mcshm_object_result results[BATCH];
    uint64_t sizes[BATCH], holds[BATCH];
    unsigned count = name_some(w, &n), made = 0;
    mcshm_object_request r = {.op = MCSHM_CREATE,
                              .flags = MCSHM_OBJECT_UPSERT,
                              .keys = n.keys,
                              .count = count,
                              .sizes = sizes,
                              .holds = holds};

    for (unsigned i = 0; i < count; i++)
        sizes[i] = next(&w->seed) % (LARGEST / 8 + 1) * 8;
    ask(w, &r, results, "create");
    for (unsigned i = 0; i < count; i++) {
        if (!is_fine(results[i].status))
            wrong("create of %s: %s", n.text[i], mcshm_strerror(results[i].status));
        if (results[i].status != MCSHM_OK)
            continue;
        if (results[i].address != NULL)
            make(results[i].address, sizes[i], next(&w->seed));
        holds[made++] = results[i].hold;
    }
    if (made == 0)
        return;
    if (next(&w->seed) % 8 == 0) { /* given up */
        while (mcshm_object_release(w->q, holds, made, NULL) == MCSHM_RING_FULL)
            ;
        return;
    }
    r = (mcshm_object_request){.op = MCSHM_SEAL, .holds = holds, .count = made};
    ask(w, &r, results, "seal");
    for (unsigned i = 0; i < made; i++) {
        if (!is_fine(results[i].status))
            wrong("a seal: %s", mcshm_strerror(results[i].status));
        w->stored += results[i].status == MCSHM_OK;
    }
}

static void look(struct worker *w)
{
    struct names n;
    mcshm_object_result results[BATCH];
    unsigned count = name_some(w, &n);
    mcshm_object_request r = {
        .op = next(&w->seed) % 3 != 0 ? MCSHM_EXIST : MCSHM_REMOVE, .keys = n.keys, .count = count};

    if (r.op == MCSHM_REMOVE && next(&w->seed) % 2 != 0)
        r.flags = MCSHM_OBJECT_FORCE;
    ask(w, &r, results, "look");
    for (unsigned i = 0; i < count; i++) {
        if (!is_fine(results[i].status))
            wrong("%s of %s: %s", r.op == MCSHM_EXIST ? "exist" : "remove", n.text[i],
                  mcshm_strerror(results[i].status));
    }
}

/* Control calls, which the threads' mutex is for. */
static void control(struct worker *w)
{
    mcshm_key key = {"t/1", 3};
    char *json = NULL;
    mcshm_status status;
    void *p;

    switch (next(&w->seed) % 3) {
    case 0:
        check(mcshm_objects_list(c, "t/", 2, 0, 0, 100, &json), "list");
        break;
    case 1:
        status = mcshm_object_stat(c, &key, &json);
        if (status != MCSHM_NOT_FOUND)
            check(status, "stat");
        break;
    default:
        check(mcshm_alloc(c, 100000, 0, NULL, &p), "alloc");
        check(mcshm_free(c, p), "free");
    }
    free(json);
}

static void *work(void *arg)
{
    static void (*const what[])(struct worker * w) = {put,  put,  put,  get,    get,  get,
                                                      hold, hold, hold, create, look, control};
    struct worker *w = arg;

    for (unsigned i = 0; i < rounds; i++)
        what[next(&w->seed) % (i % 16 == 0 ? 12 : 11)](w);
    for (unsigned i = 0; i < HOLDS; i++)
        let_go(w, i);
    return NULL;
}

static void set_up(struct worker *w, unsigned number, uint64_t seed)
{
    void *p;

    w->seed = seed + number * 0x9e3779b97f4a7c15u;
    w->staged = number == 0;
    check(mcshm_queue_open(c, NULL, &w->q), "queue");
    if (w->staged) {
        w->memory = malloc(BATCH * LARGEST);
        check(w->memory != NULL ? mcshm_register(c, w->memory, BATCH * LARGEST) : MCSHM_NO_MEMORY,
              "private memory");
    } else {
        check(mcshm_alloc(c, BATCH * LARGEST, 0, NULL, &p), "alloc");
        w->memory = p;
    }
}

int main(int argc, char **argv)
{
    static struct worker workers[THREADS];
    unsigned stored = 0, found = 0, missing = 0;
    mcshm_options o;

    rounds = argc > 2 ? (unsigned)atoi(argv[2]) : 1000;
    mcshm_options_init(&o);
    o.socket_path = argc > 1 ? argv[1] : NULL;
    check(mcshm_connect(&o, &c), "connect");
    for (unsigned i = 0; i < THREADS; i++)
        set_up(&workers[i], i, (uint64_t)rounds * 7919 + (argc > 3 ? (uint64_t)atoi(argv[3]) : 0));
    for (unsigned i = 0; i < THREADS; i++)
        if (pthread_create(&workers[i].thread, NULL, work, &workers[i]) != 0)
            wrong("no thread");
    for (unsigned i = 0; i < THREADS; i++) {
        struct worker *w = &workers[i];

        pthread_join(w->thread, NULL);
        check(mcshm_queue_close(w->q), "close");
        if (w->staged)
            check(mcshm_unregister(c, w->memory), "unregister");
        free(w->staged ? w->memory : NULL);
        stored += w->stored;
        found += w->found;
        missing += w->missing;
    }
    mcshm_close(c);
    printf("stored %u, found %u, missing %u\n", stored, found, missing);
    return stored != 0 && found != 0 ? 0 : 1;
}
