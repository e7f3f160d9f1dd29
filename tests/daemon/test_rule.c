/* SPDX-License-Identifier: Apache-2.0 */
/* Rules of tenants: sections of the configuration, who belongs where, and tenants made of them. */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/rule.h"
#include "daemon/tenant.h"

static int load(struct mcd_config *c, const char *text, size_t size, char *error)
{
    char name[] = "/tmp/mcshm-rules-XXXXXX";
    int fd = mkstemp(name), res;

    cr_assert_geq(fd, 0);
    cr_assert_eq(write(fd, text, size), (ssize_t)size);
    close(fd);
    mcd_config_init(c);
    error[0] = '\0';
    res = mcd_config_load(c, name, error, 512);
    if (res == 0)
        res = mcd_config_check(c, error, 512);
    unlink(name);
    return res;
}

static const char good[] =
    "[tenant]\nweight = 3\nmemory = 1G\n"
    "[tenant:prod]\nuids = 1000-1999 , 2005\nweight = 10\n"
    "[tenant:batch]\ngids = 7,100-200\nrate = 1G\ntasks = 5\n"
    "[tenant:mixed]\nuids = 0\ngids = 8\nsessions = 2\nqueues = 3\nbatches = 4\n";

Test(rule, sections_are_read_and_dumped)
{
    static struct mcd_config c, again;
    char error[512], *text = NULL;
    size_t n = 0;
    FILE *out;

    cr_assert_eq(load(&c, good, strlen(good), error), 0, "%s", error);
    cr_assert_eq(c.ntenants, 3u);
    cr_assert_eq(c.tenants[0].weight, 3u);
    cr_assert_eq(c.tenants[0].memory, UINT64_C(1) << 30);
    cr_assert_str_eq(c.tenants[1].name, "prod");
    cr_assert_eq(c.tenants[1].weight, 10u);
    cr_assert_eq(c.tenants[1].memory, 0u, "a section with a name has defaults of its own");
    cr_assert_eq(c.tenants[2].rate, UINT64_C(1) << 30);
    cr_assert_eq(c.tenants[2].tasks, 5u);
    cr_assert_eq(c.tenants[3].batches, 4u);
    out = open_memstream(&text, &n);
    mcd_config_dump(&c, out);
    fclose(out);
    cr_assert_eq(load(&again, text, n, error), 0, "%s", error);
    free(text);
    cr_assert_eq(memcmp(&c, &again, sizeof(c)), 0, "what is dumped reads back the same");
    cr_assert_eq(mcd_config_set(&c, "tenant:batch.weight=7", error, sizeof(error)), 0, "%s", error);
    cr_assert_eq(mcd_config_set(&c, "tenant.weight=8", error, sizeof(error)), 0, "%s", error);
    cr_assert_eq(mcd_config_set(&c, "tenant:new.uids=5", error, sizeof(error)), 0, "%s", error);
    cr_assert_eq(c.tenants[2].weight, 7u);
    cr_assert_eq(c.tenants[0].weight, 8u);
    cr_assert_str_eq(c.tenants[4].name, "new");
}

Test(rule, the_first_that_names_somebody_has_him)
{
    static struct mcd_config c;
    const gid_t many[] = {5, 150, 8}, few[] = {5, 6};
    char error[512];

    cr_assert_eq(load(&c, good, strlen(good), error), 0, "%s", error);
    cr_assert_str_eq(mcd_tenant_rule_of(&c, 1000, few, 2)->name, "prod");
    cr_assert_str_eq(mcd_tenant_rule_of(&c, 1999, many, 3)->name, "prod");
    cr_assert_str_eq(mcd_tenant_rule_of(&c, 2005, few, 2)->name, "prod");
    cr_assert_str_eq(mcd_tenant_rule_of(&c, 2000, few, 2)->name, "");
    cr_assert_str_eq(mcd_tenant_rule_of(&c, 2000, many, 3)->name, "batch");
    cr_assert_str_eq(mcd_tenant_rule_of(&c, 0, few, 2)->name, "mixed");
    cr_assert_str_eq(mcd_tenant_rule_of(&c, 0, many, 3)->name, "batch", "it comes first");
    cr_assert_str_eq(mcd_tenant_rule_of(&c, 9, many + 2, 1)->name, "mixed");
    cr_assert_str_eq(mcd_tenant_rule_of(&c, (uid_t)-1, few, 2)->name, "");
}

