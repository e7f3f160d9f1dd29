/* SPDX-License-Identifier: Apache-2.0 */
#include "failpoint.h"

#ifdef MCS_FAILPOINTS

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "atomic.h"

static const struct {
    const char *name, *side, *reach, *what;
    bool fails;
} table[] = {
#define MCS_FAILPOINT_ROW(name, side, reach, fails, what) {#name, #side, #reach, what, fails},
    MCS_FAILPOINT_LIST(MCS_FAILPOINT_ROW)
#undef MCS_FAILPOINT_ROW
};

static struct mcs_failpoint_page own; /* where no file is named */
static struct mcs_failpoint_page *page = &own;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void describe(struct mcs_failpoint_page *p)
{
    for (unsigned i = 0; i < MCS_FAILPOINT_COUNT; i++) {
        struct mcs_failpoint_entry *e = &p->entries[i];

        snprintf(e->name, sizeof(e->name), "%s", table[i].name);
        snprintf(e->side, sizeof(e->side), "%s", table[i].side);
        snprintf(e->reach, sizeof(e->reach), "%s", table[i].reach);
        e->fails = table[i].fails;
    }
    p->count = MCS_FAILPOINT_COUNT;
    p->entry_size = sizeof(struct mcs_failpoint_entry);
    /* last: partner is the test that waits for it */
    mcs_store_release(&p->magic, MCS_FAILPOINT_MAGIC);
}

/* The file of MCSHM_FAILPOINTS_FILE, described by whoever comes first. */
static void map_file(const char *path)
{
    struct mcs_failpoint_page *p;
    struct stat st;
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);

    if (fd < 0 || fstat(fd, &st) != 0 ||
        ((uint64_t)st.st_size < sizeof(*p) && ftruncate(fd, sizeof(*p)) != 0)) {
        fprintf(stderr, "MCSHM_FAILPOINTS_FILE=%s: %s\n", path, strerror(errno));
        abort();
    }
    p = mmap(NULL, sizeof(*p), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (p == MAP_FAILED)
        abort();
    if (mcs_load_acquire(&p->magic) != MCS_FAILPOINT_MAGIC) /* partner: describe() */
        describe(p);
    page = p;
}

static void start(void)
{
    const char *path = getenv("MCSHM_FAILPOINTS_FILE"), *text = getenv("MCSHM_FAILPOINTS");

    if (path != NULL)
        map_file(path);
    else
        describe(&own);
    if (text != NULL && mcs_failpoint_set(text) != 0) {
        fprintf(stderr, "MCSHM_FAILPOINTS=%s: not a list of point=action\n", text);
        abort();
    }
}

/* ---- what MCSHM_FAILPOINTS says ------------------------------------------------------ */

static const struct {
    const char *name;
    int value;
} errnos[] = {
    {"EAGAIN", EAGAIN}, {"ECANCELED", ECANCELED}, {"ECONNRESET", ECONNRESET},
    {"EINTR", EINTR},   {"EINVAL", EINVAL},       {"EIO", EIO},
    {"EMFILE", EMFILE}, {"ENOBUFS", ENOBUFS},     {"ENOMEM", ENOMEM},
    {"ENOSPC", ENOSPC}, {"ETIMEDOUT", ETIMEDOUT},
};

static bool read_number(const char **at, uint32_t *out)
{
    char *end;
    unsigned long v = strtoul(*at, &end, 10);

    if (end == *at || v > UINT32_MAX)
        return false;
    *at = end;
    *out = (uint32_t)v;
    return true;
}

static bool read_errno(const char **at, uint32_t *out)
{
    for (size_t i = 0; i < sizeof(errnos) / sizeof(errnos[0]); i++) {
        size_t n = strlen(errnos[i].name);

        if (strncmp(*at, errnos[i].name, n) == 0) {
            *at += n;
            *out = (uint32_t)errnos[i].value;
            return true;
        }
    }
    return read_number(at, out);
}

