/* SPDX-License-Identifier: Apache-2.0 */
/* Control calls about objects: lists, statistics, removal by pattern, events, drain. */
#include "internal.h"
#include "shm/object.h"

#include <stdlib.h>

#define LIST_MAX 1000000u

static mcshm_status ask(mcshm *c, const char *call, const struct mcs_msg_objects *how,
                        const void *text, size_t size, char **json)
{
    struct mcs_msg m;
    mcshm_status status = mcl_check(c);

    if (status != MCSHM_OK)
        return status;
    if (json == NULL)
        return mcl_fail(MCSHM_INVALID_ARGUMENT, "%s: json is NULL", call);
    *json = NULL;
    if (size > MCS_OBJECTS_TEXT_MAX && how->what != MCS_OBJECTS_COPY &&
        how->what != MCS_OBJECTS_MOVE)
        return mcl_fail(how->what == MCS_OBJECTS_REGEX ? MCSHM_INVALID_ARGUMENT : MCSHM_BAD_KEY,
                        "%s: %zu bytes, at most %u", call, size, MCS_OBJECTS_TEXT_MAX);
    if (text == NULL && size != 0)
        return mcl_fail(MCSHM_INVALID_ARGUMENT, "%s: NULL of %zu bytes", call, size);
    if ((how->flags & ~(uint32_t)(MCS_OBJECT_FORCE | MCS_OBJECT_LOCAL)) != 0)
        return mcl_fail(MCSHM_INVALID_ARGUMENT, "%s: flags 0x%x are not FORCE or LOCAL", call,
                        how->flags);
    /* relaxed: partner take_info(), reconnect.c */
    if (mcs_load_relaxed(&c->objects) == 0)
        return mcl_fail(MCSHM_NOT_SUPPORTED,
                        "the agent holds no objects: [store] size is 0, or it is of a version "
                        "without them");
    m.b.objects = *how;
    m.b.objects.length = (uint32_t)size;
    if (size != 0)
        memcpy(m.b.objects.text, text, size);
    return mcl_ask(c, MCS_MSG_OBJECTS, &m, json);
}

/* The answer of a removal is {"removed":N}. */
static mcshm_status remove_by(mcshm *c, const char *call, const struct mcs_msg_objects *how,
                              const void *text, size_t size, uint64_t *removed)
{
    static const char name[] = "\"removed\":";
    char *json = NULL, *at;
    mcshm_status status;

    if (removed != NULL)
        *removed = 0;
    status = ask(c, call, how, text, size, &json);
    if (status != MCSHM_OK)
        return status;
    at = strstr(json, name);
    if (at == NULL)
        status = mcl_fail(MCSHM_PROTOCOL, "%s: the agent does not say how many it removed", call);
    else if (removed != NULL)
        *removed = strtoull(at + sizeof(name) - 1, NULL, 10);
    free(json);
    return status;
}

MCSHM_API mcshm_status mcshm_objects_remove_prefix(mcshm *c, const void *prefix, size_t size,
                                                   uint32_t flags, uint64_t *removed)
{
    const struct mcs_msg_objects how = {.what = MCS_OBJECTS_PREFIX, .flags = flags};

    if (size == 0 && mcl_check(c) == MCSHM_OK)
        return mcl_fail(MCSHM_INVALID_ARGUMENT,
                        "mcshm_objects_remove_prefix: an empty prefix is every key's: use "
                        "mcshm_objects_remove_all()");
    return remove_by(c, "mcshm_objects_remove_prefix", &how, prefix, size, removed);
}

MCSHM_API mcshm_status mcshm_objects_remove_regex(mcshm *c, const char *regex, uint32_t flags,
                                                  uint64_t *removed)
{
    const struct mcs_msg_objects how = {.what = MCS_OBJECTS_REGEX, .flags = flags};

    if ((regex == NULL || regex[0] == '\0') && mcl_check(c) == MCSHM_OK)
        return mcl_fail(MCSHM_INVALID_ARGUMENT, "mcshm_objects_remove_regex: regex is %s",
                        regex == NULL ? "NULL" : "empty");
    return remove_by(c, "mcshm_objects_remove_regex", &how, regex,
                     regex != NULL ? strlen(regex) : 0, removed);
}

MCSHM_API mcshm_status mcshm_objects_remove_all(mcshm *c, uint32_t flags, uint64_t *removed)
{
    const struct mcs_msg_objects how = {.what = MCS_OBJECTS_ALL, .flags = flags};

    return remove_by(c, "mcshm_objects_remove_all", &how, NULL, 0, removed);
}

