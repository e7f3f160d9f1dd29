/* SPDX-License-Identifier: Apache-2.0 */
#include "query_gpu.h"

#include <string.h>

#include "gpu_internal.h"

static const char *const enables[] = {"auto", "off", "require"};

static void add_u64(cJSON *o, const char *key, uint64_t v)
{
    cJSON_AddNumberToObject(o, key, (double)v);
}

/* ---- figures --------------------------------------------------------------------------------- */

struct figure {
    const char *name, *type, *help;
    size_t offset;
};

/* Of all devices together. */
#define F(field, type, help)                                                                       \
    {                                                                                              \
#field, type, help, offsetof(struct mct_cuda_stats, field)                                 \
    }
static const struct figure figures[] = {
    F(copies, "counter", "Pieces copied with a GPU at an end"),
    F(batches, "counter", "Calls of the driver that carried several of them"),
    F(bytes, "counter", "Bytes of them"),
    F(unpinned, "counter", "Pieces from or to host memory that the driver has not registered"),
    F(peer_staged, "counter", "Pieces between GPUs that do not reach each other"),
    F(unreached, "counter",
      "Times that a GPU got no access to memory of another that it should reach"),
    F(calls, "counter", "Calls about memory"),
    F(failed_calls, "counter", "Of them, those that failed"),
    F(stuck, "counter", "Calls that took longer than five seconds"),
    F(stuck_now, "gauge", "Calls that have taken longer than that and go on"),
    F(imports, "counter", "Memory of other makers imported"),
    F(imports_open, "gauge", "Of it, what is open"),
    F(contexts, "gauge", "Primary contexts held"),
    F(registered_bytes, "gauge", "Host memory registered with the driver"),
};
#define NFIGURES (sizeof(figures) / sizeof(figures[0]))

static uint64_t value(const struct mct_cuda_stats *s, const struct figure *f)
{
    /* relaxed: copiers and hands count on */
    return mcs_load_relaxed((const uint64_t *)(const void *)((const char *)s + f->offset));
}

/* ---- devices --------------------------------------------------------------------------------- */

static const struct mct_cuda_device *device_at(const struct mcd_agent *a, unsigned i)
{
    return mcd_gpu_state(a) == MCD_GPU_OPEN ? mct_cuda_device_get(a->cuda, i) : NULL;
}

static void count_extents(const struct mcd_agent *a, unsigned device, uint64_t *extents,
                          uint64_t *imports)
{
    *extents = *imports = 0;
    for (const struct mcd_extent *e = a->pool.extents; e != NULL; e = e->next) {
        *extents += e->gpu != NULL && e->gpu_device == (int)device;
        *imports += e->gpu != NULL && e->gpu_device == (int)device && e->foreign;
    }
}

static void add_device(const struct mcd_agent *a, unsigned i, cJSON *list)
{
    const struct mct_cuda_device *d = device_at(a, i);
    uint64_t extents, imports;
    struct mcd_gpu_sums sums;
    char id[MCS_GPU_ID_TEXT];
    cJSON *o = cJSON_CreateObject();

    mcs_gpu_id_print(&d->id, d->name, id);
    mcd_gpu_get_sums(a, &d->id, &sums);
    count_extents(a, i, &extents, &imports);
    cJSON_AddStringToObject(o, "uuid", id);
    cJSON_AddStringToObject(o, "name", d->name);
    cJSON_AddStringToObject(o, "pci", d->pci);
    cJSON_AddNumberToObject(o, "node", d->node);
    add_u64(o, "total", d->total);
    add_u64(o, "limit", sums.limit);
    add_u64(o, "ours", sums.used);
    add_u64(o, "refused", sums.refused);
    add_u64(o, "extents", extents);
    add_u64(o, "imports", imports);
    add_u64(o, "granularity", d->granularity);
    add_u64(o, "peers", (uint64_t)__builtin_popcount(d->peers));
    cJSON_AddBoolToObject(o, "lost", mcs_load_relaxed(&d->lost) != 0);
    cJSON_AddBoolToObject(o, "vmm", d->vmm);
    cJSON_AddBoolToObject(o, "posix_handles", d->posix_handles);
    cJSON_AddBoolToObject(o, "mig", d->mig);
    cJSON_AddBoolToObject(o, "exclusive", d->exclusive);
    cJSON_AddBoolToObject(o, "dmabuf", d->dmabuf);
    cJSON_AddBoolToObject(o, "rdma", d->rdma);
    cJSON_AddItemToArray(list, o);
}

static void add_driver(const struct mcd_agent *a, cJSON *o)
{
    cJSON_AddStringToObject(o, "enable", enables[a->config.gpu_enable]);
    if (mcd_gpu_state(a) == MCD_GPU_OPEN)
        cJSON_AddNumberToObject(o, "driver", mct_cuda_driver_version(a->cuda));
    else
        cJSON_AddNullToObject(o, "driver");
    cJSON_AddStringToObject(o, "why", mcd_gpu_why(a));
}

void mcd_query_gpus(const struct mcd_agent *a, cJSON *root)
{
    cJSON *list;

    add_driver(a, root);
    list = cJSON_AddArrayToObject(root, "devices");
    for (unsigned i = 0; device_at(a, i) != NULL; i++)
        add_device(a, i, list);
    if (a->gpu == NULL)
        return;
    for (size_t i = 0; i < NFIGURES; i++)
        add_u64(root, figures[i].name, value(mct_cuda_stats(a->cuda), &figures[i]));
    add_u64(root, "unpinned_extents", a->gpu->unpinned);
    add_u64(root, "free_failed", a->gpu->free_failed);
    add_u64(root, "told_late", a->gpu->told_late);
    add_u64(root, "failed_opens", a->gpu->failed_opens);
}

