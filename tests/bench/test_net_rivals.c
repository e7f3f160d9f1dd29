/* SPDX-License-Identifier: Apache-2.0 */
/* What is read out of the output of others. */
#include "bench/child.c"
#include "bench/clock.c"
#include "bench/iperf.c"
#include "bench/mooncake.c"
#include "bench/netns.c"
#include "bench/perftest.c"
#include "bench/say.c"

#include <criterion/criterion.h>

/* Children have nothing to undo here. */
void cleanup_forget(void)
{
}

Test(net_rivals, iperf_sum_received_counts)
{
    double rate = 0, bytes = 0;

    cr_assert_eq(iperf_parse("{\"end\":{\"sum_sent\":{\"bytes\":9,\"bits_per_second\":99},"
                             "\"sum_received\":{\"bytes\":1000,\"bits_per_second\":8e10}}}",
                             &rate, &bytes),
                 0);
    cr_assert_float_eq(rate, 1e10, 0);
    cr_assert_float_eq(bytes, 1000, 0);
    cr_assert_eq(iperf_parse("{\"error\":\"unable to connect\"}", &rate, &bytes), -EINVAL);
    cr_assert_eq(iperf_parse("", &rate, &bytes), -EINVAL);
    cr_assert_eq(iperf_parse("{\"end\":{\"sum_received\":{\"bytes\":0,\"bits_per_second\":0}}}",
                             &rate, &bytes),
                 -EINVAL);
}

Test(net_rivals, mooncake_says_where_it_listens)
{
    static const char line[] =
        "I1 engine: RPC using P2P handshake, listening on 10.200.0.2:15599\n";
    char half[sizeof(line)];

    cr_assert_eq(mooncake_parse_port(line), 15599);
    strcpy(half, line);
    half[strlen(half) - 3] = '\0'; /* cut within the number */
    cr_assert_eq(mooncake_parse_port(half), 0);
    cr_assert_eq(mooncake_parse_port("TcpTransport: listen on port 15452\n"), 0);
    cr_assert_eq(mooncake_parse_port(""), 0);
}

Test(net_rivals, mooncake_result)
{
    double seconds = 0;
    uint64_t batches = 0;

    cr_assert_eq(
        mooncake_parse_result("x] Worker 0 stopped!\ny] Test completed: duration 2.01, batch "
                              "count 4972, throughput 2.61 GB/s\n",
                              &seconds, &batches),
        0);
    cr_assert_float_eq(seconds, 2.01, 0);
    cr_assert_eq(batches, 4972);
    cr_assert_eq(
        mooncake_parse_result("Test completed: duration 0.00, batch count 1", &seconds, &batches),
        -EINVAL);
    cr_assert_eq(mooncake_parse_result("F1 failed", &seconds, &batches), -EINVAL);
}

Test(net_rivals, perftest_average_of_the_row_after_the_headings)
{
    static const char output[] =
        " local address: LID 0000 QPN 0x0011 PSN 0xbec962 RKey 0x0002b5 VAddr 0x007f173fc9b000\n"
        "---------------------------------------------------------------------------------------\n"
        " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]\n"
        " 1048576    100              161.18             153.44 \t\t   0.000153\n"
        "---------------------------------------------------------------------------------------\n";
    char cut[sizeof(output)];

    cr_assert_float_eq(perftest_parse_rate(output), 153.44 * 1048576 / 1e9, 1e-12);
    strcpy(cut, output);
    *strstr(cut, "153.44") = '\0';
    cr_assert(isnan(perftest_parse_rate(cut)));
    cr_assert(isnan(perftest_parse_rate(" Couldn't connect to 10.9.0.2:18515\n")));
    cr_assert(isnan(perftest_parse_rate("")));
}

Test(net_rivals, perftest_typical_latency)
{
    static const char output[] =
        " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    "
        "t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec] \n"
        " 8       2000          11.68          1805.17      12.01    \t       48.41       \t164.66 "
        "\t\t850.26  \t\t1777.18\n";

    cr_assert_float_eq(perftest_parse_latency(output), 12.01, 1e-12);
    cr_assert(isnan(perftest_parse_latency(" #bytes #iterations    t_min[usec]")));
}

Test(net_rivals, a_child_is_read_and_its_end_told)
{
    char *argv[] = {"sh", "-c", "echo one; echo $WORD >&2; exit 3", NULL};
    const char *const sets[] = {"WORD=two", NULL};
    struct child_options o = {.argv = argv, .sets = sets, .output = true, .errors = true};
    char text[64] = "";
    size_t used = 0;
    struct child c;
    double cpu;

    cr_assert_eq(child_start(&o, &c), 0);
    cr_assert(child_read(&c, "two", 10000, text, sizeof(text), &used));
    cr_assert(child_read(&c, NULL, 10000, text, sizeof(text), &used));
    cr_assert_str_eq(text, "one\ntwo\n");
    cr_assert_eq(child_end(&c, 0, 10000, &cpu), 3);
    cr_assert(cpu >= 0);
    cr_assert_eq(child_end(&c, 0, 10000, &cpu), -1); /* there is none any more */
}

Test(net_rivals, output_beyond_the_room_is_dropped)
{
    char *argv[] = {"sh", "-c",
                    "i=0; while [ $i -lt 3000 ]; do echo 0123456789; i=$((i + 1)); done", NULL};
    struct child_options o = {.argv = argv, .output = true};
    char text[32] = "";
    size_t used = 0;
    struct child c;

    cr_assert_eq(child_start(&o, &c), 0);
    cr_assert(child_read(&c, NULL, 10000, text, sizeof(text), &used));
    cr_assert_eq(used, sizeof(text) - 1);
    cr_assert_eq(strncmp(text, "0123456789\n0123", 15), 0);
    cr_assert_eq(child_end(&c, 0, 10000, NULL), 0);
}

Test(net_rivals, a_program_that_is_not_there_and_one_that_does_not_end)
{
    char *missing[] = {"/nowhere/at-all", NULL}, *stays[] = {"sleep", "1000", NULL};
    struct child_options o = {.argv = missing};
    struct child c;

    cr_assert_eq(child_start(&o, &c), 0);
    cr_assert_eq(child_end(&c, 0, 10000, NULL), 127);
    o.argv = stays;
    cr_assert_eq(child_start(&o, &c), 0);
    cr_assert_eq(child_end(&c, 0, 10, NULL), -1);
    cr_assert(child_present("sh"));
    cr_assert_not(child_present("no-program-of-this-name"));
}
