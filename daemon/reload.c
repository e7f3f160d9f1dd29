/* SPDX-License-Identifier: Apache-2.0 */
#include "reload.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <stdio.h>

#include "agent.h"
#include "log.h"
#include "store.h"

struct told {
    cJSON *changed, *waiting;
};

static void tell(void *context, const char *key, bool changed)
{
    struct told *t = context;

    cJSON_AddItemToArray(changed ? t->changed : t->waiting, cJSON_CreateString(key));
}

/* "a, b, c" of an array of strings. */
static void join(const cJSON *array, char *out, size_t size)
{
    const cJSON *item;
    size_t n = 0;

    out[0] = '\0';
    cJSON_ArrayForEach(item, array)
    {
        if (n < size)
            n += (size_t)snprintf(out + n, size - n, "%s%s", n != 0 ? ", " : "", item->valuestring);
    }
}

static void log_it(const char *by, unsigned changed, const struct told *t)
{
    int waiting = cJSON_GetArraySize(t->waiting);
    char names[320], others[320], rest[400] = "";

    join(t->changed, names, sizeof(names));
    join(t->waiting, others, sizeof(others));
    if (waiting != 0)
        snprintf(rest, sizeof(rest), "; %d wait%s for the next start: %s", waiting,
                 waiting == 1 ? "s" : "", others);
    mcd_info("%s: %u key%s changed%s%s%s", by, changed, changed == 1 ? "" : "s",
             changed != 0 ? ": " : "", names, rest);
}

int mcd_reload(struct mcd_agent *a, const char *by, struct cJSON **out, char *error,
               size_t error_size)
{
    const struct mcd_config *c = &a->config;
    cJSON *root = cJSON_CreateObject();
    struct told told = {.changed = cJSON_AddArrayToObject(root, "changed"),
                        .waiting = cJSON_AddArrayToObject(root, "waiting")};
    struct mcd_config fresh;
    unsigned n;

    *out = NULL;
    if (told.waiting == NULL) {
        cJSON_Delete(root);
        snprintf(error, error_size, "out of memory");
        return -ENOMEM;
    }
    if (a->reread == NULL || a->reread(&fresh, error, error_size) != 0) {
        if (a->reread == NULL)
            snprintf(error, error_size, "there is no configuration to read");
        mcd_error("%s: keeping the configuration in force: %s", by, error);
        cJSON_Delete(root);
        return -EINVAL;
    }
    n = mcd_config_adopt(&a->config, &fresh, tell, &told);
    mcd_log_set_level((int)c->log_level);
    mcd_tenants_adopt(&a->tenants, c);
    mcd_store_adopt(a);
    for (unsigned i = 0; i < a->nengines; i++)
        mcd_engine_tune(a->engines[i], c->deadline_ms * 1000, c->spin_us, c->slice, c->stream_min);
    log_it(by, n, &told);
    *out = root;
    return 0;
}

void mcd_reload_for_signal(struct mcd_agent *a)
{
    char error[512];
    cJSON *told;

    if (mcd_reload(a, "SIGHUP", &told, error, sizeof(error)) == 0)
        cJSON_Delete(told);
}
