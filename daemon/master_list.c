/* SPDX-License-Identifier: Apache-2.0 */
/* What takes a walk over all entries, some at a time: removals by pattern, lists. And drains, and what the master tells of itself. */
#include "master_internal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "handlers.h"
#include "log.h"
#include "shm/message.h"
#include "shm/status.h"
#include "store/object/match.h"

#define STEP_NS (2 * MCD_MASTER_MS) /* of one round, all walks together */
#define OPEN_MAX 65536u       /* removed keys whose drops are awaited; beyond, the walk waits */
#define JSON_MAX (700u << 10) /* bytes of a list */
#define JOBS_MAX 64u
#define CHECK_MAX 1024u /* keys that holders are asked about at a time, about */

struct removed_key {
    struct removed_key *next;
    struct mco_version upto;
    uint32_t length;
    uint8_t bytes[];
};

struct mcd_walk_job {
    struct mcd_walk_job *next;
    struct mcd_asker asker;
    uint64_t deadline, tenant;
    uint32_t what; /* enum mcs_objects */
    uint8_t *text;
    size_t length;
    struct mco_match *match; /* REGEX */
    uint64_t cursor;         /* UINT64_MAX: the walk is over */
    bool failed;             /* no memory */
    /* removals */
    bool force;
    struct removed_key *seen; /* REGEX: keys that are still to be matched */
    struct removed_key *found, *open, **open_end;
    uint32_t nfound, nopen;
    uint64_t removed, in_use;
    struct mcd_check *check; /* of what was found; NULL */
    /* COPY, MOVE: text is the key */
    uint32_t from, to;
    /* LIST */
    uint64_t skip, limit, listed;
    bool more;
    FILE *out;
    char *json;
    size_t size;
    struct mcd_master *master;
};

static void job_free(struct mcd_walk_job *j)
{
    struct removed_key *k;

    if (j->check != NULL)
        j->check->done = NULL;
    while ((k = j->seen) != NULL) {
        j->seen = k->next;
        free(k);
    }
    while ((k = j->found) != NULL) {
        j->found = k->next;
        free(k);
    }
    while ((k = j->open) != NULL) {
        j->open = k->next;
        free(k);
    }
    if (j->out != NULL)
        fclose(j->out);
    mco_match_destroy(j->match);
    free(j->json);
    free(j->text);
    free(j);
}

static void removed_answer(struct mcd_master *m, struct mcd_walk_job *j, uint32_t status,
                           const char *error)
{
    Mcd__StoreRemoved a = MCD__STORE_REMOVED__INIT;

    a.token = m->token;
    a.removed = j->removed;
    a.in_use = j->in_use;
    a.error = (char *)(uintptr_t)error;
    mcd_master_reply(m, &j->asker, status, &a.base);
}