Test(rule, what_is_wrong_is_named)
{
    static const struct {
        const char *text, *words[4];
    } bad[] = {
        {"[tenant:a]\nweight = 0\nuids = 1\n", {"[tenant:a] weight", "'0'", "1 to 1000"}},
        {"[tenant:a]\nweight = 1001\nuids = 1\n", {"'1001'"}},
        {"[tenant:a]\nweight = 2\n", {"[tenant:a]", "nobody", "uids or gids"}},
        {"[tenant:a]\n", {"[tenant:a]", "nobody"}},
        {"[tenant:a]\nuids = 1,\n", {"[tenant:a] uids", "'1,'"}},
        {"[tenant:a]\nuids = ,1\n", {"[tenant:a] uids"}},
        {"[tenant:a]\nuids = 5-\n", {"[tenant:a] uids"}},
        {"[tenant:a]\nuids = 5-3\n", {"[tenant:a] uids"}},
        {"[tenant:a]\nuids = 1-2-3\n", {"[tenant:a] uids"}},
        {"[tenant:a]\nuids = root\n", {"'root'"}},
        {"[tenant:a]\nuids = 4294967295\n", {"4294967294"}},
        {"[tenant:a]\nuids = 99999999999999999999\n", {"[tenant:a] uids"}},
        {"[tenant:a]\ngids = -1\n", {"[tenant:a] gids"}},
        {"[tenant:a]\nuids = 1-9\n[tenant:b]\nuids = 9-20\n",
         {"[tenant:a]", "[tenant:b]", "user 9"}},
        {"[tenant:a]\ngids = 4\n[tenant:b]\ngids = 1,2,4\n",
         {"[tenant:a]", "[tenant:b]", "group 4"}},
        {"[tenant:a]\nuid = 1\n", {"[tenant:a] uid", "unknown key"}},
        {"[tenant]\nuids = 1\n", {"[tenant] uids", "only [tenant:NAME]"}},
        {"[tenant]\nmemory = x\n", {"[tenant] memory", "'x'"}},
        {"[tenant:]\nuids = 1\n", {"lower-case"}},
        {"[tenant:1000]\nuids = 1\n", {"[tenant:1000]", "a letter first"}},
        {"[tenant:a b]\nuids = 1\n", {"[tenant:a b]"}},
        {"[tenant:a:b]\nuids = 1\n", {"[tenant:a] b", "unknown key"}},
        {"[tenant:0123456789012345678901234567890123456789]\nuids = 1\n", {"31"}},
        {"[tenants]\nuids = 1\n", {"[tenants]", "unknown section"}},
    };
    static struct mcd_config c;
    char error[512], text[8192];
    size_t n = 0;

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        cr_assert_eq(load(&c, bad[i].text, strlen(bad[i].text), error), -EINVAL, "%s", bad[i].text);
        for (int w = 0; w < 4 && bad[i].words[w] != NULL; w++)
            cr_assert_not_null(strstr(error, bad[i].words[w]), "%s: \"%s\" lacks \"%s\"",
                               bad[i].text, error, bad[i].words[w]);
        cr_assert_null(strchr(error, '\n'));
    }
    for (unsigned i = 0; i <= MCD_TENANTS_MAX; i++)
        n += (size_t)snprintf(text + n, sizeof(text) - n, "[tenant:t%u]\nuids = %u\n", i, i);
    cr_assert_eq(load(&c, text, n, error), -EINVAL);
    cr_assert_not_null(strstr(error, "64"), "%s", error);
}

