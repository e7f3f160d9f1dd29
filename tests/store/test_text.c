/* SPDX-License-Identifier: Apache-2.0 */
#include "store/meta/json.h"
#include "store/meta/text.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <string.h>

Test(text, base64_of_every_length_comes_back)
{
    unsigned char in[64], out[64];
    size_t size;

    for (size_t n = 0; n < sizeof(in); n++) {
        struct mcm_text t = {0};

        for (size_t i = 0; i < n; i++)
            in[i] = (unsigned char)(i * 37 + n);
        mcm_text_base64(&t, in, n);
        cr_assert_eq(t.size, (n + 2) / 3 * 4);
        cr_assert_eq(mcm_base64_decode(t.at, out, n, &size), 0);
        cr_assert_eq(size, n);
        cr_assert(n == 0 || memcmp(in, out, n) == 0);
        if (n)
            cr_assert_eq(mcm_base64_decode(t.at, out, n - 1, &size), -EMSGSIZE);
        mcm_text_fini(&t);
    }
}

Test(text, base64_is_the_standard_one)
{
    struct mcm_text t = {0};
    unsigned char out[8];
    size_t size;

    mcm_text_base64(&t, "\xfb\xff\xbf\0", 4);
    cr_assert_str_eq(t.at, "+/+/AA==");
    mcm_text_fini(&t);
    cr_assert_eq(mcm_base64_decode("Zm9vYmE=", out, sizeof(out), &size), 0);
    cr_assert_eq(size, 5u);
    cr_assert(memcmp(out, "fooba", 5) == 0);
}

Test(text, base64_that_is_none_is_refused)
{
    static const char *const bad[] = {"a",     "ab",   "abc",   "abc@",    "=abc",
                                      "a=bc",  "ab=c", "====",  "a===",    "ab==cdef",
                                      "abcd=", " abc", "ab\nc", "abc\x80", "ab-_"};
    unsigned char out[32];
    size_t size;

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        cr_expect_eq(mcm_base64_decode(bad[i], out, sizeof(out), &size), -EBADMSG, "%s", bad[i]);
}

Test(text, quoted_and_percent_spell_as_they_should)
{
    struct mcm_text t = {0};

    mcm_text_quoted(&t, "a\"b\\c\n\xc3\xbc");
    cr_assert_str_eq(t.at, "\"a\\\"b\\\\c\\u000a\xc3\xbc\"");
    mcm_text_fini(&t);
    mcm_text_percent(&t, "a/b:1 %\xc3\xbc~._-\0", 14);
    cr_assert_str_eq(t.at, "a%2Fb%3A1%20%25%C3%BC~._-%00");
    mcm_text_fini(&t);
}

static int parse(const char *text)
{
    cJSON *o;
    int err = mcm_json_parse(text, strlen(text), &o);

    cr_assert(!err == (o != NULL));
    cJSON_Delete(o);
    return err;
}

Test(json, only_whole_objects_pass)
{
    static const char *const bad[] = {"",   " ",   "7",          "[]",        "\"x\"",
                                      "{",  "{}}", "{} {}",      "{\"a\":}",  "{\"a\"}",
                                      "{]", "nul", "{\"a\":1,}", "{\"a\":\"", "{\"a\":[1,2}"};

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        cr_expect_eq(parse(bad[i]), -EBADMSG, "%s", bad[i]);
    cr_assert_eq(parse(" {\"a\":[1,{\"b\":\"}]\\\"\"}]} \n"), 0);
}

/* open ... close around nothing, `n` deep. */
static char *nested(size_t n)
{
    char *text = malloc(6 * n + 16), *p = text;

    for (size_t i = 0; i < n; i++)
        p = stpcpy(p, "{\"a\":");
    p = stpcpy(p, "1");
    for (size_t i = 0; i < n; i++)
        *p++ = '}';
    *p = '\0';
    return text;
}

