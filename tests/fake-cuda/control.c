/* SPDX-License-Identifier: Apache-2.0 */
/* The way into every call: counting, rules of the test, misuse; the control file, the settings; handles. */
#include "inside.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

struct fake_state fake = {
    .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER, .control_fd = -1};

static pthread_once_t once = PTHREAD_ONCE_INIT;
static __thread enum fake_call calling;

static const char *const names[FAKE_CALL_COUNT] = {
#define FAKE_NAME(required, field, symbol, arguments) [FAKE_##symbol] = #symbol,
    MCS_CUDA_FUNCTIONS(FAKE_NAME) FAKE_MORE_FUNCTIONS(FAKE_NAME)
#undef FAKE_NAME
        [FAKE_RUN_COPY] = "run:copy",
    [FAKE_RUN_FILL] = "run:fill",
    [FAKE_RUN_WRITE] = "run:write",
    [FAKE_RUN_WAIT] = "run:wait",
    [FAKE_RUN_HOST] = "run:host",
};

const char *fake_call_name(enum fake_call call)
{
    return names[call];
}

CUresult fake_misuse(CUresult otherwise, const char *format, ...)
{
    char text[400];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    fprintf(stderr, "fake-cuda: %s: %s\n", names[calling], text);
    fflush(stderr);
    if (fake.me != NULL) {
        snprintf(fake.me->sentence, sizeof(fake.me->sentence), "%s: %.150s", names[calling], text);
        mcs_fetch_add(&fake.me->misuses, 1); /* the test reads it */
    }
    if (fake.settings.abort)
        abort();
    return otherwise;
}

/* ---- the environment ------------------------------------------------------------------------ */

static _Noreturn void bad_setting(const char *name, const char *value)
{
    fprintf(stderr, "fake-cuda: %s=%s is not understood; tests/fake-cuda/README.md tells\n", name,
            value);
    abort();
}

bool fake_number(const char *name, uint64_t *out)
{
    const char *text = getenv(name);
    char *end;

    if (text == NULL || *text == '\0')
        return false;
    *out = strtoull(text, &end, 0);
    if (*end != '\0')
        bad_setting(name, text);
    return true;
}

static uint64_t number_or(const char *name, uint64_t otherwise, uint64_t max)
{
    uint64_t v = otherwise;

    if (fake_number(name, &v) && v > max)
        bad_setting(name, getenv(name));
    return v;
}

/* "cuMemCreate:3=CUDA_ERROR_OUT_OF_MEMORY", ":3+" from then on, "=lose:NAME", "=sleep:MS", "=hang" */
static bool rule_parse(const char *text, size_t length, struct fake_rule *r)
{
    const char *end = text + length, *equals = memchr(text, '=', length), *colon;
    char *after;
    unsigned i;

    memset(r, 0, sizeof(*r));
    if (equals == NULL)
        return false;
    /* names of what streams do have a colon of their own */
    for (colon = equals - 1; colon > text && *colon != ':'; colon--)
        ;
    r->first = 1;
    r->times = 0;
    if (colon > text && colon[1] >= '0' && colon[1] <= '9') {
        r->first = strtoull(colon + 1, &after, 10);
        r->times = *after == '+' ? 0 : 1;
        if (r->first == 0 || after + (*after == '+') != equals)
            return false;
    } else {
        colon = equals;
    }
    if ((size_t)(colon - text) >= sizeof(r->call))
        return false;
    memcpy(r->call, text, (size_t)(colon - text));
    for (i = 0; i < FAKE_CALL_COUNT && strcmp(names[i], r->call) != 0; i++)
        ;
    if (i == FAKE_CALL_COUNT && strcmp(r->call, "*") != 0)
        return false;
    equals++;
    if (end - equals == 4 && memcmp(equals, "hang", 4) == 0) {
        r->action = FAKE_HANG;
        return true;
    }
    if (end - equals > 6 && memcmp(equals, "sleep:", 6) == 0) {
        r->ms = (uint32_t)strtoul(equals + 6, &after, 10);
        r->action = FAKE_SLEEP;
        return after == end;
    }
    r->action = FAKE_FAIL;
    if (end - equals > 5 && memcmp(equals, "lose:", 5) == 0) {
        r->action = FAKE_LOSE;
        equals += 5;
    }
    return fake_error_parse(equals, (size_t)(end - equals), (CUresult *)&r->result);
}

