/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/kv_trace.c"

#include <criterion/criterion.h>

static int load(const char *text, size_t max, struct kv_trace *t, char *error, size_t size)
{
    FILE *f = fmemopen((char *)text, strlen(text), "r");
    int rc = kv_trace_load(f, max, t, error, size);

    fclose(f);
    return rc;
}

Test(kv_trace, reads_the_published_format)
{
    struct kv_trace t;
    char error[256] = "";

    cr_assert_eq(load("{\"timestamp\": 0, \"input_length\": 1100, \"output_length\": 9, "
                      "\"hash_ids\": [0, 1, 7]}\n"
                      "\n"
                      "{\"timestamp\": 27, \"input_length\": 5, \"output_length\": 1, "
                      "\"hash_ids\": []}",
                      10, &t, error, sizeof(error)),
                 0, "%s", error);
    cr_assert_eq(t.count, 2);
    cr_assert_eq(t.blocks, 3);
    cr_assert_eq(t.longest, 3);
    cr_assert_eq(t.requests[0].hash_ids[2], 7);
    cr_assert_eq(t.requests[0].input_length, 1100);
    cr_assert_eq(t.requests[1].timestamp, 27);
    kv_trace_free(&t);
}

Test(kv_trace, stops_at_the_asked_number_of_requests)
{
    struct kv_trace t;
    char error[256];

    cr_assert_eq(load("{\"timestamp\":0,\"input_length\":1,\"output_length\":1,\"hash_ids\":[1]}\n"
                      "this line is never reached\n",
                      1, &t, error, sizeof(error)),
                 0);
    cr_assert_eq(t.count, 1);
    kv_trace_free(&t);
}

Test(kv_trace, a_bad_line_is_named_by_its_number)
{
    static const struct {
        const char *line, *expected;
    } cases[] = {
        {"nonsense", "line 2: not a JSON object"},
        {"[1, 2]", "line 2: not a JSON object"},
        {"{} trailing", "line 2: not a JSON object"},
        {"{}", "line 2: timestamp is missing"},
        {"{\"timestamp\":-1}", "line 2: timestamp is not a whole number"},
        {"{\"timestamp\":0,\"input_length\":\"x\"}", "line 2: input_length is not a whole number"},
        {"{\"timestamp\":0,\"input_length\":1,\"output_length\":1}", "line 2: hash_ids is missing"},
        {"{\"timestamp\":0,\"input_length\":1,\"output_length\":1,\"hash_ids\":[1,-2]}",
         "line 2: hash_ids[1] is not a whole number"},
        {"{\"timestamp\":0,\"input_length\":1,\"output_length\":1,\"hash_ids\":[1.5]}",
         "line 2: hash_ids[0] is not a whole number"},
        {"{\"timestamp\":0,\"input_length\":1,\"output_length\":1,\"hash_ids\":{\"a\":1}}",
         "line 2: hash_ids is not an array of at most 65536 numbers"},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct kv_trace t;
        char text[512], error[256] = "";

        snprintf(text, sizeof(text),
                 "{\"timestamp\":0,\"input_length\":1,\"output_length\":1,\"hash_ids\":[1]}\n%s\n",
                 cases[i].line);
        cr_assert_eq(load(text, 10, &t, error, sizeof(error)), -EINVAL);
        cr_assert_str_eq(error, cases[i].expected);
        cr_assert_eq(t.count, 0);
    }
}

Test(kv_trace, an_empty_file_is_refused)
{
    struct kv_trace t;
    char error[256];

    cr_assert_eq(load("\n \n", 10, &t, error, sizeof(error)), -EINVAL);
    cr_assert_str_eq(error, "no request in it");
}

Test(kv_trace, generated_traces_are_the_same_every_time_and_share_prefixes)
{
    struct kv_trace a, b;
    size_t shared = 0;

    cr_assert_eq(kv_trace_generate(300, &a), 0);
    cr_assert_eq(kv_trace_generate(300, &b), 0);
    cr_assert_eq(a.count, 300);
    cr_assert_eq(a.blocks, b.blocks);
    for (size_t i = 0; i < a.count; i++) {
        cr_assert_eq(a.requests[i].count, b.requests[i].count);
        cr_assert_arr_eq(a.requests[i].hash_ids, b.requests[i].hash_ids,
                         a.requests[i].count * sizeof(uint64_t));
        shared += i > 0 && a.requests[i].hash_ids[0] == a.requests[0].hash_ids[0];
        cr_assert_leq(a.requests[i].count, a.longest);
    }
    cr_assert_eq(shared, 299);
    kv_trace_free(&a);
    kv_trace_free(&b);
}
