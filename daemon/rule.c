/* SPDX-License-Identifier: Apache-2.0 */
#include "rule.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "key.h"

#define K(f) offsetof(struct mcd_tenant_rule, f)

static const struct mcd_key keys[] = {
    {"tenant", "weight", MCD_KEY_NUMBER, K(weight), "1", 1, 1000, NULL, "shares",
     "share of the engines' bytes beside other tenants that want them too", true},
    {"tenant", "memory", MCD_KEY_SIZE, K(memory), "0", 0, TiB(64), NULL, "bytes",
     "most memory of its clients, mappings included; 0: as much as the pool has", true},
    {"tenant", "sessions", MCD_KEY_NUMBER, K(sessions), "0", 0, 16384, NULL, "sessions",
     "most sessions at a time; 0: [session] max is the only limit", true},
    {"tenant", "queues", MCD_KEY_NUMBER, K(queues), "0", 0, 1000000, NULL, "queues",
     "most queues of all its sessions together; 0: [queue] max_per_session is the only limit",
     true},
    {"tenant", "tasks", MCD_KEY_NUMBER, K(tasks), "0", 0, 1000000000, NULL, "tasks",
     "most tasks that were taken from its queues and have not ended; more end INVALID with LIMIT; "
     "0: no limit",
     true},
    {"tenant", "batches", MCD_KEY_NUMBER, K(batches), "0", 0, 1000000000, NULL, "batches",
     "most batches that have such tasks; 0: no limit", true},
    {"tenant", "rate", MCD_KEY_SIZE, K(rate), "0", 0, TiB(1), NULL, "bytes per second",
     "most bytes that the agent moves for it; 0: no limit; else its clients make no copies in "
     "their own threads",
     true},
    {"tenant", "store", MCD_KEY_SIZE, K(store), "0", 0, TiB(64), NULL, "bytes",
     "most memory of the store for its objects; 0: as much as the store has", true},
};
/* Who belongs to [tenant:NAME]. */
static const struct mcd_key members[] = {
    {"tenant", "uids", MCD_KEY_TEXT, K(uids), "", 0, MCD_TEXT_MAX - 1, NULL, "list",
     "its users: numbers and ranges, such as 1000-1999,2005; the next connection counts", true},
    {"tenant", "gids", MCD_KEY_TEXT, K(gids), "", 0, MCD_TEXT_MAX - 1, NULL, "list",
     "its groups, primary or supplementary, likewise", true},
};
#define NKEYS (sizeof(keys) / sizeof(keys[0]))
#define NMEMBERS (sizeof(members) / sizeof(members[0]))

/* All of them by one index; [tenant] has no members. */
static const struct mcd_key *key_at(size_t i, bool named)
{
    if (named && i < NMEMBERS)
        return &members[i];
    i -= named ? NMEMBERS : 0;
    return i < NKEYS ? &keys[i] : NULL;
}

void mcd_tenant_rule_init(struct mcd_tenant_rule *r, const char *name)
{
    const struct mcd_key *k;
    char error[256];

    memset(r, 0, sizeof(*r));
    snprintf(r->name, sizeof(r->name), "%s", name);
    for (size_t i = 0; (k = key_at(i, true)) != NULL; i++)
        if (mcd_key_assign(r, "tenant", k, k->initial, error, sizeof(error)) != 0)
            abort(); /* a default outside its own range: tests/daemon/test_rule.c sees it first */
}

static bool good_name(const char *name)
{
    size_t n = strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_-");

    return islower((unsigned char)name[0]) && name[n] == '\0' && n < MCD_TENANT_NAME_MAX;
}

/* The rule of this name, made when it is new. */
static struct mcd_tenant_rule *rule_of(struct mcd_config *c, const char *name, char *error,
                                       size_t error_size)
{
    struct mcd_tenant_rule *r;

    for (uint64_t i = 1; i <= c->ntenants; i++)
        if (strcmp(c->tenants[i].name, name) == 0)
            return &c->tenants[i];
    if (!good_name(name)) {
        snprintf(error, error_size,
                 "[tenant:%.80s]: a tenant's name has 1 to %u lower-case letters, digits, '-' and "
                 "'_', a letter first",
                 name, MCD_TENANT_NAME_MAX - 1);
        return NULL;
    }
    if (c->ntenants == MCD_TENANTS_MAX) {
        snprintf(error, error_size,
                 "[tenant:%s]: there are %u sections of tenants already, which is the most; let "
                 "some users share one",
                 name, MCD_TENANTS_MAX);
        return NULL;
    }
    r = &c->tenants[++c->ntenants];
    mcd_tenant_rule_init(r, name);
    return r;
}