static void settings_read(struct fake_settings *s)
{
    const char *text = getenv("FAKE_CUDA_FAIL"), *end;
    unsigned n = 0;

    s->devices = (unsigned)number_or("FAKE_CUDA_DEVICES", 2, FAKE_CUDA_DEVICES);
    s->peer = number_or("FAKE_CUDA_PEER", 1, 1);
    s->vmm = number_or("FAKE_CUDA_VMM", 1, 1);
    s->posix = number_or("FAKE_CUDA_POSIX", 1, 1);
    s->dmabuf = number_or("FAKE_CUDA_DMABUF", 1, 1);
    s->rdma = number_or("FAKE_CUDA_RDMA", 1, 1);
    s->flush = number_or("FAKE_CUDA_FLUSH", 0, 1);
    s->mig = number_or("FAKE_CUDA_MIG", 0, 1);
    s->abort = number_or("FAKE_CUDA_ABORT", 1, 1);
    s->leaks = number_or("FAKE_CUDA_LEAKS", 0, 1);
    s->version = (int)number_or("FAKE_CUDA_VERSION", 13000, 99999);
    s->compute_mode = (int)number_or("FAKE_CUDA_COMPUTE_MODE", CU_COMPUTEMODE_DEFAULT, 3);
    s->memory = number_or("FAKE_CUDA_MEMORY", UINT64_C(16) << 30, UINT64_MAX);
    s->granularity = number_or("FAKE_CUDA_GRANULARITY", FAKE_GRANULE, UINT64_C(1) << 30);
    s->delay_us = (uint32_t)number_or("FAKE_CUDA_DELAY_US", 0, UINT32_MAX);
    for (; text != NULL && *text != '\0'; text = *end == ',' ? end + 1 : end) {
        end = strchrnul(text, ',');
        if (n == FAKE_CUDA_RULES || !rule_parse(text, (size_t)(end - text), &s->rules[n++]))
            bad_setting("FAKE_CUDA_FAIL", text);
    }
}

/* ---- the control file ----------------------------------------------------------------------- */

/* Byte 0 of the file is the lock over processes, byte 1 + n is held by the process at place n for its life. */
static int file_lock(int command, int type, off_t at)
{
    struct flock l = {.l_type = (short)type,
                      .l_whence = SEEK_SET,
                      .l_start = (UINT32_C(1) << 30) + at,
                      .l_len = 1};

    if (fake.control_fd < 0)
        return command == F_OFD_GETLK ? F_UNLCK : 0;
    while (fcntl(fake.control_fd, command, &l) != 0) {
        if (errno != EINTR) {
            perror("fake-cuda: lock of the control file");
            abort();
        }
    }
    return l.l_type;
}

static void processes_lock(void)
{
    file_lock(F_OFD_SETLKW, F_WRLCK, 0);
}

static void processes_unlock(void)
{
    file_lock(F_OFD_SETLK, F_UNLCK, 0);
}

static bool is_alive(unsigned place)
{
    return place == fake.place || (fake.control->processes[place].pid != 0 &&
                                   file_lock(F_OFD_GETLK, F_WRLCK, 1 + (off_t)place) != F_UNLCK);
}

static void place_take(void)
{
    struct fake_control *c = fake.control;
    unsigned i;

    fake.place = FAKE_CUDA_PROCESSES;
    /* Those of processes that have ended are kept as long as there is room: tests read them. */
    for (i = 0; i < FAKE_CUDA_PROCESSES && c->processes[i].pid != 0; i++)
        ;
    if (i == FAKE_CUDA_PROCESSES) {
        for (i = 0; i < FAKE_CUDA_PROCESSES && is_alive(i); i++)
            ;
    }
    if (i == FAKE_CUDA_PROCESSES) {
        fprintf(stderr, "fake-cuda: %d processes at a time, and no more\n", FAKE_CUDA_PROCESSES);
        abort();
    }
    for (unsigned m = 0; m < FAKE_CUDA_MEMORIES; m++)
        c->memories[m].holders[i / 64] &= ~(UINT64_C(1) << (i % 64));
    fake.place = i;
    fake.me = &c->processes[i];
    memset(fake.me, 0, sizeof(*fake.me));
    file_lock(F_OFD_SETLK, F_WRLCK, 1 + (off_t)i);
    mcs_store_release(&fake.me->pid, (uint32_t)getpid()); /* the test looks for it */
}

