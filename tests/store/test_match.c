/* SPDX-License-Identifier: Apache-2.0 */
/* Regular expressions of strangers: as POSIX has them, and never without an end. */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "store/object/match.h"

TestSuite(match, .timeout = 60);

static char error[200];

static struct mco_match *made(const char *text)
{
    struct mco_match *m = NULL;
    int res = mco_match_create(text, strlen(text), &m, error, sizeof(error));

    cr_assert_eq(res, 0, "%s: %s", text, error);
    return m;
}

static bool matches(const char *text, const char *key)
{
    struct mco_match *m = made(text);
    bool found = mco_match(m, key, strlen(key));

    cr_assert_not(mco_match_gave_up(m));
    mco_match_destroy(m);
    return found;
}

Test(match, what_people_write)
{
    cr_assert(matches("", "anything"));
    cr_assert(matches("^$", ""));
    cr_assert_not(matches("^$", "x"));
    cr_assert_not(matches("^a$", "a\n"));
    cr_assert(matches("a.b", "a\nb"));
    cr_assert(matches("^model/[0-9]+/layer-(0|1)$", "model/17/layer-1"));
    cr_assert_not(matches("^model/[0-9]+/layer-(0|1)$", "model/17/layer-2"));
    cr_assert(matches("a\\.b", "xa.by"));
    cr_assert_not(matches("a\\.b", "xaxby"));
    cr_assert(matches("[[:xdigit:]]{8}", "key-00c0ffee"));
    cr_assert_not(matches("[[:xdigit:]]{8}", "key-00c0ffe"));
    cr_assert(matches("[]^-]", "-"));
    cr_assert(matches("[^]a]", "b"));
    cr_assert_not(matches("[^]a]", "]a"));
}

Test(match, keys_have_bytes_of_any_kind)
{
    struct mco_match *m = made("a.b$");

    cr_assert(mco_match(m, "a\0b", 3));
    cr_assert(mco_match(m,
                        "\xff\xfe"
                        "a\xff"
                        "b",
                        5));
    cr_assert_not(mco_match(m, "ab", 2));
    mco_match_destroy(m);
}

Test(match, mistakes_are_said_with_their_place)
{
    static const struct {
        const char *text, *place;
    } list[] = {{"(a", "at byte 2"},  {"[a", "at byte 2"},    {"*a", "at byte 0"},
                {"a\\", "at byte 2"}, {"[z-a]", "at byte"},   {"[[:nosuch:]]", "at byte"},
                {"\\C", "at byte 2"}, {"(*UTF)a", "at byte"}, {"(*UCP)a", "at byte"}};

    for (size_t i = 0; i < sizeof(list) / sizeof(list[0]); i++) {
        struct mco_match *m = NULL;

        cr_assert_eq(mco_match_create(list[i].text, strlen(list[i].text), &m, error, sizeof(error)),
                     -EINVAL, "%s", list[i].text);
        cr_assert_not_null(strstr(error, list[i].place), "%s: %s", list[i].text, error);
    }
}

/* Each of these would take all memory, or have no end. */
Test(match, what_would_have_no_end_is_refused_or_given_up)
{
    static const char *const bombs[] = {"(((a{1,255}){1,255}){1,255}){1,255}",
                                        "((((b|c{0,9999}){999}){999}){999}){999}"};
    static const char *const slow[] = {"^(a|aa|a*)*(a|a)*(aa|aaa)*b$", "(a+)+$",
                                       "(.*)(.*)(.*)(.*)(.*)bb$"};
    char deep[4097], key[4096];
    struct mco_match *m = NULL;

    for (size_t i = 0; i < sizeof(bombs) / sizeof(bombs[0]); i++)
        cr_assert_eq(mco_match_create(bombs[i], strlen(bombs[i]), &m, error, sizeof(error)), -E2BIG,
                     "%s", bombs[i]);
    memset(deep, '(', sizeof(deep));
    cr_assert_eq(mco_match_create(deep, 4096, &m, error, sizeof(error)), -E2BIG);
    memset(deep, 'a', sizeof(deep));
    cr_assert_eq(mco_match_create(deep, sizeof(deep), &m, error, sizeof(error)), -E2BIG);
    memset(key, 'a', sizeof(key));
    memcpy(key + sizeof(key) - 2, "bc", 2); /* else it is known at once that no b is there */
    for (size_t i = 0; i < sizeof(slow) / sizeof(slow[0]); i++) {
        m = made(slow[i]);
        cr_assert_not(mco_match_gave_up(m));
        cr_assert_not(mco_match(m, key, sizeof(key)), "%s", slow[i]);
        cr_assert(mco_match_gave_up(m), "%s", slow[i]);
        mco_match_destroy(m);
    }
}