void mcd_query_gpu_status(const struct mcd_agent *a, cJSON *root)
{
    uint64_t devices = 0, lost = 0, ours = 0;
    struct mcd_gpu_sums sums;
    cJSON *o;

    if (a->gpu == NULL) {
        cJSON_AddNullToObject(root, "gpu");
        return;
    }
    for (; device_at(a, (unsigned)devices) != NULL; devices++) {
        mcd_gpu_get_sums(a, &device_at(a, (unsigned)devices)->id, &sums);
        ours += sums.used;
        lost += mcs_load_relaxed(&device_at(a, (unsigned)devices)->lost);
    }
    o = cJSON_AddObjectToObject(root, "gpu");
    add_driver(a, o);
    add_u64(o, "devices", devices);
    add_u64(o, "lost", lost);
    add_u64(o, "ours", ours);
}

/* ---- /metrics -------------------------------------------------------------------------------- */

enum device_value { DEVICE_TOTAL, DEVICE_LIMIT, DEVICE_OURS, DEVICE_REFUSED, DEVICE_LOST };

static uint64_t device_value(const struct mcd_agent *a, const struct mct_cuda_device *d,
                             enum device_value what)
{
    struct mcd_gpu_sums sums;

    mcd_gpu_get_sums(a, &d->id, &sums);
    return what == DEVICE_TOTAL     ? d->total
           : what == DEVICE_LIMIT   ? sums.limit
           : what == DEVICE_OURS    ? sums.used
           : what == DEVICE_REFUSED ? sums.refused
                                    : mcs_load_relaxed(&d->lost);
}

void mcd_gpu_metrics(const struct mcd_agent *a, FILE *out)
{
    static const struct {
        const char *name, *type, *help;
        enum device_value what;
    } list[] = {
        {"total_bytes", "gauge", "Memory of the device", DEVICE_TOTAL},
        {"limit_bytes", "gauge", "Most of it that clients may have", DEVICE_LIMIT},
        {"used_bytes", "gauge", "What clients have, made here or imported", DEVICE_OURS},
        {"refused_total", "counter", "Requests for it refused at the limit", DEVICE_REFUSED},
        {"lost", "gauge", "1: the device has failed, and with it every copy", DEVICE_LOST},
    };
    char id[MCS_GPU_ID_TEXT];

    if (a->gpu == NULL)
        return;
    fprintf(out,
            "# HELP mcshm_gpu_driver_version The GPU driver's, 13000 is 13.0; 0: not loaded\n"
            "# TYPE mcshm_gpu_driver_version gauge\nmcshm_gpu_driver_version %d\n",
            mcd_gpu_state(a) == MCD_GPU_OPEN ? mct_cuda_driver_version(a->cuda) : 0);
    for (size_t i = 0; i < NFIGURES; i++) {
        const char *end = strcmp(figures[i].type, "counter") == 0 ? "_total" : "";

        fprintf(out, "# HELP mcshm_gpu_%s%s %s\n# TYPE mcshm_gpu_%s%s %s\nmcshm_gpu_%s%s %llu\n",
                figures[i].name, end, figures[i].help, figures[i].name, end, figures[i].type,
                figures[i].name, end,
                (unsigned long long)value(mct_cuda_stats(a->cuda), &figures[i]));
    }
    fprintf(out,
            "# HELP mcshm_gpu_unpinned_extents_total Host extents that the driver did not "
            "register\n# TYPE mcshm_gpu_unpinned_extents_total counter\n"
            "mcshm_gpu_unpinned_extents_total %llu\n"
            "# HELP mcshm_gpu_free_failed_total Memory that the driver let go of with an error\n"
            "# TYPE mcshm_gpu_free_failed_total counter\nmcshm_gpu_free_failed_total %llu\n"
            "# HELP mcshm_gpu_told_late_total Requests that were answered before the driver did "
            "([gpu] call_s)\n"
            "# TYPE mcshm_gpu_told_late_total counter\nmcshm_gpu_told_late_total %llu\n"
            "# HELP mcshm_gpu_failed_opens_total Times that the driver did not start\n"
            "# TYPE mcshm_gpu_failed_opens_total counter\nmcshm_gpu_failed_opens_total %llu\n",
            (unsigned long long)a->gpu->unpinned, (unsigned long long)a->gpu->free_failed,
            (unsigned long long)a->gpu->told_late, (unsigned long long)a->gpu->failed_opens);
    for (size_t i = 0; device_at(a, 0) != NULL && i < sizeof(list) / sizeof(list[0]); i++) {
        fprintf(out, "# HELP mcshm_gpu_%s %s\n# TYPE mcshm_gpu_%s %s\n", list[i].name, list[i].help,
                list[i].name, list[i].type);
        for (unsigned k = 0; device_at(a, k) != NULL; k++) {
            mcs_gpu_id_print(&device_at(a, k)->id, device_at(a, k)->name, id);
            fprintf(out, "mcshm_gpu_%s{gpu=\"%s\"} %llu\n", list[i].name, id,
                    (unsigned long long)device_value(a, device_at(a, k), list[i].what));
        }
    }
}