static void control_open(void)
{
    const char *path = getenv("FAKE_CUDA_CONTROL");
    const size_t size = sizeof(struct fake_control);
    struct fake_control *c;
    struct stat st;

    if (path != NULL && *path != '\0') {
        fake.control_fd = open(path, O_RDWR | O_CLOEXEC);
        if (fake.control_fd < 0 || fstat(fake.control_fd, &st) != 0)
            bad_setting("FAKE_CUDA_CONTROL", path);
    }
    processes_lock();
    if (fake.control_fd >= 0 && st.st_size < (off_t)size &&
        ftruncate(fake.control_fd, (off_t)size) != 0)
        bad_setting("FAKE_CUDA_CONTROL", path);
    c = mmap(NULL, size, PROT_READ | PROT_WRITE,
             fake.control_fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED, fake.control_fd, 0);
    if (c == MAP_FAILED) {
        perror("fake-cuda: control file");
        abort();
    }
    fake.control = c;
    if (c->magic == 0) {
        c->size = (uint32_t)size;
        c->calls = FAKE_CALL_COUNT;
        for (unsigned i = 0; i < FAKE_CALL_COUNT; i++)
            strncpy(c->names[i], names[i], sizeof(c->names[i]) - 1);
        mcs_store_release(&c->magic, FAKE_CUDA_MAGIC); /* the test waits for it */
    } else if (c->magic != FAKE_CUDA_MAGIC || c->size != size || c->calls != FAKE_CALL_COUNT) {
        fprintf(stderr, "fake-cuda: %s is a control file of another build\n", path);
        abort();
    }
    place_take();
    processes_unlock();
}

static void start(void)
{
    fake.pid = getpid();
    settings_read(&fake.settings);
    control_open();
}

/* Asked for, what was left behind is said when the process ends. */
static void __attribute__((destructor)) stop(void)
{
    static const char *const what[FAKE_OBJECTS] = {
        "contexts",    "retained contexts",  "allocation handles", "mappings",      "reservations",
        "allocations", "opened IPC handles", "host allocations",   "registrations", "streams",
        "events"};
    bool any = false;

    if (fake.me == NULL || !fake.settings.leaks || getpid() != fake.pid)
        return;
    for (unsigned d = 0; d < FAKE_CUDA_DEVICES; d++) {
        for (unsigned k = 0; k < FAKE_OBJECTS; k++) {
            if (fake.me->counts[d][k] != 0) {
                fprintf(stderr, "fake-cuda: left behind on device %u: %lld %s\n", d,
                        (long long)fake.me->counts[d][k], what[k]);
                any = true;
            }
        }
    }
    if (any) {
        fflush(stderr);
        _exit(97);
    }
}

/* ---- memory over processes ------------------------------------------------------------------ */

static struct fake_memory *memory_find(uint64_t inode)
{
    for (unsigned i = 0; i < FAKE_CUDA_MEMORIES; i++) {
        if (fake.control->memories[i].inode == inode)
            return &fake.control->memories[i];
    }
    return NULL;
}

/* Bytes on the device that somebody alive holds; what nobody does is forgotten. */
static uint64_t memory_sum(int device)
{
    bool alive[FAKE_CUDA_PROCESSES], held;
    struct fake_memory *m;
    uint64_t sum = 0;

    for (unsigned i = 0; i < FAKE_CUDA_PROCESSES; i++)
        alive[i] = fake.control->processes[i].pid != 0 && is_alive(i);
    for (m = fake.control->memories; m < fake.control->memories + FAKE_CUDA_MEMORIES; m++) {
        if (m->inode == 0)
            continue;
        held = false;
        for (unsigned i = 0; i < FAKE_CUDA_PROCESSES && !held; i++)
            held = alive[i] && (m->holders[i / 64] >> (i % 64) & 1) != 0;
        if (!held)
            m->inode = 0;
        else if ((int)m->device == device)
            sum += m->size;
    }
    return sum;
}