/* Whatever stands in these sections: refused in a sentence, or taken and dumped and read back the same. */
Test(rule, any_text_is_survived, .timeout = 60)
{
    static const char *const words[] = {"[tenant]\n",
                                        "[tenant:a]\n",
                                        "[tenant:",
                                        "]",
                                        "uids",
                                        "gids",
                                        " = ",
                                        "=",
                                        "1-5",
                                        "7",
                                        ",",
                                        "-",
                                        "\n",
                                        "weight",
                                        "rate",
                                        ":",
                                        "tenant:a:weight = 3\n",
                                        "9G",
                                        ";",
                                        "\"",
                                        "4294967294",
                                        "\\\n",
                                        "[tenant:b]\n",
                                        "memory = 1M\n",
                                        "\t",
                                        "\xff",
                                        "uids = 3\n"};
    static struct mcd_config c, again;
    unsigned seed = 7, taken = 0;
    char error[512], text[1024], *dump;

    for (unsigned i = 0; i < 3000; i++) {
        size_t n = 0, size = 0;
        FILE *out;

        for (unsigned k = 0; k < 1 + i % 24; k++) {
            seed = seed * 1103515245 + 12345;
            n += (size_t)snprintf(text + n, sizeof(text) - n, "%s",
                                  words[(seed >> 16) % (sizeof(words) / sizeof(words[0]))]);
        }
        if (load(&c, text, n, error) != 0) {
            cr_assert_neq(error[0], '\0', "%s", text);
            continue;
        }
        taken++;
        out = open_memstream(&dump, &size);
        mcd_config_dump(&c, out);
        fclose(out);
        cr_assert_eq(load(&again, dump, size, error), 0, "%s gave %s: %s", text, dump, error);
        cr_assert_eq(memcmp(&c, &again, sizeof(c)), 0, "%s gave %s", text, dump);
        free(dump);
    }
    cr_assert_gt(taken, 20u);
}

/* ---- tenants --------------------------------------------------------------------- */

Test(rule, ids_of_names_are_equal_everywhere_and_no_uids)
{
    /* a constant: other hosts run other versions */
    cr_assert_eq(mcd_tenant_id("prod"), UINT64_C(0x85729c0e3537be14) | UINT64_C(1) << 63, "%#llx",
                 (unsigned long long)mcd_tenant_id("prod"));
    cr_assert_neq(mcd_tenant_id("prod"), mcd_tenant_id("prod2"));
    cr_assert_eq(mcd_tenant_id("a") >> 63, 1u);
}

Test(rule, tenants_come_go_and_change)
{
    static struct mcd_config c;
    struct mcd_tenants all = {0};
    struct mcd_tenant *prod, *same, *user, *other;
    const gid_t gid = 77;
    char error[512];

    cr_assert_eq(load(&c, good, strlen(good), error), 0, "%s", error);
    cr_assert_eq(mcd_tenant_get(&all, &c, 1000, &gid, 1, &prod), 0);
    cr_assert_eq(mcd_tenant_get(&all, &c, 1001, &gid, 1, &same), 0);
    cr_assert_eq(mcd_tenant_get(&all, &c, 4000, &gid, 1, &user), 0);
    cr_assert_eq(mcd_tenant_get(&all, &c, 4001, &gid, 1, &other), 0);
    cr_assert_eq(prod, same);
    cr_assert_neq(user, other);
    cr_assert_eq(user->id, 4000u);
    cr_assert_str_eq(user->name, "4000");
    cr_assert_eq(prod->scale, MCD_SHARE_ONE / 10);
    cr_assert_eq(user->scale, MCD_SHARE_ONE / 3);
    cr_assert(mcd_tenant_allows(user, MCD_LIMIT_MEMORY, 0, UINT64_C(1) << 30));
    cr_assert(!mcd_tenant_allows(user, MCD_LIMIT_MEMORY, 1, UINT64_C(1) << 30));
    cr_assert(!mcd_tenant_allows(user, MCD_LIMIT_MEMORY, 1, UINT64_MAX));
    cr_assert(mcd_tenant_allows(prod, MCD_LIMIT_MEMORY, 1, UINT64_MAX));
    cr_assert_eq(user->refused[MCD_LIMIT_MEMORY], 2u);
    cr_assert_eq(mcd_config_set(&c, "tenant.memory=2G", error, sizeof(error)), 0);
    cr_assert_eq(mcd_config_set(&c, "tenant:prod.rate=5", error, sizeof(error)), 0);
    mcd_tenants_adopt(&all, &c);
    cr_assert(mcd_tenant_allows(user, MCD_LIMIT_MEMORY, 1, UINT64_C(1) << 30));
    cr_assert_eq(prod->rate, 5u);
    mcd_tenant_put(&all, prod);
    mcd_tenant_put(&all, same);
    cr_assert_eq(mcd_tenant_get(&all, &c, 1500, &gid, 1, &same), 0);
    cr_assert_eq(prod, same, "it is remembered, with its counters");
    mcd_tenant_put(&all, user);
    mcd_tenant_put(&all, other);
    for (uid_t uid = 10000; uid < 12000; uid++) { /* but not without end */
        cr_assert_eq(mcd_tenant_get(&all, &c, uid, &gid, 1, &user), 0);
        mcd_tenant_put(&all, user);
    }
    cr_assert_lt(all.count, 300u);
    mcd_tenants_fini(&all);
}