int mcd_tenant_rule_set(struct mcd_config *c, const char *section, const char *key,
                        const char *value, char *error, size_t error_size)
{
    bool named = strchr(section, ':') != NULL;
    const struct mcd_key *k = NULL;
    struct mcd_tenant_rule *r =
        named ? rule_of(c, strchr(section, ':') + 1, error, error_size) : &c->tenants[0];

    if (r == NULL)
        return -EINVAL;
    if (key == NULL)
        return 0;
    for (size_t i = 0; (k = key_at(i, named)) != NULL; i++)
        if (strcmp(k->name, key) == 0)
            return mcd_key_assign(r, section, k, value, error, error_size);
    snprintf(error, error_size,
             "[%s] %.80s: unknown key%s; `mcshmd --sample-config` lists all keys", section, key,
             !named && (strcmp(key, "uids") == 0 || strcmp(key, "gids") == 0)
                 ? " here, only [tenant:NAME] has it"
                 : "");
    return -EINVAL;
}

/* ---- lists of users and groups --------------------------------------------------- */

/* The next entry of a list: "5" or "5-9", parted by commas, blanks allowed. 1: there was one, 0: the end,
 * -EINVAL. (uid_t)-1 is nobody's. */
static int next_range(const char **at, uint32_t *first, uint32_t *last)
{
    const char *p = *at;
    unsigned long v[2] = {0, 0};

    p += strspn(p, " \t");
    if (*p == '\0')
        return 0;
    for (int i = 0; i < 2; i++) {
        char *end;

        if (!isdigit((unsigned char)*p))
            return -EINVAL;
        errno = 0;
        v[i] = strtoul(p, &end, 10);
        if (errno != 0 || v[i] >= UINT32_MAX)
            return -EINVAL;
        p = end + strspn(end, " \t");
        if (i == 0 && *p != '-') {
            v[1] = v[0];
            break;
        }
        p += i == 0 ? 1 + strspn(p + 1, " \t") : 0;
    }
    if (v[1] < v[0])
        return -EINVAL;
    if (*p == ',') {
        p++;
        if (p[strspn(p, " \t")] == '\0')
            return -EINVAL;
    } else if (*p != '\0') {
        return -EINVAL;
    }
    *at = p;
    *first = (uint32_t)v[0];
    *last = (uint32_t)v[1];
    return 1;
}

static bool list_has(const char *list, uint32_t id)
{
    uint32_t first, last;

    while (next_range(&list, &first, &last) == 1)
        if (id >= first && id <= last)
            return true;
    return false;
}

/* A number that both lists have. */
static bool lists_meet(const char *a, const char *b, uint32_t *common)
{
    uint32_t first, last, from, to;

    while (next_range(&a, &first, &last) == 1) {
        const char *p = b;

        while (next_range(&p, &from, &to) == 1) {
            *common = first > from ? first : from;
            if (*common <= last && *common <= to)
                return true;
        }
    }
    return false;
}

static int check_list(const struct mcd_tenant_rule *r, const char *key, const char *list,
                      char *error, size_t error_size)
{
    const char *p = list;
    uint32_t first, last;
    int res;

    while ((res = next_range(&p, &first, &last)) == 1)
        ;
    if (res != 0)
        snprintf(
            error, error_size,
            "[tenant:%s] %s = '%s': want numbers from 0 to %u and ranges, parted by commas, such "
            "as 1000-1999,2005",
            r->name, key, list, UINT32_MAX - 1);
    return res;
}

int mcd_tenant_rules_check(const struct mcd_config *c, char *error, size_t error_size)
{
    for (uint64_t i = 1; i <= c->ntenants; i++) {
        const struct mcd_tenant_rule *r = &c->tenants[i];
        int res = check_list(r, "uids", r->uids, error, error_size);
        uint32_t id;

        if (res == 0)
            res = check_list(r, "gids", r->gids, error, error_size);
        if (res != 0)
            return res;
        if (r->uids[0] == '\0' && r->gids[0] == '\0') {
            snprintf(error, error_size,
                     "[tenant:%s]: nobody belongs to it: want uids or gids, or remove it", r->name);
            return -EINVAL;
        }
        for (uint64_t j = 1; j < i; j++) {
            const struct mcd_tenant_rule *o = &c->tenants[j];
            bool users = lists_meet(o->uids, r->uids, &id);

            if (!users && !lists_meet(o->gids, r->gids, &id))
                continue;
            snprintf(error, error_size,
                     "[tenant:%s] and [tenant:%s] both name %s %u: want it in one of them", o->name,
                     r->name, users ? "user" : "group", id);
            return -EINVAL;
        }
    }
    return 0;
}

