/* SPDX-License-Identifier: Apache-2.0 */
#include "store/meta/record.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <string.h>

static struct mcm_record sample(const char *name)
{
    struct mcm_record r = {.incarnation = UINT64_MAX,
                           .agent_incarnation = 1u << 31,
                           .tenant = 1ull << 60,
                           .flags = 1,
                           .version = MCM_VERSION};

    strcpy(r.name, name);
    strcpy(r.agent, "[fe80::1]:7000");
    return r;
}

Test(record, comes_back_as_it_was)
{
    struct mcm_times times = {.since = 1700000000, .renewed = 1700000100, .ttl_s = 10}, got;
    struct mcm_record r = sample("a \"b\" \\ \xc3\xbc"), back;
    struct mcm_text one = {0}, two = {0};

    mcm_record_encode(&r, &times, &one);
    mcm_record_encode(&r, &times, &two);
    cr_assert_str_eq(one.at, two.at, "the same record, the same bytes");
    cr_assert_eq(mcm_record_decode(one.at, one.size, r.name, &back, &got), 0);
    cr_expect_str_eq(back.name, r.name);
    cr_expect_str_eq(back.agent, r.agent);
    cr_expect_eq(back.incarnation, r.incarnation);
    cr_expect_eq(back.agent_incarnation, r.agent_incarnation);
    cr_expect_eq(back.tenant, r.tenant);
    cr_expect_eq(back.flags, 1u);
    cr_expect_eq(back.version, MCM_VERSION);
    cr_expect_eq(got.since, times.since);
    cr_expect_eq(got.renewed, times.renewed);
    cr_expect_eq(got.ttl_s, times.ttl_s);
    cr_expect_eq(mcm_record_decode(one.at, one.size, "another", &back, &got), -EBADMSG);
    for (size_t n = 0; n < one.size; n++)
        cr_expect_eq(mcm_record_decode(one.at, n, r.name, &back, &got), -EBADMSG, "cut at %zu", n);
    mcm_text_fini(&one);
    mcm_text_fini(&two);
}

Test(record, of_a_later_version_is_read_for_what_is_known)
{
    static const char text[] =
        "{\"version\":9,\"name\":\"n\",\"incarnation\":\"3\",\"agent\":\"h:1\","
        "\"new\":{\"x\":[1]}}";
    struct mcm_record r;
    struct mcm_times times;

    cr_assert_eq(mcm_record_decode(text, strlen(text), "n", &r, &times), 0);
    cr_assert_eq(r.version, 9u);
    cr_assert_eq(r.incarnation, 3u);
}

Test(record, names_are_utf8_without_control_characters)
{
    static const char *const good[] = {"a",       "a/b",        "h:1",          "x%2Fy",
                                       "[::1]:9", "\xc3\xbc",   "\xe2\x82\xac", "\xf0\x9f\x98\x80",
                                       " a ",     "10.0.0.1:70"};
    static const char *const bad[] = {"",
                                      " ",
                                      "\xc2\xa0",
                                      "a\nb",
                                      "\x7f",
                                      "\xc2\x80",
                                      "\xff",
                                      "\xc3",
                                      "\xc0\x80",
                                      "\xed\xa0\x80",
                                      "\xf4\x90\x80\x80",
                                      "\xe0\x80\x80",
                                      "a\xe2\x82"};
    char name[MCM_NAME_MAX + 1];

    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++)
        cr_expect(mcm_good_name(good[i]), "%s", good[i]);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        cr_expect_not(mcm_good_name(bad[i]), "number %zu", i);
    memset(name, 'x', sizeof(name));
    name[MCM_NAME_MAX] = '\0';
    cr_expect_not(mcm_good_name(name));
    name[MCM_NAME_MAX - 1] = '\0';
    cr_expect(mcm_good_name(name));
}

Test(record, explicit_names_are_told_from_plain_ones)
{
    static const char *const plain[] = {
        "a/b",  "h:1",     "h:1/",       "h:0/x",   "h:65536/x", ":1/x",    "h:/x",     "h:1x/y",
        "/h:1", "::1:5/x", "h:000001/x", "a b:1/x", "h:1/\n",    "[::1]/x", "[::1:5/x", "h:+1/x"};
    char agent[MCM_ADDRESS_MAX], name[MCM_NAME_MAX], text[600];

    cr_assert(mcm_explicit_name("host.example:7000/a/b:c", agent, name));
    cr_assert_str_eq(agent, "host.example:7000");
    cr_assert_str_eq(name, "a/b:c");
    cr_assert(mcm_explicit_name("[fe80::1%eth0]:1/n", agent, name));
    cr_assert_str_eq(agent, "[fe80::1%eth0]:1");
    for (size_t i = 0; i < sizeof(plain) / sizeof(plain[0]); i++)
        cr_expect_not(mcm_explicit_name(plain[i], agent, name), "%s", plain[i]);
    memset(text, 'x', sizeof(text));
    memcpy(text, "h:1/", 4);
    text[4 + MCM_NAME_MAX] = '\0';
    cr_expect_not(mcm_explicit_name(text, agent, name), "a name too long");
    text[4 + MCM_NAME_MAX - 1] = '\0';
    cr_expect(mcm_explicit_name(text, agent, name));
    strcpy(text + 300, ":1/n");
    memset(text, 'h', 300);
    cr_expect_not(mcm_explicit_name(text, agent, name), "an address too long");
}