Test(json, nesting_and_number_of_values_are_bounded)
{
    char *deep = nested(MCM_JSON_DEPTH), *deeper = nested(MCM_JSON_DEPTH + 1);
    struct mcm_text many = {0};

    cr_assert_eq(parse(deep), 0);
    cr_assert_eq(parse(deeper), -EBADMSG);
    free(deep);
    free(deeper);
    mcm_text_add(&many, "{\"a\":[0");
    for (size_t i = 0; i < MCM_JSON_VALUES - 2; i++)
        mcm_text_bytes(&many, ",0", 2);
    mcm_text_add(&many, "]}");
    cr_assert_eq(parse(many.at), 0);
    many.size -= 2;
    mcm_text_add(&many, ",0]}");
    cr_assert_eq(parse(many.at), -EBADMSG);
    mcm_text_fini(&many);
}

Test(json, a_stream_is_cut_into_objects_wherever_the_pieces_end)
{
    static const char stream[] = "{\"a\":\"}\"}\n {\"b\":[{},\"\\\"]\"]}{}";
    const size_t whole = strlen(stream);

    for (size_t piece = 1; piece <= whole; piece++) {
        struct mcm_json_scan scan = {0};
        struct mcm_text object = {0};
        size_t at = 0, objects = 0, lengths = 0;

        while (at < whole) {
            size_t n = whole - at < piece ? whole - at : piece;
            bool closed;
            long used = mcm_json_scan(&scan, stream + at, n, &closed);

            cr_assert_geq(used, 0);
            mcm_text_bytes(&object, stream + at, (size_t)used);
            at += (size_t)used;
            if (closed) {
                cr_assert_eq(parse(object.at), 0, "%s", object.at);
                objects++;
                lengths += object.size;
                mcm_text_fini(&object);
            }
        }
        cr_assert_eq(objects, 3u);
        cr_assert_eq(lengths, whole);
        mcm_text_fini(&object);
    }
}

Test(json, members_of_another_type_are_told)
{
    static const char text[] =
        "{\"s\":\"x\",\"n\":7,\"t\":\"18446744073709551615\",\"m\":-1,\"f\":1e300,\"b\":true,"
        "\"z\":null,\"o\":{},\"l\":[],\"w\":\" "
        "7\",\"e\":\"\",\"h\":\"0x10\",\"i\":\"-9223372036854775808\"}";
    bool bad = false;
    cJSON *o;

    cr_assert_eq(mcm_json_parse(text, strlen(text), &o), 0);
    cr_expect_str_eq(mcm_json_string(o, "s", &bad), "x");
    cr_expect_eq(mcm_json_u64(o, "n", &bad), 7u);
    cr_expect_eq(mcm_json_u64(o, "t", &bad), UINT64_MAX);
    cr_expect_eq(mcm_json_i64(o, "i", &bad), INT64_MIN);
    cr_expect_eq(mcm_json_u64(o, "none", &bad), 0u);
    cr_expect_null(mcm_json_string(o, "z", &bad));
    cr_expect(mcm_json_bool(o, "b", &bad));
    cr_expect_not(bad, "all of these are right");
#define IS_BAD(call)                                                                               \
    do {                                                                                           \
        bad = false;                                                                               \
        (void)(call);                                                                              \
        cr_expect(bad, "%s", #call);                                                               \
    } while (0)
    IS_BAD(mcm_json_string(o, "n", &bad));
    IS_BAD(mcm_json_u64(o, "s", &bad));
    IS_BAD(mcm_json_u64(o, "m", &bad));
    IS_BAD(mcm_json_u64(o, "f", &bad));
    IS_BAD(mcm_json_u64(o, "w", &bad));
    IS_BAD(mcm_json_u64(o, "e", &bad));
    IS_BAD(mcm_json_u64(o, "h", &bad));
    IS_BAD(mcm_json_u64(o, "o", &bad));
    IS_BAD(mcm_json_i64(o, "t", &bad));
    IS_BAD(mcm_json_bool(o, "n", &bad));
    IS_BAD(mcm_json_object(o, "l", &bad));
    IS_BAD(mcm_json_array(o, "o", &bad));
    cJSON_Delete(o);
}