/* One "action[:arg][@first][xtimes]". */
static bool read_action(const char **at, struct mcs_failpoint_entry *e, uint32_t *action)
{
    static const char *const names[] = {"off", "kill", "stop", "delay:", "fail"};

    for (*action = 0; *action < sizeof(names) / sizeof(names[0]); ++*action)
        if (strncmp(*at, names[*action], strlen(names[*action])) == 0)
            break;
    if (*action == sizeof(names) / sizeof(names[0]))
        return false;
    *at += strlen(names[*action]);
    e->arg = ENOMEM;
    if (*action == MCS_FAILPOINT_DELAY && !read_number(at, &e->arg))
        return false;
    if (*action == MCS_FAILPOINT_FAIL && **at == ':') {
        ++*at;
        if (!read_errno(at, &e->arg))
            return false;
    }
    e->first = 1;
    e->times = *action == MCS_FAILPOINT_FAIL || *action == MCS_FAILPOINT_STOP ? 1 : 0;
    if (**at == '@') {
        ++*at;
        if (!read_number(at, &e->first))
            return false;
    }
    if (**at == 'x') {
        ++*at;
        if (!read_number(at, &e->times))
            return false;
    }
    return true;
}

int mcs_failpoint_set(const char *text)
{
    while (*text != '\0') {
        size_t n = strcspn(text, "=");
        uint32_t action;
        unsigned i = 0;

        while (i < MCS_FAILPOINT_COUNT &&
               (strlen(table[i].name) != n || strncmp(table[i].name, text, n) != 0))
            i++;
        if (i == MCS_FAILPOINT_COUNT || text[n] != '=')
            return -EINVAL;
        text += n + 1;
        mcs_store_relaxed(&page->entries[i].action, 0u);
        if (!read_action(&text, &page->entries[i], &action) || (*text != ';' && *text != '\0'))
            return -EINVAL;
        mcs_store_relaxed(&page->entries[i].armed, 0u);
        mcs_store_release(&page->entries[i].action, action); /* partner: mcs_failpoint_pass() */
        if (*text == ';')
            text++;
    }
    return 0;
}

/* ---- passing ------------------------------------------------------------------------- */

static void die(void)
{
    kill(getpid(), SIGKILL);
    for (;;)
        pause();
}

int mcs_failpoint_pass(enum mcs_failpoint point)
{
    struct mcs_failpoint_entry *e;
    struct timespec ts;
    uint32_t action, n;

    pthread_once(&once, start);
    e = &page->entries[point];
    mcs_fetch_add(&e->passes, UINT64_C(1));
    action = mcs_load_acquire(&e->action); /* partner: who arms it, the other fields first */
    if (action == MCS_FAILPOINT_OFF)
        return 0;
    n = mcs_fetch_add(&e->armed, 1u) + 1;
    if (n < e->first || (e->times != 0 && n - e->first >= e->times))
        return 0;
    mcs_fetch_add(&e->acted, UINT64_C(1));
    switch (action) {
    case MCS_FAILPOINT_KILL:
        die();
        break;
    case MCS_FAILPOINT_STOP:
        kill(getpid(), SIGSTOP);
        break;
    case MCS_FAILPOINT_DELAY:
        ts = (struct timespec){.tv_sec = e->arg / 1000, .tv_nsec = e->arg % 1000 * 1000000l};
        nanosleep(&ts, NULL);
        break;
    case MCS_FAILPOINT_FAIL:
        return -(int)e->arg;
    default:
        break;
    }
    return 0;
}

void mcs_failpoint_print(FILE *out)
{
    pthread_once(&once, start);
    for (unsigned i = 0; i < MCS_FAILPOINT_COUNT; i++)
        fprintf(out, "%-20s %-8s %-6s %-6s %s\n", table[i].name, table[i].side, table[i].reach,
                table[i].fails ? "fails" : "-", table[i].what);
}

#endif