const struct mcd_tenant_rule *mcd_tenant_rule_of(const struct mcd_config *c, uid_t uid,
                                                 const gid_t *gids, size_t ngids)
{
    for (uint64_t i = 1; i <= c->ntenants; i++) {
        const struct mcd_tenant_rule *r = &c->tenants[i];

        if (list_has(r->uids, uid))
            return r;
        for (size_t k = 0; k < ngids && r->gids[0] != '\0'; k++)
            if (list_has(r->gids, gids[k]))
                return r;
    }
    return &c->tenants[0];
}

/* ---- the whole of them ----------------------------------------------------------- */

unsigned mcd_tenant_rules_adopt(struct mcd_config *to, const struct mcd_config *from,
                                void (*told)(void *context, const char *key, bool changed),
                                void *context)
{
    struct mcd_tenant_rule none;
    unsigned changed = 0;

    mcd_tenant_rule_init(&none, "");
    for (uint64_t i = 0; i <= from->ntenants || i <= to->ntenants; i++) {
        const struct mcd_tenant_rule *a = i <= to->ntenants ? &to->tenants[i] : &none;
        const struct mcd_tenant_rule *b = i <= from->ntenants ? &from->tenants[i] : &none;
        bool moved = strcmp(a->name, b->name) != 0; /* another one in its place: all of it is new */
        const char *name = b->name[0] != '\0' ? b->name : a->name;
        const struct mcd_key *k;

        for (size_t n = 0; (k = key_at(n, i != 0)) != NULL; n++) {
            char text[96];

            if (!moved && !mcd_key_differs(a, b, k))
                continue;
            snprintf(text, sizeof(text), "tenant%s%.31s.%.20s", i != 0 ? ":" : "",
                     i != 0 ? name : "", k->name);
            told(context, text, true);
            changed++;
        }
    }
    memcpy(to->tenants, from->tenants, sizeof(to->tenants));
    to->ntenants = from->ntenants;
    return changed;
}

void mcd_tenant_rules_dump(const struct mcd_config *c, FILE *out)
{
    char value[MCD_TEXT_MAX];
    const struct mcd_key *k;

    for (uint64_t i = 0; i <= c->ntenants; i++) {
        fprintf(out, i == 0 ? "\n[tenant]\n" : "\n[tenant:%s]\n", c->tenants[i].name);
        for (size_t n = 0; (k = key_at(n, i != 0)) != NULL; n++) {
            mcd_key_format(&c->tenants[i], k, value, sizeof(value));
            fprintf(out, "%s = %s\n", k->name, value);
        }
    }
}

void mcd_tenant_rules_sample(FILE *out)
{
    const struct mcd_key *k;

    fprintf(out, "\n; What each user that no section below names may have: one tenant a uid.\n"
                 "[tenant]\n");
    for (size_t n = 0; (k = key_at(n, false)) != NULL; n++)
        mcd_key_sample(k, "", out);
    fprintf(
        out,
        "\n; One such section a tenant with a name, and in it also every key of [tenant], with\n"
        "; the same defaults. The first one that names a client's user or one of its groups\n"
        "; takes it in.\n; [tenant:NAME]\n");
    for (size_t n = 0; n < NMEMBERS; n++)
        mcd_key_sample(&members[n], "; ", out);
}

void mcd_tenant_rules_man(FILE *out)
{
    const struct mcd_key *k;

    fputs(".SS [tenant]\nWhat each user that no other section names may have: one tenant a uid.\n",
          out);
    for (size_t n = 0; (k = key_at(n, false)) != NULL; n++)
        mcd_key_man(k, out);
    fputs(".SS [tenant:NAME]\nA tenant with a name. It has every key of [tenant], with the same "
          "defaults, and:\n",
          out);
    for (size_t n = 0; n < NMEMBERS; n++)
        mcd_key_man(&members[n], out);
}