static void memory_hold(int device, uint64_t inode, uint64_t size)
{
    struct fake_memory *m = memory_find(inode);

    if (m == NULL) {
        m = memory_find(0);
        if (m == NULL) {
            fprintf(stderr, "fake-cuda: %d allocations at a time, and no more\n",
                    FAKE_CUDA_MEMORIES);
            abort();
        }
        memset(m, 0, sizeof(*m));
        m->inode = inode;
        m->size = size;
        m->device = (uint32_t)device;
    }
    m->holders[fake.place / 64] |= UINT64_C(1) << (fake.place % 64);
}

bool fake_memory_add(int device, uint64_t inode, uint64_t size)
{
    uint64_t used;
    bool fits;

    processes_lock();
    used = memory_sum(device);
    fits = used <= fake.settings.memory && size <= fake.settings.memory - used;
    if (fits)
        memory_hold(device, inode, size);
    processes_unlock();
    return fits;
}

void fake_memory_join(int device, uint64_t inode, uint64_t size)
{
    processes_lock();
    memory_hold(device, inode, size);
    processes_unlock();
}

void fake_memory_drop(uint64_t inode)
{
    struct fake_memory *m;

    processes_lock();
    m = memory_find(inode);
    if (m != NULL)
        m->holders[fake.place / 64] &= ~(UINT64_C(1) << (fake.place % 64));
    processes_unlock();
}

uint64_t fake_memory_used(int device)
{
    uint64_t sum;

    processes_lock();
    sum = memory_sum(device);
    processes_unlock();
    return sum;
}

bool fake_others_on(int device)
{
    bool any = false;

    processes_lock();
    for (unsigned i = 0; i < FAKE_CUDA_PROCESSES && !any; i++)
        any = i != fake.place && fake.control->processes[i].counts[device][FAKE_CONTEXTS] != 0 &&
              is_alive(i);
    processes_unlock();
    return any;
}

/* ---- counting, rules ------------------------------------------------------------------------ */

void fake_count(int device, enum fake_count what, int64_t by)
{
    mcs_count(&fake.me->counts[device][what], by); /* under the lock; the test reads it */
}

void fake_count_thing(struct fake_context *c, enum fake_count what, int by)
{
    c->things += (unsigned)by;
    fake_count(c->device, what, by);
}

uint32_t fake_delay_us(void)
{
    const uint32_t us = mcs_load_relaxed(&fake.control->delay_us);
    const uint32_t pid = mcs_load_relaxed(&fake.control->delay_pid);

    return us != 0 && (pid == 0 || pid == (uint32_t)fake.pid) ? us : fake.settings.delay_us;
}

/* A millisecond at a time, since the test may take the rule away. */
static void rule_wait(struct fake_rule *r, uint32_t action)
{
    const struct timespec ms = {.tv_nsec = 1000000};
    uint32_t left = r->ms;

    mcs_fetch_add(&r->waiting, 1);
    while (mcs_load_acquire(&r->action) == action && (action == FAKE_HANG || left-- > 0))
        nanosleep(&ms, NULL);
    mcs_fetch_add(&r->waiting, (uint64_t)-1);
}

static CUresult rules_obey(struct fake_rule *rules, enum fake_call call, struct fake_context *c)
{
    CUresult result = CUDA_SUCCESS;
    uint32_t action;
    uint64_t n, first;

    for (unsigned i = 0; i < FAKE_CUDA_RULES && result == CUDA_SUCCESS; i++) {
        struct fake_rule *r = &rules[i];

        action = mcs_load_acquire(&r->action); /* the test wrote the rest before */
        if (action == FAKE_OFF || (r->pid != 0 && r->pid != (uint32_t)fake.pid) ||
            (strcmp(r->call, names[call]) != 0 &&
             (strcmp(r->call, "*") != 0 || call >= FAKE_RUN_COPY)))
            continue;
        first = r->first != 0 ? r->first : 1;
        n = mcs_fetch_add(&r->seen, 1) + 1;
        if (n < first || (r->times != 0 && n - first >= r->times))
            continue;
        mcs_fetch_add(&r->acted, 1);
        if (action == FAKE_SLEEP || action == FAKE_HANG) {
            rule_wait(r, action);
            continue;
        }
        result = (CUresult)r->result;
        if (action == FAKE_LOSE && c != NULL) {
            pthread_mutex_lock(&fake.lock);
            c->lost = result;
            pthread_cond_broadcast(&fake.changed);
            pthread_mutex_unlock(&fake.lock);
        }
    }
    return result;
}

