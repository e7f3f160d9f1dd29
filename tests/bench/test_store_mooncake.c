/* SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <math.h>

#include "bench/store_mooncake.c"

/* What the file asks of others, and this test does not come to. */
bool child_await_port(const struct child *c, int port, int timeout_ms)
{
    return (void)c, (void)port, (void)timeout_ms, false;
}
int child_start(const struct child_options *o, struct child *out)
{
    return (void)o, (void)out, -ENOSYS;
}
bool child_read(struct child *c, const char *until, int timeout_ms, char *text, size_t size,
                size_t *used)
{
    return (void)c, (void)until, (void)timeout_ms, (void)text, (void)size, (void)used, false;
}
int child_end(struct child *c, int number_, int timeout_ms, double *cpu_seconds)
{
    return (void)c, (void)number_, (void)timeout_ms, (void)cpu_seconds, -1;
}
int say_error(int err, const char *format, ...)
{
    return (void)format, err;
}
void say_note(const char *format, ...)
{
    (void)format;
}
int pin_to(int core)
{
    return (void)core, 0;
}

Test(store_mooncake, reads_what_the_client_prints)
{
    static struct store_rows rows;

    cr_assert_eq(
        store_mooncake_parse("I1201 noise\nrows [{\"op\": \"put\", \"size\": 4096, \"batch\": 2, "
                             "\"ops_s\": 10.5, \"gbps\": 0.25, \"p50_us\": 3, \"p99_us\": 4}, "
                             "{\"op\": \"exist\", \"size\": 4096, \"batch\": 1, \"ops_s\": 7, "
                             "\"gbps\": null, \"p50_us\": 1, \"p99_us\": 2}]\n",
                             &rows),
        0);
    cr_assert_eq(rows.count, 2u);
    cr_expect_eq(rows.row[0].op, STORE_PUT);
    cr_expect_eq(rows.row[0].size, 4096u);
    cr_expect_eq(rows.row[0].batch, 2u);
    cr_expect_eq(rows.row[0].gbps, 0.25);
    cr_expect_eq(rows.row[1].op, STORE_EXIST);
    cr_expect(isnan(rows.row[1].gbps));
    cr_expect_not(rows.row[1].remote);
}

Test(store_mooncake, refuses_what_is_no_list_of_rows)
{
    static struct store_rows rows;

    cr_expect_eq(store_mooncake_parse("", &rows), -EPROTO);
    cr_expect_eq(store_mooncake_parse("setup failed\n", &rows), -EPROTO);
    cr_expect_eq(store_mooncake_parse("rows [{\"op\"", &rows), -EPROTO);
    cr_expect_eq(rows.count, 0u);
}
