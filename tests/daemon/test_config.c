/* SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/config.h"
#include "daemon/version.h"
#include "lib/mcshm.h"

static char path[] = "/tmp/mcshm-config-XXXXXX";

static int load(const char *text, char *error)
{
    struct mcd_config c;
    char name[sizeof(path)];
    int fd, res;

    memcpy(name, path, sizeof(path));
    fd = mkstemp(name);
    cr_assert_geq(fd, 0);
    cr_assert_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
    mcd_config_init(&c);
    res = mcd_config_load(&c, name, error, 512);
    unlink(name);
    return res;
}

Test(config, sample_is_the_default)
{
    struct mcd_config defaults, sample;
    char error[512], *text = NULL;
    char name[sizeof(path)];
    size_t n = 0;
    FILE *out;
    int fd;

    memcpy(name, path, sizeof(path));
    fd = mkstemp(name);
    out = fdopen(fd, "w");
    mcd_config_sample(out);
    fclose(out);
    mcd_config_init(&defaults);
    memset(&sample, 0, sizeof(sample));
    cr_assert_eq(mcd_config_load(&sample, name, error, sizeof(error)), 0, "%s", error);
    unlink(name);
    cr_assert_eq(memcmp(&defaults, &sample, sizeof(sample)), 0);
    cr_assert_eq(mcd_config_check(&defaults, error, sizeof(error)), 0, "%s", error);
    /* and what is dumped reads back the same */
    out = open_memstream(&text, &n);
    mcd_config_dump(&defaults, out);
    fclose(out);
    cr_assert_eq(load(text, error), 0, "%s", error);
    free(text);
}

Test(config, bad_values_name_key_value_and_range)
{
    static const struct {
        const char *text, *words[4];
    } bad[] = {
        {"[pool]\nsize = abc\n", {"[pool] size", "'abc'", "2M to 64T"}},
        {"[pool]\nsize = -1\n", {"[pool] size", "'-1'"}},
        {"[pool]\nsize = 12abc\n", {"'12abc'"}},
        {"[pool]\nsize = 1e3\n", {"'1e3'"}},
        {"[pool]\nsize = 0\n", {"'0'", "2M"}},
        {"[pool]\nsize = 65T\n", {"'65T'", "64T"}},
        {"[pool]\nsize = 99999999999999999999\n", {"[pool] size"}},
        {"[pool]\nsize = 18446744073709551615T\n", {"[pool] size"}},
        {"[pool]\nsize =\n", {"[pool] size", "''"}},
        {"[pool]\npages = maybe\n", {"[pool] pages", "'maybe'", "prefer|require|off"}},
        {"[queue]\ndepth = 65537\n", {"[queue] depth", "'65537'", "2 to 65536"}},
        {"[agent]\nsocket_mode = 0999\n", {"[agent] socket_mode", "0777"}},
        {"[pool]\nsizes = 1G\n", {"[pool] sizes", "unknown key"}},
        {"[pol]\nsize = 1G\n", {"[pol]", "unknown section"}},
        {"[agent]\nsocket = 0123456789012345678901234567890123456789012345678901234567890123456789"
         "01234567890123456789012345678901234567890\n",
         {"[agent] socket", "107"}},
    };

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        char error[512] = "";

        cr_assert_eq(load(bad[i].text, error), -EINVAL, "%s", bad[i].text);
        for (int w = 0; w < 4 && bad[i].words[w] != NULL; w++)
            cr_assert_not_null(strstr(error, bad[i].words[w]), "%s: \"%s\" lacks \"%s\"",
                               bad[i].text, error, bad[i].words[w]);
    }
}

/* A key as the sample file tells of it. */
struct told_key {
    char section[64], name[64], unit[64], range[160];
};