CUresult fake_obey(enum fake_call call, struct fake_context *c)
{
    CUresult res;

    mcs_fetch_add(&fake.me->calls[call], 1); /* the test reads it */
    res = rules_obey(fake.settings.rules, call, c);
    return res != CUDA_SUCCESS ? res : rules_obey(fake.control->rules, call, c);
}

CUresult fake_enter(enum fake_call call, unsigned needs)
{
    struct fake_context *c;
    CUresult res;

    pthread_once(&once, start);
    calling = call;
    if (getpid() != fake.pid)
        return CUDA_ERROR_NOT_INITIALIZED; /* as the driver says after a fork() */
    if (fake_is_in_host_function() && needs != FAKE_ANY)
        return fake_misuse(CUDA_ERROR_NOT_PERMITTED, "called inside a host function of a stream");
    pthread_mutex_lock(&fake.lock);
    res = !fake.initialised && (needs & FAKE_INIT)
              ? fake_misuse(CUDA_ERROR_NOT_INITIALIZED, "cuInit() was not called")
              : CUDA_SUCCESS;
    c = fake_current();
    pthread_mutex_unlock(&fake.lock);
    if (res == CUDA_SUCCESS)
        res = fake_obey(call, c);
    if (res != CUDA_SUCCESS)
        return res;
    pthread_mutex_lock(&fake.lock);
    c = fake_current();
    if (needs == FAKE_CURRENT) {
        if (c == NULL)
            res = fake_misuse(CUDA_ERROR_INVALID_CONTEXT,
                              "no context is current on this thread, or a released one");
        else
            res = c->lost;
    }
    if (res != CUDA_SUCCESS)
        pthread_mutex_unlock(&fake.lock);
    return res;
}

CUresult fake_leave(CUresult result)
{
    pthread_mutex_unlock(&fake.lock);
    return result;
}

/* ---- handles -------------------------------------------------------------------------------- */

static struct object {
    uint64_t handle;
    void *it;
} * objects;
static size_t nobjects, objects_room;
static uint64_t next_number;
static uint32_t *free_places;
static size_t nfree;

#define PLACE_BITS 20

uint64_t fake_object_add(enum fake_kind kind, void *it)
{
    size_t place;

    if (nfree > 0) {
        place = free_places[--nfree];
    } else {
        if (nobjects == objects_room) {
            objects_room = objects_room != 0 ? objects_room * 2 : 256;
            objects = realloc(objects, objects_room * sizeof(*objects));
            free_places = realloc(free_places, objects_room * sizeof(*free_places));
            if (objects == NULL || free_places == NULL || objects_room > 1u << PLACE_BITS)
                abort();
        }
        place = nobjects++;
    }
    /* no address of anything: who looks behind it faults */
    objects[place].handle = UINT64_C(0xfa) << 56 | (uint64_t)kind << 52 |
                            (++next_number & UINT32_MAX) << PLACE_BITS | place;
    objects[place].it = it;
    return objects[place].handle;
}

void *fake_object_find(enum fake_kind kind, uint64_t handle)
{
    static const char *const words[] = {[FAKE_KIND_CONTEXT] = "context",
                                        [FAKE_KIND_HANDLE] = "allocation handle",
                                        [FAKE_KIND_STREAM] = "stream",
                                        [FAKE_KIND_EVENT] = "event"};
    const size_t place = handle & ((1u << PLACE_BITS) - 1);

    if (place < nobjects && objects[place].handle == handle && objects[place].it != NULL &&
        (handle >> 52 & 15) == kind)
        return objects[place].it;
    fake_misuse(CUDA_ERROR_INVALID_HANDLE, "0x%llx is no %s, or no longer one",
                (unsigned long long)handle, words[kind]);
    return NULL;
}

void fake_object_remove(uint64_t handle)
{
    const size_t place = handle & ((1u << PLACE_BITS) - 1);

    objects[place].it = NULL;
    free_places[nfree++] = (uint32_t)place;
}