static mcshm_status check_limit(const char *call, uint64_t limit)
{
    if (limit == 0 || limit > LIST_MAX)
        return mcl_fail(MCSHM_INVALID_ARGUMENT, "%s: limit is %llu, not 1 .. %u", call,
                        (unsigned long long)limit, LIST_MAX);
    return MCSHM_OK;
}

MCSHM_API mcshm_status mcshm_objects_list(mcshm *c, const void *prefix, size_t size, uint32_t flags,
                                          uint64_t skip, uint64_t limit, char **json)
{
    const struct mcs_msg_objects how = {
        .what = MCS_OBJECTS_LIST, .flags = flags, .limit = limit, .skip = skip};
    mcshm_status status = mcl_check(c);

    if (status == MCSHM_OK)
        status = check_limit("mcshm_objects_list", limit);
    return status == MCSHM_OK ? ask(c, "mcshm_objects_list", &how, prefix, size, json) : status;
}

MCSHM_API mcshm_status mcshm_object_stat(mcshm *c, const mcshm_key *key, char **json)
{
    const struct mcs_msg_objects how = {.what = MCS_OBJECTS_STAT};
    mcshm_status status = mcl_check(c);

    if (status != MCSHM_OK)
        return status;
    if (key == NULL)
        return mcl_fail(MCSHM_INVALID_ARGUMENT, "mcshm_object_stat: key is NULL");
    if (key->size == 0)
        return mcl_fail(MCSHM_BAD_KEY, "mcshm_object_stat: the key has 0 bytes: 1 .. %u",
                        MCS_KEY_MAX);
    return ask(c, "mcshm_object_stat", &how, key->bytes, key->size, json);
}

MCSHM_API mcshm_status mcshm_objects_events(mcshm *c, uint64_t from, uint64_t limit, char **json)
{
    const struct mcs_msg_objects how = {.what = MCS_OBJECTS_EVENTS, .limit = limit, .skip = from};
    mcshm_status status = mcl_check(c);

    if (status == MCSHM_OK)
        status = check_limit("mcshm_objects_events", limit);
    return status == MCSHM_OK ? ask(c, "mcshm_objects_events", &how, NULL, 0, json) : status;
}

MCSHM_API mcshm_status mcshm_drain(mcshm *c, const char *host, bool drain, char **json)
{
    const struct mcs_msg_objects how = {.what = drain ? MCS_OBJECTS_DRAIN : MCS_OBJECTS_UNDRAIN};
    mcshm_status status = mcl_check(c);

    if (status != MCSHM_OK)
        return status;
    if (host == NULL || host[0] == '\0' || strlen(host) >= MCS_ADDRESS_MAX)
        return mcl_fail(MCSHM_INVALID_ARGUMENT, "mcshm_drain: want \"host:port\" of 1 to %u bytes",
                        MCS_ADDRESS_MAX - 1);
    return ask(c, "mcshm_drain", &how, host, strlen(host), json);
}

MCSHM_API mcshm_status mcshm_object_place(mcshm *c, const mcshm_key *key, const char *from,
                                          const char *to, char **json)
{
    const struct mcs_msg_objects how = {.what = from != NULL ? MCS_OBJECTS_MOVE : MCS_OBJECTS_COPY};
    const char *const hosts[2] = {to, from != NULL ? from : ""};
    char text[sizeof(how.text)];
    size_t at = 0;
    mcshm_status status = mcl_check(c);

    if (status != MCSHM_OK)
        return status;
    if (key == NULL || (key->bytes == NULL && key->size != 0))
        return mcl_fail(MCSHM_INVALID_ARGUMENT, "mcshm_object_place: key is NULL");
    if (key->size == 0 || key->size > MCS_KEY_MAX)
        return mcl_fail(MCSHM_BAD_KEY, "mcshm_object_place: the key has %zu bytes: 1 .. %u",
                        key->size, MCS_KEY_MAX);
    for (unsigned i = 0; i < 2; i++) {
        size_t n = hosts[i] == NULL ? 0 : strlen(hosts[i]);

        if (n >= MCS_ADDRESS_MAX || (n == 0 && (i == 0 || from != NULL)))
            return mcl_fail(MCSHM_INVALID_ARGUMENT,
                            "mcshm_object_place: want \"host:port\" of 1 to %u bytes",
                            MCS_ADDRESS_MAX - 1);
        memcpy(text + at, n == 0 ? "" : hosts[i], n + 1);
        at += n + 1;
    }
    memcpy(text + at, key->bytes, key->size);
    return ask(c, "mcshm_object_place", &how, text, at + key->size, json);
}
