/* SPDX-License-Identifier: Apache-2.0 */
/* Control requests about objects that concern the whole cluster: the leader is asked, by who has the session. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "catalog_internal.h"
#include "shm/status.h"

struct asked {
    struct mcd_store_call sc;
    mcd_catalog_told *told;
    void *context;
    bool removal;
};

static void removed(const struct asked *x, uint32_t status, const uint8_t *payload, size_t size)
{
    Mcd__StoreRemoved *m = payload == NULL ? NULL : mcd__store_removed__unpack(NULL, size, payload);
    char json[80];

    if (status == MCS_OK && m == NULL)
        status = MCS_PROTOCOL;
    snprintf(json, sizeof(json), "{\"removed\":%llu,\"in_use\":%llu}",
             m == NULL ? 0ull : (unsigned long long)m->removed,
             m == NULL ? 0ull : (unsigned long long)m->in_use);
    x->told(x->context, (enum mcs_status)status, m == NULL ? 0 : m->removed, json,
            m == NULL ? "the store's master did not answer" : m->error);
    if (m != NULL)
        mcd__store_removed__free_unpacked(m, NULL);
}

static void listed(const struct asked *x, uint32_t status, const uint8_t *payload, size_t size)
{
    Mcd__StoreListed *m = payload == NULL ? NULL : mcd__store_listed__unpack(NULL, size, payload);
    char *json = NULL;

    if (status == MCS_OK && m == NULL)
        status = MCS_PROTOCOL;
    if (status == MCS_OK) {
        json = malloc(m->json.len + 1);
        if (json == NULL) {
            status = MCS_NO_MEMORY;
        } else {
            if (m->json.len != 0)
                memcpy(json, m->json.data, m->json.len);
            json[m->json.len] = '\0';
        }
    }
    x->told(x->context, (enum mcs_status)status, 0, json,
            m == NULL ? "the store's master did not answer" : m->error);
    free(json);
    if (m != NULL)
        mcd__store_listed__free_unpacked(m, NULL);
}

static void answered(struct mcd_store_call *sc, uint32_t status, const uint8_t *payload,
                     size_t size)
{
    struct asked *x = (struct asked *)sc;

    if (status == MCS_PEER_UNREACHABLE)
        status = MCS_NO_DIRECTORY;
    if (status >= MCS_STATUS_COUNT)
        status = MCS_PROTOCOL;
    if (x->removal)
        removed(x, status, payload, size);
    else
        listed(x, status, payload, size);
    free(x);
}

int mcd_catalog_objects(struct mcd_catalog *c, const struct mcs_msg_objects *m, uint64_t tenant,
                        uint64_t deadline, mcd_catalog_told *told, void *context)
{
    struct asked *x = calloc(1, sizeof(*x));
    Mcd__StoreRemove removal = MCD__STORE_REMOVE__INIT;
    Mcd__StoreList list = MCD__STORE_LIST__INIT;
    uint64_t now = mcd_now_ns(), ms = deadline > now ? (deadline - now) / MCD_MS : 0;
    ProtobufCBinaryData text = {.data = (uint8_t *)m->text, .len = m->length};
    int res;

    if (x == NULL)
        return -ENOMEM;
    x->told = told;
    x->context = context;
    x->removal =
        m->what == MCS_OBJECTS_PREFIX || m->what == MCS_OBJECTS_REGEX || m->what == MCS_OBJECTS_ALL;
    x->sc.answered = answered;
    if (x->removal) {
        removal.token = c->leader_token;
        removal.tenant = tenant;
        removal.flags = m->flags;
        removal.what = m->what;
        removal.keys = text;
        res = mcd_store_call(c, NULL, &x->sc, MCD_WIRE_STORE_REMOVE, &removal.base, ms);
    } else {
        list.token = c->leader_token;
        list.tenant = tenant;
        list.what = m->what;
        list.flags = m->flags;
        list.text = text;
        list.limit = m->limit;
        list.skip = m->skip;
        res = mcd_store_call(c, NULL, &x->sc, MCD_WIRE_STORE_LIST, &list.base, ms);
    }
    if (res != 0) {
        free(x);
        told(context, MCS_NO_DIRECTORY, 0, NULL,
             "no master of the store answers ([store] master, [meta])");
    }
    return 0;
}

/* ---- puts that nobody ends ------------------------------------------------------------------- */

struct given_up {
    struct mcd_ask ask;
    struct mcd_ask_key key;
    uint8_t bytes[];
};

static void told_so(struct mcd_catalog *c, struct mcd_ask *a)
{
    (void)c;
    free(a);
}

void mcd_catalog_give_up(struct mcd_catalog *c, const struct mco_key *key,
                         const struct mco_version *v)
{
    struct given_up *x;

    if (c == NULL || v->sequence == 0)
        return; /* nobody was told that it had begun */
    x = calloc(1, sizeof(*x) + key->length);
    if (x == NULL)
        return; /* the master undoes it by its clock */
    memcpy(x->bytes, key->bytes, key->length);
    x->key = (struct mcd_ask_key){.key = *key, .version = *v, .status = MCS_CANCELED};
    x->key.key.bytes = x->bytes;
    x->ask = (struct mcd_ask){.kind = MCD_ASK_END,
                              .tenant = key->tenant,
                              .deadline = mcd_now_ns() + MCD_CALL_MS * MCD_MS,
                              .keys = &x->key,
                              .n = 1};
    if (mcd_op_begin(c, &x->ask, NULL, told_so) != 0)
        free(x);
}
