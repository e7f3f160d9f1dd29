/* SPDX-License-Identifier: Apache-2.0 */
#include "log.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "shm/atomic.h"

#define PLACES 128u
#define MINUTE_NS UINT64_C(60000000000)

/* set by the control thread, read by all; no order with anything else is needed */
static int log_level = MCD_LOG_INFO;
static const char *log_name = "mcshmd";
static uint64_t (*log_clock)(void);
static bool journal;
static struct mcd_log_limit *listed; /* pushed by any thread, read by the control thread */

void mcd_log_set_level(int level)
{
    mcs_store_relaxed(&log_level, level);
}

void mcd_log_set_name(const char *name)
{
    log_name = name;
}

void mcd_log_set_clock(uint64_t (*clock)(void))
{
    log_clock = clock;
}

void mcd_log_init(void)
{
    const char *stream = getenv("JOURNAL_STREAM");
    unsigned long long device, inode;
    struct stat st;

    for (int fd = 0; fd <= STDERR_FILENO; fd++) {
        /* open() takes the lowest free number */
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", O_RDWR) < 0)
            break;
    }
    journal = stream != NULL && sscanf(stream, "%llu:%llu", &device, &inode) == 2 &&
              fstat(STDERR_FILENO, &st) == 0 && st.st_dev == device && st.st_ino == inode;
}

static uint64_t now_ns(void)
{
    struct timespec ts;

    if (log_clock != NULL)
        return log_clock();
    clock_gettime(CLOCK_MONOTONIC_COARSE, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static int begin_line(char *line, size_t size, int level)
{
    static const char *const words[] = {"error", "warning", "info", "debug"};
    static const int priorities[] = {3, 4, 6,
                                     7}; /* syslog's; the journal puts name and pid before it */

    return journal ? snprintf(line, size, "<%d>", priorities[level])
                   : snprintf(line, size, "%s: %s: ", log_name, words[level]);
}

/* Takes n characters of a line; breaks in it would look like other lines. */
static void end_line(char *line, size_t size, int n)
{
    struct pollfd err = {.fd = STDERR_FILENO, .events = POLLOUT};

    if (n > (int)size - 2)
        n = (int)size - 2;
    for (int i = 0; i < n; i++)
        if ((unsigned char)line[i] < ' ' || line[i] == 0x7f)
            line[i] = ' ';
    line[n++] = '\n';
    /* a pipe that nobody empties must not stop the agent either: the line is lost then */
    while (poll(&err, 1, 0) == 1 && write(STDERR_FILENO, line, (size_t)n) < 0 && errno == EINTR) {
        /* again; any other failure, a full disk or a closed terminal, must not stop the agent */
    }
}

/* What is known of lines left out: the text between their values. */
static void tell_left_out(int level, const char *format, uint32_t n)
{
    char line[1024];
    int k = begin_line(line, sizeof(line), level);

    k += snprintf(line + k, sizeof(line) - (size_t)k, "%u more lines like this were left out: ", n);
    for (const char *p = format; *p != '\0' && k < (int)sizeof(line) - 8; p++) {
        if (*p != '%') {
            line[k++] = *p;
            continue;
        }
        p += strcspn(p + 1, "diouxXeEfgGcspm%") + 1;
        if (*p == '\0')
            break;
        k += snprintf(line + k, sizeof(line) - (size_t)k, "%s", *p == '%' ? "%" : "...");
    }
    end_line(line, sizeof(line), k);
}

static void list(struct mcd_log_limit *limit, int level, const char *format)
{
    struct mcd_log_limit *head;

    if (mcs_exchange(&limit->listed, 1u) != 0)
        return;
    limit->level = level;
    limit->format = format;
    head = mcs_load_acquire(&listed);
    do {
        limit->next = head;
    } while (!mcs_compare_exchange(&listed, &head, limit)); /* partner: mcd_log_flush() */
}

/* May one line more be written from this place? Threads that race here may write or miscount a line,
 * nothing worse. */
static bool allowed(struct mcd_log_limit *limit, int level, const char *format)
{
    uint64_t now = now_ns(), since = mcs_load_relaxed(&limit->since_ns);
    uint32_t left_out;

    if (since == 0 || now - since >= MINUTE_NS) {
        left_out = mcs_exchange(&limit->left_out, 0u);
        mcs_store_relaxed(&limit->since_ns, now != 0 ? now : 1);
        mcs_store_relaxed(&limit->written, 0u);
        if (left_out != 0)
            tell_left_out(level, format, left_out);
    }
    if (mcs_load_relaxed(&limit->written) < MCD_LOG_A_MINUTE) {
        mcs_count(&limit->written, 1u);
        return true;
    }
    mcs_fetch_add(&limit->left_out, 1u);
    list(limit, level, format);
    return false;
}

/* told: what stands for the lines that are left out. */
static void write_line(struct mcd_log_limit *limit, int level, const char *told, const char *format,
                       va_list ap)
{
    char line[1024];
    int saved = errno;
    int n, m;

    if (level > mcs_load_relaxed(&log_level))
        return;
    if (level < MCD_LOG_DEBUG && !allowed(limit, level, told)) {
        errno = saved;
        return;
    }
    n = begin_line(line, sizeof(line), level);
    errno = saved; /* for %m */
    m = vsnprintf(line + n, sizeof(line) - (size_t)n, format, ap);
    end_line(line, sizeof(line), m < 0 ? n : n + m);
    errno = saved;
}

void mcd_log_(struct mcd_log_limit *limit, int level, const char *format, ...)
{
    va_list ap;

    va_start(ap, format);
    write_line(limit, level, format, format, ap);
    va_end(ap);
}

/* The limit of a static text; those beyond PLACES share the last one. */
static struct mcd_log_limit *place_of(const char *text)
{
    static struct {
        const char *text;
        struct mcd_log_limit limit;
    } places[PLACES];
    size_t i = 0;

    for (; i < PLACES - 1; i++) {
        const char *there = mcs_load_acquire(&places[i].text);

        /* partner: this exchange in another thread */
        if (there == NULL && mcs_compare_exchange(&places[i].text, &there, text))
            break;
        if (there == text)
            break;
    }
    return &places[i].limit;
}

void mcd_log_line_v(int level, const char *format, va_list ap)
{
    write_line(place_of(format), level, format, format, ap);
}

void mcd_log_line(int level, const char *format, ...)
{
    va_list ap;

    va_start(ap, format);
    mcd_log_line_v(level, format, ap);
    va_end(ap);
}

void mcd_log_cause(const char *cause, int level, const char *format, ...)
{
    va_list ap;

    va_start(ap, format);
    write_line(place_of(cause), level, cause, format, ap);
    va_end(ap);
}

void mcd_log_flush(void)
{
    uint64_t now = now_ns();

    for (struct mcd_log_limit *l = mcs_load_acquire(&listed); l != NULL;
         l = l->next) { /* partner: list() */
        uint32_t left_out;

        if (now - mcs_load_relaxed(&l->since_ns) < MINUTE_NS)
            continue;
        left_out = mcs_exchange(&l->left_out, 0u);
        if (left_out != 0)
            tell_left_out(l->level, l->format, left_out);
    }
}
