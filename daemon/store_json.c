/* SPDX-License-Identifier: Apache-2.0 */
#include "store_json.h"

#include <inttypes.h>
#include <stdbool.h>

#include "config.h"
#include "tenant.h"

static const char *const tiers[MCS_TIER_COUNT] = {"none", "memory", "disk", "remote"};

static const char *const kinds[] = {
    [MCO_STORED] = "stored",   [MCO_REMOVED] = "removed", [MCO_REPLACED] = "replaced",
    [MCO_EVICTED] = "evicted", [MCO_TO_DISK] = "to_disk", [MCO_TO_MEMORY] = "to_memory",
    [MCO_DAMAGED] = "damaged", [MCO_LOST] = "lost"};

/* Bytes of the well-formed UTF-8 character at p (RFC 3629), of at most n; 0: it is none. */
static size_t utf8_length(const unsigned char *p, size_t n)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    size_t k = p[0] < 0x80 ? 1 : p[0] >> 5 == 6 ? 2 : p[0] >> 4 == 14 ? 3 : p[0] >> 3 == 30 ? 4 : 0;
    uint32_t v = k == 1 ? p[0] : p[0] & (0x7fu >> k);

    if (k > n)
        return 0;
    for (size_t i = 1; i < k; i++) {
        if (p[i] >> 6 != 2)
            return 0;
        v = v << 6 | (p[i] & 0x3f);
    }
    return k != 0 && v >= least[k] && v <= 0x10ffff && (v < 0xd800 || v > 0xdfff) ? k : 0;
}

static bool is_text(const unsigned char *p, size_t length)
{
    for (size_t i = 0, step; i < length; i += step) {
        step = utf8_length(p + i, length - i);
        if (step == 0 || p[i] < 0x20 || p[i] == 0x7f)
            return false;
    }
    return true;
}

void mcd_json_key(FILE *out, const void *bytes, size_t length)
{
    const unsigned char *p = bytes;

    if (is_text(p, length)) {
        fputs("\"key\":\"", out);
        for (size_t i = 0; i < length; i++) {
            if (p[i] == '"' || p[i] == '\\')
                fputc('\\', out);
            fputc(p[i], out);
        }
    } else {
        fputs("\"key_hex\":\"", out);
        for (size_t i = 0; i < length; i++)
            fprintf(out, "%02x", p[i]);
    }
    fputc('"', out);
}

void mcd_json_version(FILE *out, const struct mco_version *v)
{
    fprintf(out, "\"version\":%" PRIu64, mco_version_number(v));
}

void mcd_store_tenant_name(const struct mcd_config *c, uint64_t id, char out[MCD_TENANT_NAME_MAX])
{
    snprintf(out, MCD_TENANT_NAME_MAX, id >> 63 != 0 ? "0x%" PRIx64 : "%" PRIu64, id);
    for (uint64_t i = 1; i <= c->ntenants && id >> 63 != 0; i++)
        if (mcd_tenant_id(c->tenants[i].name) == id)
            snprintf(out, MCD_TENANT_NAME_MAX, "%s", c->tenants[i].name);
}

/* As `mcshm ls` shows them: a name, or a uid. Names of rules are harmless in JSON. */
static void put_tenant(FILE *out, const struct mcd_config *c, uint64_t id)
{
    char name[MCD_TENANT_NAME_MAX];

    mcd_store_tenant_name(c, id, name);
    fprintf(out, id >> 63 != 0 ? "\"tenant\":\"%s\"" : "\"tenant\":%s", name);
}

static uint64_t ms_left(uint64_t until, uint64_t now)
{
    return until > now ? (until - now) / 1000000 : 0;
}

void mcd_json_object(FILE *out, const struct mcd_config *c, const struct mco_listed *o,
                     uint64_t now)
{
    fputc('{', out);
    mcd_json_key(out, o->key.bytes, o->key.length);
    fputc(',', out);
    put_tenant(out, c, o->key.tenant);
    fprintf(out, ",\"size\":%" PRIu64 ",", o->size);
    mcd_json_version(out, &o->version);
    if (o->summed)
        fprintf(out, ",\"crc32c\":\"%08x\"", o->crc);
    fprintf(out,
            ",\"tier\":\"%s\",\"copies\":%u,\"pins\":%u,\"in_place\":%u,\"hard_pin\":%s,"
            "\"soft_pin_ms\":%" PRIu64 ",\"lease_ms\":%" PRIu64,
            o->tier < MCS_TIER_COUNT ? tiers[o->tier] : "?", o->copies, o->pins, o->in_place,
            o->hard_pin ? "true" : "false", ms_left(o->soft_pin_until, now),
            ms_left(o->lease_until, now));
    if (o->group != 0)
        fprintf(out, ",\"group\":\"%016" PRIx64 "\"", o->group);
    if (o->writing)
        fputs(",\"writing\":true", out);
    if (o->leaving)
        fputs(",\"leaving\":true", out);
    fputc('}', out);
}

struct events {
    FILE *out;
    const struct mcd_config *config;
    uint64_t tenant;
    bool any;
};

static bool put_event(void *context, uint64_t number, const struct mco_event *e, const char *host)
{
    struct events *l = context;

    if (l->tenant != UINT64_MAX && e->key.tenant != l->tenant)
        return true;
    fprintf(l->out, "%s{\"number\":%" PRIu64 ",\"kind\":\"%s\",", l->any ? "," : "", number,
            (unsigned)e->kind < sizeof(kinds) / sizeof(kinds[0]) && kinds[e->kind] != NULL
                ? kinds[e->kind]
                : "?");
    l->any = true;
    mcd_json_key(l->out, e->key.bytes, e->key.length);
    fputc(',', l->out);
    put_tenant(l->out, l->config, e->key.tenant);
    fprintf(l->out, ",\"size\":%" PRIu64 ",", e->size);
    mcd_json_version(l->out, &e->version);
    fprintf(l->out, ",\"crc32c\":\"%08x\"", e->crc);
    if (host != NULL)
        fprintf(l->out, ",\"host\":\"%s\"", host); /* an address: harmless */
    fputc('}', l->out);
    return true;
}

void mcd_json_events(FILE *out, const struct mcd_config *c, struct mco_events *e, uint64_t epoch,
                     uint64_t tenant, uint64_t from, uint64_t limit)
{
    struct events l = {.out = out, .config = c, .tenant = tenant};
    uint64_t first, next, after;

    if (from == 0)
        from = 1;
    fprintf(out, "{\"epoch\":\"0x%" PRIx64 "\",\"events\":[", epoch);
    after = mco_events_read(e, from, (size_t)limit, put_event, &l);
    mco_events_range(
        e, &first,
        &next); /* what went while it was read counts as lost: rather too much than too little */
    fprintf(out, "],\"first\":%" PRIu64 ",\"next\":%" PRIu64 ",\"lost\":%" PRIu64 "}", first, after,
            from < first ? first - from : 0);
}
