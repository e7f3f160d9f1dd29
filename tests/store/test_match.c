/* SPDX-License-Identifier: Apache-2.0 */
/* Regular expressions of strangers: as POSIX has them, and never without an end. */
#include <criterion/criterion.h>
#include <errno.h>
#include <regex.h>
#include <stdio.h>
#include <stdlib.h>
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

    mco_match_destroy(m);
    return found;
}

Test(match, what_people_write)
{
    cr_assert(matches("", "anything"));
    cr_assert(matches("^$", ""));
    cr_assert_not(matches("^$", "x"));
    cr_assert(matches("^model/[0-9]+/layer-(0|1)$", "model/17/layer-1"));
    cr_assert_not(matches("^model/[0-9]+/layer-(0|1)$", "model/17/layer-2"));
    cr_assert(matches("a\\.b", "xa.by"));
    cr_assert_not(matches("a\\.b", "xaxby"));
    cr_assert(matches("[[:xdigit:]]{8}", "key-00c0ffee"));
    cr_assert_not(matches("[[:xdigit:]]{8}", "key-00c0ffe"));
    cr_assert(matches("[]^-]", "-"));
    cr_assert(matches("[^]a]", "b"));
    cr_assert_not(matches("[^]a]", "]a"));
    cr_assert(matches("x)", "x)"));
}

Test(match, keys_with_a_nul_never_match_and_bytes_of_any_kind_do)
{
    struct mco_match *m = made(".");

    cr_assert_not(mco_match(m, "a\0b", 3));
    cr_assert(mco_match(m, "\xff", 1));
    mco_match_destroy(m);
}

Test(match, mistakes_are_said_with_their_place)
{
    static const struct {
        const char *text, *says;
    } list[] = {{"(a", "a ( has no ), at byte 2"}, {"[a", "a [ has no ], at byte 2"},
                {"a{2", "a { is not followed"},    {"a{3,2}", "a { is not followed"},
                {"a{256}", "a { is not followed"}, {"*a", "nothing before it"},
                {"a|+", "nothing before it"},      {"^*", "nothing before it"},
                {"a\\", "a \\ is the last"},       {"(a)\\1", "back references"},
                {"[z-a]", "wrong way round"},      {"[[:nosuch:]]", "not known"},
                {"[[:alpha:", "has no end"}};

    for (size_t i = 0; i < sizeof(list) / sizeof(list[0]); i++) {
        struct mco_match *m = NULL;

        cr_assert_eq(mco_match_create(list[i].text, strlen(list[i].text), &m, error, sizeof(error)),
                     -EINVAL, "%s", list[i].text);
        cr_assert_not_null(strstr(error, list[i].says), "%s: %s", list[i].text, error);
    }
}

/* Each of these keeps regcomp() or regexec() busy for ever, or takes all memory. */
Test(match, what_would_have_no_end_is_refused_or_has_one)
{
    static const char *const bombs[] = {"(((a{1,255}){1,255}){1,255}){1,255}",
                                        "(){255}{255}{255}{255}", "((a*)*)*b{255}{255}",
                                        "a++++++++++++++++++++++++++++++"};
    char deep[4096], key[4096];
    struct mco_match *m = NULL;

    for (size_t i = 0; i < sizeof(bombs) / sizeof(bombs[0]); i++)
        cr_assert_eq(mco_match_create(bombs[i], strlen(bombs[i]), &m, error, sizeof(error)), -E2BIG,
                     "%s", bombs[i]);
    memset(deep, '(', sizeof(deep));
    cr_assert_eq(mco_match_create(deep, sizeof(deep), &m, error, sizeof(error)), -E2BIG);
    memset(deep, '*', sizeof(deep));
    deep[0] = 'a';
    cr_assert_eq(mco_match_create(deep, sizeof(deep), &m, error, sizeof(error)), 0, "%s", error);
    mco_match_destroy(m);
    memset(deep, '|', sizeof(deep));
    cr_assert_eq(mco_match_create(deep, sizeof(deep), &m, error, sizeof(error)), 0, "%s", error);
    mco_match_destroy(m);
    /* exponential for who tries one way after the other */
    memset(key, 'a', sizeof(key));
    m = made("^(a|aa|a*)*(a|a)*(aa|aaa)*b");
    cr_assert_not(mco_match(m, key, sizeof(key)));
    mco_match_destroy(m);
}

/* Random texts over few characters: the same verdicts as the C library's. */
Test(match, agrees_with_the_c_library)
{
    static const char parts[][8] = {"a",   "b",     "c",    ".",  "(",    ")",    "|",
                                    "*",   "+",     "?",    "^",  "$",    "[ab]", "[^a]",
                                    "{2}", "{1,3}", "{2,}", "a-", "[b-c]"};
    unsigned both = 0, yes = 0;

    srand(20);
    for (int round = 0; round < 30000; round++) {
        char text[128] = "", key[16];
        struct mco_match *m = NULL;
        int n = 1 + rand() % 8, res;
        regex_t re;

        for (int i = 0; i < n; i++)
            strcat(text, parts[(size_t)rand() % (sizeof(parts) / sizeof(parts[0]))]);
        if (strstr(text, "^") != NULL && strstr(text, "^") != text)
            continue; /* inside, the C library has rules of its own */
        if (strchr(text, '$') != NULL && strchr(text, '$')[1] != '\0')
            continue;
        if (strstr(text, "()") != NULL || strstr(text, "}{") != NULL)
            continue;
        res = mco_match_create(text, strlen(text), &m, error, sizeof(error));
        if (regcomp(&re, text, REG_EXTENDED | REG_NOSUB) != 0) {
            mco_match_destroy(m); /* may be more lenient */
            continue;
        }
        if (res == 0) {
            both++;
            for (int k = 0; k < 20; k++) {
                int length = rand() % 8;
                bool found;

                for (int i = 0; i < length; i++)
                    key[i] = "abc-"[rand() % 4];
                key[length] = '\0';
                found = mco_match(m, key, (size_t)length);
                yes += found;
                cr_assert_eq(found, regexec(&re, key, 0, NULL, 0) == 0, "'%s' and '%s'", text, key);
            }
            mco_match_destroy(m);
        } else {
            cr_assert(0, "'%s' is refused (%s), the C library takes it", text, error);
        }
        regfree(&re);
    }
    cr_assert_gt(both, 3000u);
    cr_assert_gt(yes, both);
}