static void listed_answer(struct mcd_master *m, const struct mcd_asker *who, uint32_t status,
                          const char *json, const char *error)
{
    Mcd__StoreListed a = MCD__STORE_LISTED__INIT;

    a.token = m->token;
    a.json =
        (ProtobufCBinaryData){.data = (uint8_t *)(uintptr_t)json, .len = json ? strlen(json) : 0};
    a.error = (char *)(uintptr_t)error;
    mcd_master_reply(m, who, status, &a.base);
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static void print_text(FILE *out, const char *text)
{
    fputc('"', out);
    for (const char *c = text; *c != '\0'; c++) {
        if (*c == '"' || *c == '\\')
            fputc('\\', out);
        if ((unsigned char)*c >= 0x20)
            fputc(*c, out);
    }
    fputc('"', out);
}

static void print_key(FILE *out, const struct mco_key *key)
{
    const uint8_t *b = key->bytes;
    char text[MCS_KEY_MAX + 1];

    memcpy(text, b, key->length);
    text[key->length] = '\0';
    if (memchr(b, 0, key->length) == NULL && mcd_good_name(text)) {
        fputs("\"key\":", out);
        print_text(out, text);
        return;
    }
    fputs("\"key_hex\":\"", out);
    for (uint32_t i = 0; i < key->length; i++)
        fprintf(out, "%02x", b[i]);
    fputc('"', out);
}

static void print_object(struct mcd_master *m, FILE *out, const struct mco_key *key,
                         const struct mco_found_at *f)
{
    fputc('{', out);
    print_key(out, key);
    fprintf(out,
            ",\"tenant\":%llu,\"size\":%llu,\"crc32c\":\"%08x\",\"version\":%llu,"
            "\"status\":\"%s\",\"hosts\":[",
            (unsigned long long)key->tenant, (unsigned long long)f->size, f->crc,
            (unsigned long long)mco_version_number(&f->version),
            f->status == MCS_OK ? "here" : "away");
    for (unsigned i = 0; i < f->nholders; i++) {
        const struct mco_holder *h = mco_directory_holder_at(m->d, f->holders[i]);

        if (i != 0)
            fputc(',', out);
        print_text(out, h->address);
    }
    fputs("]}", out);
}

static void stat_answer(struct mcd_master *m, const struct mcd_asker *who,
                        const struct mco_key *key)
{
    struct mco_found_at f;
    char *json = NULL;
    size_t size = 0;
    FILE *out;

    mco_directory_find(m->d, key, 1, mcd_now_ns(), &f);
    if (f.status != MCS_OK && f.status != MCS_PEER_UNREACHABLE) {
        listed_answer(m, who, f.status, NULL,
                      f.status == MCS_REBUILDING ? "the directory is being rebuilt"
                                                 : "no object has this key");
        return;
    }
    out = open_memstream(&json, &size);
    if (out != NULL) {
        print_object(m, out, key, &f);
        fclose(out);
    }
    listed_answer(m, who, json != NULL ? MCS_OK : MCS_NO_MEMORY, json, "");
    free(json);
}

/* ---- walks -------------------------------------------------------------------------------------- */

/* But for the pattern: a key may take milliseconds of it, and the walk is not interrupted within a shard. */
static bool wanted(const struct mcd_walk_job *j, const struct mco_key *key)
{
    if (j->what == MCS_OBJECTS_ALL || j->match != NULL)
        return true;
    return key->length >= j->length && memcmp(key->bytes, j->text, j->length) == 0;
}

static void note_found(struct mcd_walk_job *j, struct removed_key *k)
{
    k->next = j->found;
    j->found = k;
    j->nfound++;
}

static bool note_one(void *context, const struct mco_key *key, const struct mco_found_at *f)
{
    struct mcd_walk_job *j = context;
    struct removed_key *k;

    (void)f;
    if (!wanted(j, key))
        return true;
    k = malloc(sizeof(*k) + key->length);
    if (k == NULL) {
        j->failed = true;
        return false;
    }
    k->length = key->length;
    memcpy(k->bytes, key->bytes, key->length);
    if (j->match == NULL) {
        note_found(j, k);
    } else {
        k->next = j->seen;
        j->seen = k;
    }
    return true;
}

/* As many as there is time for; one in any case. */
static void match_seen(struct mcd_walk_job *j, uint64_t end)
{
    struct removed_key *k;

    while ((k = j->seen) != NULL && !mco_match_gave_up(j->match)) {
        j->seen = k->next;
        if (mco_match(j->match, k->bytes, k->length))
            note_found(j, k);
        else
            free(k);
        if (mcd_now_ns() >= end)
            break;
    }
}

static bool list_one(void *context, const struct mco_key *key, const struct mco_found_at *f)
{
    struct mcd_walk_job *j = context;

    if (!wanted(j, key))
        return true;
    if (j->skip > 0) {
        j->skip--;
        return true;
    }
    if (j->listed == j->limit || ftell(j->out) > (long)JSON_MAX) {
        j->more = true;
        return false;
    }
    if (j->listed++ != 0)
        fputc(',', j->out);
    print_object(j->master, j->out, key, f);
    return true;
}

/* What the walk has found is removed; who has to drop it is waited for. */
static void remove_found(struct mcd_master *m, struct mcd_walk_job *j, uint64_t now)
{
    struct removed_key *k;
    unsigned left;

    while ((k = j->found) != NULL) {
        struct mco_key key = mco_key(j->tenant, k->bytes, k->length);

        j->found = k->next;
        k->next = NULL;
        if (mco_directory_remove(m->d, &key, &k->upto, now, &left) == MCS_OK)
            j->removed++;
        if (left == 0) {
            free(k);
            continue;
        }
        *j->open_end = k;
        j->open_end = &k->next;
        j->nopen++;
    }
    j->nfound = 0;
}

/* Holders have said of which somebody makes use: those stay. */
static void checked(struct mcd_master *m, struct mcd_check *c)
{
    struct mcd_walk_job *j = c->context;
    struct removed_key **link = &j->found, *k;

    j->check = NULL;
    for (uint32_t i = 0; (k = *link) != NULL; i++) {
        if (c->used[i] == 0) {
            link = &k->next;
            continue;
        }
        j->in_use++;
        *link = k->next;
        free(k);
    }
    remove_found(m, j, mcd_now_ns());
    mcd_master_soon(m);
}

/* Without force holders are asked first. */
static void take_found(struct mcd_master *m, struct mcd_walk_job *j, uint64_t now)
{
    struct mcd_check *c;
    bool good;

    if (j->force) {
        remove_found(m, j, now);
        return;
    }
    if (j->found == NULL || (j->nfound < CHECK_MAX && j->cursor != UINT64_MAX))
        return;
    c = mcd_check_create(checked, j);
    good = c != NULL;
    for (const struct removed_key *k = j->found; good && k != NULL; k = k->next) {
        struct mco_key key = mco_key(j->tenant, k->bytes, k->length);

        good = mcd_check_add(m, c, &key, now);
    }
    if (good) {
        j->check = c;
        mcd_check_send(m, c);
        return;
    }
    j->failed = true;
    if (c != NULL)
        mcd_check_destroy(c);
}

static void see_dropped(struct mcd_master *m, struct mcd_walk_job *j, uint64_t now)
{
    struct removed_key *k;

    while ((k = j->open) != NULL) {
        struct mco_key key = mco_key(j->tenant, k->bytes, k->length);

        if (mco_directory_pending(m->d, &key, &k->upto, now) != 0)
            return;
        j->open = k->next;
        j->nopen--;
        free(k);
    }
    j->open_end = &j->open;
}

static bool is_list(const struct mcd_walk_job *j)
{
    return j->what == MCS_OBJECTS_LIST;
}

static bool walked(const struct mcd_walk_job *j)
{
    return j->cursor == UINT64_MAX && j->seen == NULL;
}

static bool is_place(const struct mcd_walk_job *j)
{
    return j->what == MCS_OBJECTS_COPY || j->what == MCS_OBJECTS_MOVE;
}

static bool may_walk(const struct mcd_walk_job *j)
{
    return !walked(j) && j->nopen < OPEN_MAX && j->check == NULL && !is_place(j);
}

/* True: it is over, and answered. */
static bool job_step(struct mcd_master *m, struct mcd_walk_job *j, uint64_t end)
{
    uint64_t now = mcd_now_ns();

    if (!is_list(j))
        see_dropped(m, j, now);
    if (may_walk(j) && !j->more && now < end) {
        if (j->seen == NULL)
            mco_directory_walk(m->d, j->tenant, MCO_NO_HOLDER, &j->cursor,
                               is_list(j) ? list_one : note_one, j);
        if (j->match != NULL)
            match_seen(j, end);
        if (j->seen == NULL)
            take_found(m, j, now);
    }
    if (j->match != NULL && mco_match_gave_up(j->match)) {
        removed_answer(m, j, MCS_INVALID_ARGUMENT,
                       "the regular expression: it tries too many ways to match a key; what was "
                       "removed before is");
        return true;
    }
    if (j->failed) {
        if (is_list(j))
            listed_answer(m, &j->asker, MCS_NO_MEMORY, NULL, "no memory for the list");
        else
            removed_answer(m, j, MCS_NO_MEMORY, "no memory for the keys; some are removed");
        return true;
    }
    if (walked(j) && j->open == NULL && j->check == NULL) {
        if (!is_list(j)) {
            removed_answer(m, j, MCS_OK, "");
        } else {
            fprintf(j->out, "],\"more\":%s}", j->more ? "true" : "false");
            fclose(j->out);
            j->out = NULL;
            listed_answer(m, &j->asker, j->json != NULL ? MCS_OK : MCS_NO_MEMORY, j->json, "");
        }
        return true;
    }
    if (now < j->deadline)
        return false;
    m->stats.late++;
    if (is_list(j))
        listed_answer(m, &j->asker, MCS_TIMEOUT, NULL,
                      "not through with all keys in time: ask for a longer prefix");
    else
        removed_answer(m, j, MCS_TIMEOUT,
                       "not through with all keys in time; what was removed is: ask again");
    return true;
}

/* The same of one that waits for a copy or a move. */
static bool place_step(struct mcd_master *m, struct mcd_walk_job *j, uint64_t now)
{
    struct mco_key key = mco_key(j->tenant, j->text, (uint32_t)j->length);

    switch (mco_directory_placed(m->d, &key, j->from, j->to)) {
    case MCO_PLACED:
        stat_answer(m, &j->asker, &key);
        return true;
    case MCO_NOT_PLACED:
        listed_answer(m, &j->asker, MCS_NO_SPACE, NULL,
                      "the host did not take it, or it was removed, evicted or replaced meanwhile");
        return true;
    default:
        if (now < j->deadline)
            return false;
        m->stats.late++;
        listed_answer(m, &j->asker, MCS_TIMEOUT, NULL, "not there in time; it goes on: ask again");
        return true;
    }
}

bool mcd_jobs_poll(struct mcd_master *m)
{
    struct mcd_walk_job **link = &m->jobs, *j = m->jobs;
    uint64_t end = mcd_now_ns() + STEP_NS;
    bool more = false;

    if (j != NULL && j->next != NULL) { /* another one comes first each time */
        m->jobs = j->next;
        while (*link != NULL)
            link = &(*link)->next;
        *link = j;
        j->next = NULL;
        link = &m->jobs;
    }
    while ((j = *link) != NULL) {
        bool over = false;

        do
            over = is_place(j) ? place_step(m, j, mcd_now_ns()) : job_step(m, j, end);
        while (!over && may_walk(j) && mcd_now_ns() < end);
        if (over) {
            *link = j->next;
            job_free(j);
        } else {
            more |= may_walk(j);
            link = &j->next;
        }
    }
    return more;
}

void mcd_jobs_end(struct mcd_master *m, const struct mcd_peer *peer, bool everybody)
{
    struct mcd_walk_job **link = &m->jobs, *j;

    while ((j = *link) != NULL) {
        if (!everybody && j->asker.peer != peer) {
            link = &j->next;
            continue;
        }
        *link = j->next;
        if (everybody)
            mcd_master_reply(m, &j->asker, MCS_NO_DIRECTORY, NULL);
        job_free(j);
    }
}

/* ---- questions ------------------------------------------------------------------------------------ */

static struct mcd_walk_job *job_create(struct mcd_master *m, const struct mcd_asker *who,
                                       uint64_t tenant, uint32_t what, ProtobufCBinaryData text)
{
    struct mcd_walk_job *j;
    unsigned n = 0;

    for (j = m->jobs; j != NULL; j = j->next)
        n++;
    j = n < JOBS_MAX ? calloc(1, sizeof(*j)) : NULL;
    if (j == NULL)
        return NULL;
    j->master = m;
    j->asker = *who;
    j->tenant = tenant;
    j->what = what;
    j->deadline = mcd_master_deadline(&who->header);
    j->open_end = &j->open;
    j->text = malloc(text.len + 1);
    if (j->text == NULL) {
        job_free(j);
        return NULL;
    }
    if (text.len != 0)
        memcpy(j->text, text.data, text.len);
    j->length = text.len;
    return j;
}

static void job_begin(struct mcd_master *m, struct mcd_walk_job *j)
{
    j->next = m->jobs;
    m->jobs = j;
    mcd_master_soon(m);
}

void mcd_master_on_remove_many(struct mcd_master *m, const struct mcd_asker *who,
                               const Mcd__StoreRemove *q)
{
    struct mcd_walk_job *j;
    struct mcd_walk_job none = {.asker = *who};
    char error[200] = "";
    int res = 0;

    if ((q->what != MCS_OBJECTS_PREFIX && q->what != MCS_OBJECTS_REGEX &&
         q->what != MCS_OBJECTS_ALL) ||
        q->keys.len > MCS_KEY_MAX) {
        m->stats.malformed++;
        mcd_master_reply(m, who, MCS_PROTOCOL, NULL);
        return;
    }
    if (mco_directory_rebuilding(m->d, mcd_now_ns())) {
        removed_answer(m, &none, MCS_REBUILDING,
                       "the directory is being rebuilt: not all keys are known yet");
        return;
    }
    j = job_create(m, who, q->tenant, q->what, q->keys);
    if (j != NULL)
        j->force = (q->flags & MCS_OBJECT_FORCE) != 0;
    if (j != NULL && q->what == MCS_OBJECTS_REGEX)
        res = mco_match_create((const char *)j->text, j->length, &j->match, error, sizeof(error));
    if (j == NULL || res != 0) {
        removed_answer(m, &none, j == NULL || res == -ENOMEM ? MCS_NO_MEMORY : MCS_INVALID_ARGUMENT,
                       error);
        if (j != NULL)
            job_free(j);
        return;
    }
    job_begin(m, j);
}

static void on_stat(struct mcd_master *m, const struct mcd_asker *who, const Mcd__StoreList *q)
{
    struct mco_key key;

    if (q->text.len == 0 || q->text.len > MCS_KEY_MAX) {
        listed_answer(m, who, MCS_BAD_KEY, NULL, "a key has 1 to 4096 bytes");
        return;
    }
    key = mco_key(q->tenant, q->text.data, (uint32_t)q->text.len);
    stat_answer(m, who, &key);
}

/* The holder whose address, with its NUL, comes next. False: none does. */
static bool next_holder(struct mcd_master *m, ProtobufCBinaryData *text, uint32_t *holder)
{
    const uint8_t *end = text->len == 0 ? NULL : memchr(text->data, 0, text->len);

    if (end == NULL)
        return false;
    *holder = end == text->data ? MCO_NO_HOLDER
                                : mco_directory_holder_named(m->d, (const char *)text->data);
    text->len -= (size_t)(end + 1 - text->data);
    text->data += end + 1 - text->data;
    return true;
}

static void on_place(struct mcd_master *m, const struct mcd_asker *who, const Mcd__StoreList *q)
{
    ProtobufCBinaryData text = q->text;
    bool move = q->what == MCS_OBJECTS_MOVE;
    enum mcs_status status;
    struct mcd_walk_job *j;
    struct mco_key key;
    uint32_t from, to;

    if (!next_holder(m, &text, &to) || !next_holder(m, &text, &from) || text.len == 0 ||
        text.len > MCS_KEY_MAX) {
        m->stats.malformed++;
        mcd_master_reply(m, who, MCS_PROTOCOL, NULL);
        return;
    }
    key = mco_key(q->tenant, text.data, (uint32_t)text.len);
    status = to == MCO_NO_HOLDER || (from == MCO_NO_HOLDER) == move
                 ? MCS_NOT_FOUND
                 : mco_directory_place(m->d, &key, from, to, mcd_now_ns());
    if (status != MCS_OK) {
        listed_answer(m, who, status, NULL,
                      status == MCS_NOT_FOUND
                          ? "no object has this key, or no agent this address, or it is not there"
                      : status == MCS_NO_SPACE ? "the host has no room, or is drained"
                      : status == MCS_LIMIT    ? "as many hosts have it as can"
                      : status == MCS_IN_USE   ? "it is being moved or dropped there: ask again"
                                               : "who has it, or is to have it, cannot be reached");
        return;
    }
    j = job_create(m, who, q->tenant, q->what, text);
    if (j == NULL) {
        listed_answer(m, who, MCS_NO_MEMORY, NULL, "no memory, or too many requests at a time");
        return;
    }
    j->from = from;
    j->to = to;
    job_begin(m, j);
}

/* For who named one that is not there: those that are, as many as there is room for. */
static void name_holders(struct mcd_master *m, char *error, size_t size)
{
    size_t at = (size_t)snprintf(error, size, "no agent with this address has joined; there are:");

    for (uint32_t i = 0; i < MCO_HOLDERS_MAX; i++) {
        const struct mco_holder *h = mco_directory_holder_at(m->d, i);

        if (h == NULL)
            continue;
        if (at + strlen(h->address) + sizeof(" ...") > size) {
            snprintf(error + at, size - at, " ...");
            return;
        }
        at += (size_t)snprintf(error + at, size - at, " %s", h->address);
    }
}

static void on_drain(struct mcd_master *m, const struct mcd_asker *who, const Mcd__StoreList *q)
{
    char address[MCO_TEXT_MAX], json[200], error[600];
    bool drain = q->what == MCS_OBJECTS_DRAIN;
    uint32_t holder = MCO_NO_HOLDER;

    if (q->text.len < sizeof(address)) {
        memcpy(address, q->text.data, q->text.len);
        address[q->text.len] = '\0';
        holder = mco_directory_holder_named(m->d, address);
    }
    if (holder == MCO_NO_HOLDER) {
        name_holders(m, error, sizeof(error));
        listed_answer(m, who, MCS_NOT_FOUND, NULL, error);
        return;
    }
    if (mco_directory_holder_at(m->d, holder)->draining != drain)
        mcd_info("store: %s is %s, by order", address,
                 drain ? "to be drained" : "not to be drained any more");
    mco_directory_drain(m->d, holder, drain);
    snprintf(json, sizeof(json), "{\"draining\":%s,\"objects\":%llu}", drain ? "true" : "false",
             (unsigned long long)mco_directory_objects(m->d, holder));
    listed_answer(m, who, MCS_OK, json, "");
}

void mcd_master_on_list(struct mcd_master *m, const struct mcd_asker *who, const Mcd__StoreList *q)
{
    struct mcd_walk_job *j;

    switch (q->what) {
    case MCS_OBJECTS_STAT:
        on_stat(m, who, q);
        return;
    case MCS_OBJECTS_DRAIN:
    case MCS_OBJECTS_UNDRAIN:
        on_drain(m, who, q);
        return;
    case MCS_OBJECTS_COPY:
    case MCS_OBJECTS_MOVE:
        on_place(m, who, q);
        return;
    case MCS_OBJECTS_LIST:
        break;
    default:
        m->stats.malformed++;
        mcd_master_reply(m, who, MCS_PROTOCOL, NULL);
        return;
    }
    j = job_create(m, who, q->tenant, q->what, q->text);
    if (j != NULL)
        j->out = open_memstream(&j->json, &j->size);
    if (j == NULL || j->out == NULL) {
        listed_answer(m, who, MCS_NO_MEMORY, NULL, "no memory for the list, or too many at a time");
        if (j != NULL)
            job_free(j);
        return;
    }
    j->skip = q->skip;
    j->limit = q->limit;
    fputs("{\"objects\":[", j->out);
    job_begin(m, j);
}

/* ---- the master of itself --------------------------------------------------------------------------- */

static void print_holders(struct mcd_master *m, FILE *out)
{
    static const char *const words[] = {"reporting", "here", "away", "gone"};
    bool first = true;

    for (uint32_t i = 0; i < MCO_HOLDERS_MAX; i++) {
        const struct mco_holder *h = mco_directory_holder_at(m->d, i);

        if (h == NULL)
            continue;
        fprintf(out, "%s{\"address\":", first ? "" : ",");
        print_text(out, h->address);
        fputs(",\"domain\":", out);
        print_text(out, h->domain);
        fprintf(out,
                ",\"state\":\"%s\",\"capacity\":%llu,\"used\":%llu,\"objects\":%llu,"
                "\"draining\":%s}",
                words[mco_directory_state(m->d, i)], (unsigned long long)h->capacity,
                (unsigned long long)h->used, (unsigned long long)mco_directory_objects(m->d, i),
                h->draining ? "true" : "false");
        first = false;
    }
}

char *mcd_master_json(struct mcd_master *m)
{
    struct mco_directory_stats s;
    char *json = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&json, &size);
    bool leads = mcd_master_leads(m);

    if (out == NULL)
        return NULL;
    fprintf(out, "{\"leads\":%s,\"leader\":", leads ? "true" : "false");
    print_text(out, m != NULL ? m->leader : "");
    fprintf(out, ",\"token\":%llu", m != NULL ? (unsigned long long)m->leader_token : 0ull);
    if (leads) {
        mco_directory_get_stats(m->d, mcd_now_ns(), &s);
        fprintf(out,
                ",\"rebuilding\":%s,\"keys\":%llu,\"memory\":%llu,\"puts_open\":%llu,"
                "\"copies_wanted\":%llu,\"drops_pending\":%llu,\"lost\":%llu,\"holders\":[",
                s.rebuilding ? "true" : "false", (unsigned long long)s.keys,
                (unsigned long long)s.bytes_memory, (unsigned long long)s.puts_open,
                (unsigned long long)s.copies_wanted, (unsigned long long)s.drops_pending,
                (unsigned long long)s.lost);
        print_holders(m, out);
        fputc(']', out);
    }
    fputc('}', out);
    fclose(out);
    return json;
}

void mcd_master_get_stats(const struct mcd_master *m, struct mcd_master_stats *out)
{
    memset(out, 0, sizeof(*out));
    if (m != NULL)
        *out = m->stats;
}