#define HZ UINT64_C(1000000000)

/* A debt was reckoned at the rate of then: under another rate it is none. */
Test(rule, a_rate_that_is_raised_counts_at_once)
{
    static struct mcd_config c;
    struct mcd_tenants all = {0};
    struct mcd_tenant *user;
    const gid_t gid = 77;
    char error[512];

    mcd_config_init(&c);
    cr_assert_eq(mcd_config_set(&c, "tenant.rate=1", error, sizeof(error)), 0, "%s", error);
    cr_assert_eq(mcd_tenant_get(&all, &c, 4000, &gid, 1, &user), 0);
    mcd_tenant_pay(user, 1 << 20, HZ, HZ); /* twelve days */
    mcd_tenants_adopt(&all, &c);
    cr_assert(!mcd_tenant_may(user, 1000 * HZ), "a reload that changes nothing is no way out");
    cr_assert_eq(mcd_config_set(&c, "tenant.rate=0", error, sizeof(error)), 0, "%s", error);
    mcd_tenants_adopt(&all, &c);
    cr_assert(mcd_tenant_may(user, 1000 * HZ));
    cr_assert_eq(mcd_config_set(&c, "tenant.rate=1G", error, sizeof(error)), 0, "%s", error);
    mcd_tenants_adopt(&all, &c);
    cr_assert(mcd_tenant_may(user, 1000 * HZ));
    mcd_tenant_pay(user, 1 << 20, 1000 * HZ, HZ);
    mcd_tenant_put(&all, user); /* nor is a new connection */
    cr_assert_eq(mcd_tenant_get(&all, &c, 4000, &gid, 1, &user), 0);
    mcd_tenant_pay(user, 1 << 30, 1000 * HZ, HZ);
    mcd_tenant_put(&all, user);
    cr_assert_eq(mcd_tenant_get(&all, &c, 4000, &gid, 1, &user), 0);
    cr_assert(!mcd_tenant_may(user, 1000 * HZ));
    mcd_tenant_put(&all, user);
    mcd_tenants_fini(&all);
}

/* Sessions of an earlier agent whose section is gone have the limits of [tenant], until it is back. */
Test(rule, a_section_that_comes_back_is_theirs_who_had_it)
{
    static struct mcd_config c;
    struct mcd_tenants all = {0};
    struct mcd_tenant *t, *fresh;
    const gid_t gid = 77;
    char error[512];

    mcd_config_init(&c);
    cr_assert_eq(mcd_config_set(&c, "tenant.weight=3", error, sizeof(error)), 0, "%s", error);
    cr_assert_eq(mcd_tenant_get_again(&all, &c, mcd_tenant_id("serving"), &t), 0);
    cr_assert_eq(t->limits.weight, 3u);
    cr_assert_eq(strncmp(t->name, "0x", 2), 0, "%s", t->name);
    cr_assert_eq(mcd_config_set(&c, "tenant:serving.weight=8", error, sizeof(error)), 0);
    cr_assert_eq(mcd_config_set(&c, "tenant:serving.uids=4000", error, sizeof(error)), 0);
    mcd_tenants_adopt(&all, &c);
    cr_assert_eq(t->limits.weight, 8u);
    cr_assert_eq(t->scale, MCD_SHARE_ONE / 8);
    cr_assert_str_eq(t->name, "serving");
    cr_assert_eq(mcd_tenant_get(&all, &c, 4000, &gid, 1, &fresh), 0);
    cr_assert_eq(t, fresh);
    mcd_tenant_put(&all, t);
    mcd_tenant_put(&all, fresh);
    mcd_tenants_fini(&all);
}
