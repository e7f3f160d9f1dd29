/* SPDX-License-Identifier: Apache-2.0 */
/* What an agent holds. */
#include "store.h"

#include <errno.h>

int mco_create(const struct mco_options *o, struct mco_store **out, char *error, size_t error_size)
{
    (void)o;
    (void)out;
    (void)error;
    (void)error_size;
    return -ENOTSUP;
}

void mco_destroy(struct mco_store *s)
{
    (void)s;
}

int mco_table_fd(const struct mco_store *s)
{
    (void)s;
    return -ENOTSUP;
}

uint64_t mco_identity(const struct mco_store *s)
{
    (void)s;
    return 0;
}

uint64_t mco_token(const struct mco_store *s)
{
    (void)s;
    return 0;
}

void mco_note_token(struct mco_store *s, uint64_t token)
{
    (void)s;
    (void)token;
}

int mco_extent_add(struct mco_store *s, const struct mco_extent *e, uint32_t *id)
{
    (void)s;
    (void)e;
    (void)id;
    return -ENOTSUP;
}

void mco_extent_failed(struct mco_store *s, uint64_t tenant, bool open)
{
    (void)s;
    (void)tenant;
    (void)open;
}

int mco_extent_remove(struct mco_store *s, uint32_t id)
{
    (void)s;
    (void)id;
    return -ENOTSUP;
}

void mco_extents_kept(struct mco_store *s, bool (*each)(void *context, const struct mco_extent *e),
                      void *context)
{
    (void)s;
    (void)each;
    (void)context;
}

void mco_extent_back(struct mco_store *s, uint32_t id, void *map, void *owner)
{
    (void)s;
    (void)id;
    (void)map;
    (void)owner;
}

void mco_extent_lost(struct mco_store *s, uint32_t id)
{
    (void)s;
    (void)id;
}

void mco_recover(struct mco_store *s, struct mco_recovered *out)
{
    (void)s;
    (void)out;
}

void mco_unguard(struct mco_store *s)
{
    (void)s;
}

enum mcs_status mco_begin(struct mco_store *s, const struct mco_put *p, struct mco_view *out)
{
    (void)s;
    (void)p;
    (void)out;
    return MCS_NOT_SUPPORTED;
}

enum mcs_status mco_seal(struct mco_store *s, struct mco_object *o, uint32_t crc, bool summed,
                         unsigned copies)
{
    (void)s;
    (void)o;
    (void)crc;
    (void)summed;
    (void)copies;
    return MCS_NOT_SUPPORTED;
}

void mco_abort(struct mco_store *s, struct mco_object *o)
{
    (void)s;
    (void)o;
}

enum mcs_status mco_pin(struct mco_store *s, const struct mco_key *key, const struct mco_hint *hint,
                        uint64_t now, struct mco_view *out)
{
    (void)s;
    (void)key;
    (void)hint;
    (void)now;
    (void)out;
    return MCS_NOT_SUPPORTED;
}

void mco_pin_again(struct mco_store *s, struct mco_object *o)
{
    (void)s;
    (void)o;
}

void mco_unpin(struct mco_store *s, struct mco_object *o)
{
    (void)s;
    (void)o;
}

void mco_pin_in_place(struct mco_store *s, struct mco_object *o, bool begins)
{
    (void)s;
    (void)o;
    (void)begins;
}

void mco_lease(struct mco_store *s, struct mco_object *o, uint64_t until)
{
    (void)s;
    (void)o;
    (void)until;
}

void mco_damaged(struct mco_store *s, struct mco_object *o)
{
    (void)s;
    (void)o;
}

size_t mco_exist(struct mco_store *s, const struct mco_key *keys, const struct mco_hint *hints,
                 size_t n, uint64_t lease_ns, uint64_t now, uint8_t *status, struct mco_found *out)
{
    (void)s;
    (void)keys;
    (void)hints;
    (void)n;
    (void)lease_ns;
    (void)now;
    (void)status;
    (void)out;
    return 0;
}

enum mcs_status mco_remove(struct mco_store *s, const struct mco_key *key,
                           const struct mco_version *upto, bool force, uint64_t now)
{
    (void)s;
    (void)key;
    (void)upto;
    (void)force;
    (void)now;
    return MCS_NOT_SUPPORTED;
}

bool mco_leaving(struct mco_store *s, const struct mco_key *key)
{
    (void)s;
    (void)key;
    return false;
}

void mco_set_copies(struct mco_store *s, const struct mco_key *key, unsigned copies)
{
    (void)s;
    (void)key;
    (void)copies;
}

void mco_walk(struct mco_store *s, uint64_t tenant, uint64_t *cursor,
              bool (*each)(void *context, const struct mco_listed *o), void *context)
{
    (void)s;
    (void)tenant;
    (void)cursor;
    (void)each;
    (void)context;
}

bool mco_stat(struct mco_store *s, const struct mco_key *key, struct mco_listed *out)
{
    (void)s;
    (void)key;
    (void)out;
    return false;
}

bool mco_upkeep(struct mco_store *s, uint64_t now)
{
    (void)s;
    (void)now;
    return false;
}

void mco_tenant_limit(struct mco_store *s, uint64_t tenant, uint64_t bytes)
{
    (void)s;
    (void)tenant;
    (void)bytes;
}

void mco_tune(struct mco_store *s, unsigned high, unsigned low, uint64_t lease_ns)
{
    (void)s;
    (void)high;
    (void)low;
    (void)lease_ns;
}

void mco_offloaded(struct mco_store *s, struct mco_object *o, int res, uint64_t place)
{
    (void)s;
    (void)o;
    (void)res;
    (void)place;
}

void mco_fetched(struct mco_store *s, struct mco_object *o, int res)
{
    (void)s;
    (void)o;
    (void)res;
}

bool mco_disk_found(struct mco_store *s, const struct mco_key *key,
                    const struct mco_version *version, uint64_t size, uint32_t crc, bool summed,
                    uint64_t place)
{
    (void)s;
    (void)key;
    (void)version;
    (void)size;
    (void)crc;
    (void)summed;
    (void)place;
    return false;
}

void mco_disk_lost(struct mco_store *s, bool all, uint64_t place)
{
    (void)s;
    (void)all;
    (void)place;
}

void mco_get_stats(struct mco_store *s, struct mco_stats *out)
{
    (void)s;
    (void)out;
}

size_t mco_tenants(struct mco_store *s, struct mco_tenant_stats *out, size_t n)
{
    (void)s;
    (void)out;
    (void)n;
    return 0;
}