/* Calls f for each key. */
static unsigned each_key(void (*f)(const struct told_key *k))
{
    char *text = NULL, *line, *rest;
    struct told_key k = {.section = ""};
    unsigned keys = 0;
    size_t n = 0;
    FILE *out = open_memstream(&text, &n);

    mcd_config_sample(out);
    fclose(out);
    rest = text;
    while ((line = strsep(&rest, "\n")) != NULL) {
        if (sscanf(line, "[%63[^]]]", k.section) == 1)
            continue;
        if (line[0] == ';') { /* the last comment before a key is "unit: range" */
            char *colon = strstr(line, ": ");

            if (colon != NULL && colon - line < (ptrdiff_t)sizeof(k.unit)) {
                snprintf(k.unit, sizeof(k.unit), "%.*s", (int)(colon - line - 2), line + 2);
                snprintf(k.range, sizeof(k.range), "%.*s", (int)strcspn(colon + 2, ";"), colon + 2);
            }
        } else if (sscanf(line, "%63[^ =] =", k.name) == 1) {
            keys++;
            f(&k);
        }
    }
    free(text);
    return keys;
}

static void refuse(const struct told_key *k, const char *value)
{
    char text[512], error[512] = "", name[160], quoted[400];

    snprintf(text, sizeof(text), "[%s]\n%s = %s\n", k->section, k->name, value);
    cr_assert_eq(load(text, error), -EINVAL, "taken: [%s] %s = %s", k->section, k->name, value);
    snprintf(name, sizeof(name), "[%s] %s", k->section, k->name);
    snprintf(quoted, sizeof(quoted), "'%s'", value);
    cr_assert_not_null(strstr(error, name), "%s: %s", name, error);
    cr_assert_not_null(strstr(error, quoted), "%s: %s", name, error);
    cr_assert_not_null(strstr(error, k->range), "%s: %s lacks %s", name, error, k->range);
}

static unsigned numbers, texts, words;

static void refuse_nonsense(const struct told_key *k)
{
    static const char *const nonsense[] = {"",
                                           "abc",
                                           "-1",
                                           "1e3",
                                           "12abc",
                                           "0x10",
                                           "1.5",
                                           "+1",
                                           "18446744073709551616",
                                           "1K1",
                                           "1 K",
                                           "1Q",
                                           "nan",
                                           "99999999999999999999999"};
    char above[320], error[512] = "";
    unsigned long long max;
    char suffix = 0;
    const char *to = strstr(k->range, " to ");

    if (to != NULL && strstr(k->range, "characters") != NULL) {
        /* any text will do, if it is not too long (nor empty, where something must be said) */
        texts++;
        max = strtoull(to + 4, NULL, 10);
        memset(above, 'x', max + 1);
        above[max + 1] = '\0';
        refuse(k, above);
    } else if (to != NULL) {
        numbers++;
        for (size_t i = 0; i < sizeof(nonsense) / sizeof(nonsense[0]); i++)
            refuse(k, nonsense[i]);
        if (strcmp(k->unit, "octal mode") == 0) {
            refuse(k, "01000");
            refuse(k, "9");
        } else {
            sscanf(to + 4, "%llu%c", &max, &suffix);
            snprintf(above, sizeof(above), suffix > ' ' ? "%llu%c" : "%llu", max + 1, suffix);
            refuse(k, above);
        }
    } else {
        words++;
        for (size_t i = 0; i < sizeof(nonsense) / sizeof(nonsense[0]); i++)
            refuse(k, nonsense[i]);
    }
    /* a name that is almost right, and one key twice */
    snprintf(above, sizeof(above), "[%s]\n%ss = 1\n", k->section, k->name);
    cr_assert_eq(load(above, error), -EINVAL, "taken: %s", above);
    cr_assert_not_null(strstr(error, "unknown key"), "%s", error);
    snprintf(above, sizeof(above), "[%s]\n%s = 1\n[agent]\n[%s]\n  %s=1\n", k->section, k->name,
             k->section, k->name);
    cr_assert_eq(load(above, error), -EINVAL, "taken: %s", above);
    cr_assert_not_null(strstr(error, "is set in line 2 and again in line 5"), "%s", error);
}

Test(config, each_key_refuses_nonsense_with_name_value_and_range)
{
    unsigned keys = each_key(refuse_nonsense);

    cr_assert_gt(keys, 50u);
    cr_assert_eq(numbers + texts + words, keys);
    cr_assert(numbers > 20 && texts > 10 && words > 5, "%u %u %u", numbers, texts, words);
}

