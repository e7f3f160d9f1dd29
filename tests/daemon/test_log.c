/* SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/log.h"

static uint64_t now = 1000;
static int ends[2], kept;
static char text[65536];

static uint64_t told(void)
{
    return now;
}

static void begin(void)
{
    unsetenv("JOURNAL_STREAM");
    cr_assert_eq(pipe2(ends, O_NONBLOCK), 0);
    kept = dup(STDERR_FILENO);
    dup2(ends[1], STDERR_FILENO);
    mcd_log_init();
    mcd_log_set_clock(told);
    mcd_log_set_level(MCD_LOG_INFO);
    /* where tests share a process: what earlier ones left out is told before this one begins */
    now += 120000000000;
    mcd_log_flush();
    while (read(ends[0], text, sizeof(text)) > 0) {
    }
}

/* What was written since; the number of lines. */
static unsigned lines(void)
{
    ssize_t n = read(ends[0], text, sizeof(text) - 1);
    unsigned count = 0;

    text[n > 0 ? n : 0] = '\0';
    for (const char *p = text; (p = strchr(p, '\n')) != NULL; p++)
        count++;
    return count;
}

static void end(void)
{
    dup2(kept, STDERR_FILENO);
    close(kept);
    close(ends[0]);
    close(ends[1]);
    mcd_log_set_clock(NULL);
}

TestSuite(log, .init = begin, .fini = end);

static void place(int i)
{
    mcd_warning("peer %d: %s is gone (%zu%%, 0x%llx)", i, "it", (size_t)i, 5ull);
}

Test(log, at_most_twenty_lines_a_minute_from_one_place)
{
    unsigned first, second;

    for (int i = 0; i < 780; i++)
        place(i);
    first = lines();
    cr_assert(first >= 10 && first <= 20, "%u lines", first);
    cr_assert_not_null(strstr(text, "mcshmd: warning: peer 0: it is gone (0%, 0x5)\n"), "%s", text);
    cr_assert_null(strstr(text, "left out"));
    /* the same cause a second later, and other causes meanwhile */
    now += 1000000000;
    for (int i = 0; i < 20; i++)
        place(i);
    mcd_log_flush();
    cr_assert_eq(lines(), 0u, "%s", text);
    mcd_error("something else");
    cr_assert_eq(lines(), 1u);
    /* when the minute is over the number is told, though nothing happens any more */
    now += 60000000000;
    mcd_log_flush();
    cr_assert_eq(lines(), 1u, "%s", text);
    {
        char want[160];

        snprintf(
            want, sizeof(want),
            "mcshmd: warning: %u more lines like this were left out: peer ...: ... is gone (...%%, "
            "0x...)\n",
            800 - first);
        cr_assert_str_eq(text, want);
    }
    mcd_log_flush();
    cr_assert_eq(lines(), 0u);
    /* and the place may write again; no minute has more than twenty, the number included */
    for (int i = 0; i < 100; i++)
        place(i);
    second = lines();
    cr_assert(second >= 10 && second <= 20, "%u lines", second);
    now += 60000000000;
    for (int i = 0; i < 100; i++)
        place(i);
    second = lines();
    cr_assert(second >= 10 && second <= 20, "%u lines", second);
    cr_assert_not_null(strstr(text, "left out"));
}

Test(log, a_format_is_a_place_too)
{
    static const char a[] = "transport %d";
    unsigned n;

    for (int i = 0; i < 100; i++)
        mcd_log_line(MCD_LOG_WARNING, a, i);
    n = lines();
    cr_assert(n >= 10 && n <= 20, "%u lines", n);
    mcd_log_line(MCD_LOG_WARNING, "another %d", 1);
    cr_assert_eq(lines(), 1u);
}

Test(log, a_cause_that_comes_often_hides_no_other)
{
    static const char often[] = "it hangs", once[] = "it lies";
    unsigned n;

    for (int i = 0; i < 100; i++)
        mcd_log_cause(often, MCD_LOG_WARNING, "session %d: %s", i, often);
    n = lines();
    cr_assert(n >= 10 && n <= 20, "%u lines", n);
    mcd_log_cause(once, MCD_LOG_WARNING, "session %d: %s", 7, once);
    cr_assert_eq(lines(), 1u);
    cr_assert_str_eq(text, "mcshmd: warning: session 7: it lies\n");
    now += 60000000000;
    mcd_log_flush();
    cr_assert_eq(lines(), 1u);
    cr_assert_not_null(strstr(text, "more lines like this were left out: it hangs\n"), "%s", text);
}

Test(log, debug_is_for_who_asks)
{
    for (int i = 0; i < 100; i++)
        mcd_debug("a miss");
    cr_assert_eq(lines(), 0u);
    mcd_log_set_level(MCD_LOG_DEBUG);
    for (int i = 0; i < 100; i++)
        mcd_debug("a miss");
    cr_assert_eq(lines(), 100u);
}

Test(log, one_event_is_one_line)
{
    errno = ENOENT;
    mcd_info("a name with\na break, \x1b[31mand colours: %m");
    cr_assert_eq(errno, ENOENT);
    cr_assert_eq(lines(), 1u, "%s", text);
    cr_assert_null(strchr(text, 0x1b));
    cr_assert_not_null(strstr(text, "No such file"));
    mcd_info("%2000d", 7); /* longer than a line */
    cr_assert_eq(lines(), 1u);
}

Test(log, the_journal_gets_levels)
{
    char stream[64];
    struct stat st;

    cr_assert_eq(fstat(STDERR_FILENO, &st), 0);
    snprintf(stream, sizeof(stream), "%llu:%llu", (unsigned long long)st.st_dev,
             (unsigned long long)st.st_ino);
    setenv("JOURNAL_STREAM", stream, 1);
    mcd_log_init();
    mcd_warning("warm");
    mcd_error("hot");
    mcd_info("so");
    lines();
    cr_assert_str_eq(text, "<4>warm\n<3>hot\n<6>so\n");
    /* systemd's variable is inherited by who has another stderr */
    snprintf(stream, sizeof(stream), "%llu:%llu", (unsigned long long)st.st_dev,
             (unsigned long long)st.st_ino + 1);
    setenv("JOURNAL_STREAM", stream, 1);
    mcd_log_init();
    mcd_warning("warm");
    lines();
    cr_assert_str_eq(text, "mcshmd: warning: warm\n");
}

Test(log, nobody_who_reads_and_no_disk_left)
{
    int full = open("/dev/full", O_WRONLY);

    cr_assert_geq(full, 0);
    dup2(full, STDERR_FILENO);
    errno = 0;
    mcd_warning("lost");
    cr_assert_eq(errno, 0);
    close(full);
    /* a pipe that is full: the line is dropped, at once */
    dup2(ends[1], STDERR_FILENO);
    while (write(ends[1], text, 4096) > 0)
        ;
    fcntl(ends[1], F_SETFL, 0); /* a write would now wait */
    mcd_warning("lost as well");
    fcntl(ends[1], F_SETFL, O_NONBLOCK);
    while (read(ends[0], text, sizeof(text)) > 0)
        ;
    /* closed: what is opened next must not become the log */
    close(STDERR_FILENO);
    mcd_log_init();
    cr_assert_neq(open("/dev/null", O_RDONLY), STDERR_FILENO);
    mcd_warning("into nothing");
    cr_assert_eq(lines(), 0u);
}