Test(config, contradictions_are_refused)
{
    static const char *const bad[] = {"queue.depth=3",        "session.inbox_size=20000",
                                      "pool.page_size=4M",    "pool.address_base=33000000M",
                                      "pool.extent_size=2G",  "queue.args_size=16385",
                                      "rdma.chunk=1025K",     "rdma.gid_index=one",
                                      "rdma.gid_index=256",   "rdma.enable=require",
                                      "rdma.devices=a,b/256", "rdma.deny=mlx5_0/x",
                                      "store.size=64G",       "store.extent_size=2G",
                                      "store.policy=mru",     "store.high=94",
                                      "store.low=97",         "store.events=3M",
                                      "store.beat_ms=20000",  "store.gone_ms=5000",
                                      "store.disk=objects",   "store.master=someone"};

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct mcd_config c;
        char error[512] = "";

        mcd_config_init(&c);
        cr_assert_eq(mcd_config_set(&c, bad[i], error, sizeof(error)), 0, "%s: %s", bad[i], error);
        cr_assert_eq(mcd_config_check(&c, error, sizeof(error)), -EINVAL, "%s", bad[i]);
        cr_assert_not_null(strstr(error, "want") != NULL ? error : strstr(error, "make one fit"));
    }
}

Test(config, a_store_of_less_than_a_page_is_refused)
{
    static const char *const keys[] = {"pool.page_size=1G", "store.size=512M",
                                       "pool.pages=require"};
    struct mcd_config c;
    char error[512] = "";

    mcd_config_init(&c);
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
        cr_assert_eq(mcd_config_set(&c, keys[i], error, sizeof(error)), 0, "%s", error);
    cr_assert_eq(mcd_config_check(&c, error, sizeof(error)), -EINVAL);
    cr_assert_not_null(strstr(error, "[store] size = 536870912: less than one page"), "%s", error);
    cr_assert_eq(mcd_config_set(&c, "pool.pages=off", error, sizeof(error)), 0);
    cr_assert_eq(mcd_config_check(&c, error, sizeof(error)), 0, "%s", error);
}

Test(config, set_needs_its_form)
{
    static const char *const bad[] = {"",        "pool",     "pool.size",  "size=1G",
                                      "pool.=1", ".size=1G", "pool.nope=1"};

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct mcd_config c;
        char error[512] = "";

        mcd_config_init(&c);
        cr_assert_eq(mcd_config_set(&c, bad[i], error, sizeof(error)), -EINVAL, "%s", bad[i]);
        cr_assert_neq(error[0], '\0');
    }
}

static void told(void *context, const char *key, bool changed)
{
    char *text = context;

    snprintf(text + strlen(text), 256 - strlen(text), "%s%s ", changed ? "+" : "-", key);
}

Test(config, only_live_keys_change_under_way)
{
    struct mcd_config a, b;
    char error[512], text[256] = "";

    mcd_config_init(&a);
    mcd_config_init(&b);
    cr_assert_eq(mcd_config_set(&b, "task.deadline_ms=5", error, sizeof(error)), 0);
    cr_assert_eq(mcd_config_set(&b, "agent.log_level=debug", error, sizeof(error)), 0);
    cr_assert_eq(mcd_config_set(&b, "pool.page_size=1G", error, sizeof(error)), 0);
    cr_assert_eq(mcd_config_set(&b, "engine.cores=0", error, sizeof(error)), 0);
    cr_assert_eq(mcd_config_adopt(&a, &b, told, text), 2u);
    cr_assert_eq(a.deadline_ms, 5u);
    cr_assert_eq(a.page_size, UINT64_C(2) << 20);
    cr_assert_str_eq(text, "+agent.log_level -pool.page_size -engine.cores +task.deadline_ms ");
    text[0] = '\0';
    cr_assert_eq(mcd_config_adopt(&a, &a, told, text), 0u);
    cr_assert_str_eq(text, "");
}

Test(config, agent_and_library_have_one_version)
{
    cr_assert_str_eq(MCD_VERSION, MCSHM_VERSION);
}
