/* SPDX-License-Identifier: Apache-2.0 */
/* GPUs on this host: whether the driver is there and may be used, what its devices can do, what the agent makes of them. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "doctor.h"
#include "doctor_gpu.h"
#include "table.h"

#define DRIVER_MS 30000 /* a driver that has to wake its devices takes seconds */

/* How bad it is when no GPU can be used. */
static enum severity harm(const struct doctor *d)
{
    return strcmp(doctor_setting(d, "gpu.enable"), "require") == 0 ? DOCTOR_BAD : DOCTOR_WARN;
}

static bool exists(const struct doctor *d, const char *path)
{
    char full[512];

    snprintf(full, sizeof(full), "%s%s", d->root, path);
    return access(full, F_OK) == 0;
}

/* A driver's kernel module, or its device files. */
static bool has_driver_files(const struct doctor *d)
{
    return exists(d, "/dev/nvidiactl") || exists(d, "/proc/driver/nvidia/version");
}

bool doctor_wants_gpu(const struct doctor *d)
{
    const char *enable = doctor_setting(d, "gpu.enable");

    return strcmp(enable, "require") == 0 || (strcmp(enable, "off") != 0 && has_driver_files(d));
}

void doctor_check_gpu_use(struct doctor *d)
{
    const char *enable = doctor_setting(d, "gpu.enable");

    if (strcmp(enable, "off") == 0)
        doctor_say(d, DOCTOR_NOTE, has_driver_files(d) ? "[gpu] enable = auto" : NULL,
                   "[gpu] enable = off: the agent gives no client memory of a GPU");
    else if (strcmp(enable, "require") == 0)
        doctor_say(d, DOCTOR_OK, NULL,
                   "[gpu] enable = require: the agent opens the driver at its start, and does not "
                   "start without a device");
    else
        doctor_say(d, DOCTOR_OK, NULL,
                   "[gpu] enable = auto: the agent opens the driver when a client first asks for "
                   "GPU memory");
}

/* ---- files ------------------------------------------------------------------------------ */

static void check_file(struct doctor *d, const struct doctor_user *u, const char *file)
{
    char path[512];
    struct stat st;
    int fd = -1;

    snprintf(path, sizeof(path), "%s%s", d->root, file);
    if (stat(path, &st) != 0) {
        doctor_say(d, harm(d),
                   "nvidia-modprobe -u -c=0 makes it on a host (nvidia-persistenced does at each "
                   "boot); a container takes --gpus all, or --device for each",
                   "%s: %s", file, strerror(errno));
    } else if (doctor_hidden_from_agent(d, file)) {
        doctor_say(d, harm(d),
                   "systemctl edit mcshmd: [Service] PrivateDevices=no, DeviceAllow=char-nvidia* "
                   "rw; a container takes --gpus all",
                   "%s is there, but not for the agent, whose unit or container hides it", file);
    } else if (!doctor_may_open(u, &st)) {
        doctor_say(d, harm(d),
                   "NVreg_DeviceFileMode=0666 of the nvidia module (modprobe.d), or add the "
                   "agent's user to the file's group",
                   "%s (uid %u) may not open %s: mode %04o of %u:%u", u->whose, u->uid, file,
                   st.st_mode & 07777, st.st_uid, st.st_gid);
        /* What bits do not tell: a container's rules for devices, a device that has gone. */
    } else if (d->agent_pid == 0 && S_ISCHR(st.st_mode) &&
               (fd = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK)) < 0) {
        doctor_say(d, harm(d), "in a container pass it (--gpus all), else look at dmesg",
                   "%s cannot be opened although its mode allows it: %s", file, strerror(errno));
    } else {
        doctor_say(d, DOCTOR_OK, NULL, "%s may open %s", u->whose, file);
    }
    if (fd >= 0)
        close(fd);
}

static bool is_device_file(const char *name)
{
    size_t n = strlen("nvidia");

    return strncmp(name, "nvidia", n) == 0 && name[n] != '\0' &&
           strspn(name + n, "0123456789") == strlen(name + n);
}

void doctor_check_gpu_files(struct doctor *d)
{
    char path[512], text[300];
    struct doctor_user u;
    struct dirent *e;
    unsigned devices = 0;
    DIR *dir;

    if (!has_driver_files(d)) {
        doctor_say(d, harm(d) == DOCTOR_BAD ? DOCTOR_BAD : DOCTOR_NOTE,
                   harm(d) == DOCTOR_BAD ? "install NVIDIA's driver (or, in a container, --gpus "
                                           "all); [gpu] enable = auto goes on without"
                                         : NULL,
                   "there is no NVIDIA driver here: neither /dev/nvidiactl nor "
                   "/proc/driver/nvidia/version");
        return;
    }
    if (doctor_read(d, text, sizeof(text), "/proc/driver/nvidia/version")) {
        text[strcspn(text, "\n")] = '\0';
        doctor_say(d, DOCTOR_OK, NULL, "kernel module: %s", text);
    }
    if (!doctor_user_read(d, &u)) {
        doctor_say(d, DOCTOR_NOTE, NULL, "who opens /dev/nvidia* is not known");
        return;
    }
    check_file(d, &u, "/dev/nvidiactl");
    check_file(d, &u, "/dev/nvidia-uvm");
    snprintf(path, sizeof(path), "%s/dev", d->root);
    dir = opendir(path);
    while (dir != NULL && (e = readdir(dir)) != NULL) {
        char file[300];

        if (!is_device_file(e->d_name))
            continue;
        snprintf(file, sizeof(file), "/dev/%s", e->d_name);
        check_file(d, &u, file);
        devices++;
    }
    if (dir != NULL)
        closedir(dir);
    if (devices == 0)
        doctor_say(d, harm(d), "a container takes --gpus all, a host nvidia-smi (it makes them)",
                   "there is no /dev/nvidia0 or any other device's file");
}

/* ---- devices ---------------------------------------------------------------------------- */

static void say_features(struct doctor *d, const struct doctor_gpu *g)
{
    char size[32];

    doctor_size(g->total, size, sizeof(size));
    doctor_say(d, DOCTOR_OK, NULL,
               "%s: %s, %s, PCI %s; cuMemCreate %s, POSIX handles %s, dmabuf %s, GPUDirect RDMA "
               "%s, reaches %u other device%s directly",
               g->uuid, g->name, size, g->pci, g->vmm ? "yes" : "no",
               g->posix_handles ? "yes" : "no", g->dmabuf ? "yes" : "no", g->rdma ? "yes" : "no",
               g->peers, g->peers == 1 ? "" : "s");
}

static void judge(struct doctor *d, const struct doctor_gpu *g)
{
    say_features(d, g);
    if (doctor_gpu_is_fake(g))
        doctor_say(d, DOCTOR_WARN, "take the folder of tests/fake-cuda out of LD_LIBRARY_PATH",
                   "%s is the test double of tests/fake-cuda: host memory, no hardware", g->uuid);
    if (!g->vmm || !g->posix_handles)
        doctor_say(d, harm(d),
                   "a driver of this decade on Linux has both; a vGPU needs unified memory "
                   "enabled in its profile, WSL has no POSIX handles",
                   "%s: the agent cannot make memory there that clients map (cuMemCreate %s, POSIX "
                   "handles %s)",
                   g->uuid, g->vmm ? "yes" : "no", g->posix_handles ? "yes" : "no");
    if (doctor_gpu_is_mig(g))
        doctor_say(
            d, DOCTOR_NOTE,
            "clients and agent must be given the same instance (CUDA_VISIBLE_DEVICES=MIG-...)",
            "%s is a MIG instance: a process sees one at a time, and no other device", g->uuid);
    if (g->compute_mode == CU_COMPUTEMODE_EXCLUSIVE_PROCESS)
        doctor_say(d, harm(d), "nvidia-smi -c DEFAULT, or run an MPS server",
                   "%s: compute mode EXCLUSIVE_PROCESS: agent and client cannot both have a "
                   "context there",
                   g->uuid);
    if (g->compute_mode == CU_COMPUTEMODE_PROHIBITED)
        doctor_say(d, harm(d), "nvidia-smi -c DEFAULT",
                   "%s: compute mode PROHIBITED: nobody can have a context there", g->uuid);
    if (!g->dmabuf && !doctor_gpu_is_fake(g))
        doctor_say(d, DOCTOR_NOTE,
                   "NVIDIA's open kernel modules, and a kernel from 5.12 on, have it",
                   "%s: no dmabuf: between hosts its memory goes through host memory", g->uuid);
}

/* What there is to say of what the driver told. */
static void say_gpus(struct doctor *d, const struct doctor_gpus *seen)
{
    bool idle = harm(d) != DOCTOR_BAD && !has_driver_files(d);

    if (seen->result != 0) {
        doctor_say(d, idle ? DOCTOR_NOTE : harm(d),
                   idle ? NULL
                   : seen->result == -ETIMEDOUT || seen->result == -EIO
                       ? "nvidia-smi, dmesg; a device that fell off the bus takes a reboot"
                       : "nvidia-smi must list the device for the agent's user",
                   "%s", seen->why);
        return;
    }
    doctor_say(d, DOCTOR_OK, NULL, "driver for CUDA %d.%d, %u device%s", seen->version / 1000,
               seen->version % 1000 / 10, seen->count, seen->count == 1 ? "" : "s");
    if (seen->left_out > 0)
        doctor_say(d, DOCTOR_NOTE, NULL, "%u more are not looked at", seen->left_out);
    for (uint32_t i = 0; i < seen->count; i++)
        judge(d, &seen->gpus[i]);
}

void doctor_check_gpu_devices(struct doctor *d)
{
    struct doctor_gpus seen;

    doctor_gpus_ask(&seen, DRIVER_MS);
    say_gpus(d, &seen);
}

/* ---- who sees which --------------------------------------------------------------------- */

/* A variable of a process's environment; false: it has none, or may not be looked at. */
static bool variable_of(const struct doctor *d, const char *process, const char *name, char *out,
                        size_t size)
{
    char path[512], *line = NULL;
    size_t room = 0, n = strlen(name);
    bool found = false;
    FILE *f;

    snprintf(path, sizeof(path), "%s/proc/%s/environ", d->root, process);
    f = fopen(path, "re");
    while (f != NULL && !found && getdelim(&line, &room, '\0', f) > 0) {
        found = strncmp(line, name, n) == 0 && line[n] == '=';
        if (found)
            snprintf(out, size, "%s", line + n + 1);
    }
    if (f != NULL)
        fclose(f);
    free(line);
    return found;
}

static void look_at(struct doctor *d, const char *process, const char *whose, bool agent)
{
    char value[200];

    if (variable_of(d, process, "CUDA_VISIBLE_DEVICES", value, sizeof(value)))
        doctor_say(d, agent || value[0] == '\0' ? DOCTOR_WARN : DOCTOR_NOTE,
                   agent || value[0] == '\0'
                       ? "leave it unset for the agent, which names devices by UUID and serves "
                         "clients that see others"
                       : "cuda:N counts what is left; cuda:GPU-... names a device whatever is set",
                   "%s has CUDA_VISIBLE_DEVICES=%s: it sees no other device", whose, value);
    else
        doctor_say(d, DOCTOR_OK, NULL, "%s has no CUDA_VISIBLE_DEVICES: it sees all devices",
                   whose);
    if (variable_of(d, process, "NVIDIA_VISIBLE_DEVICES", value, sizeof(value)) &&
        (strcmp(value, "void") == 0 || strcmp(value, "none") == 0))
        doctor_say(d, harm(d), "NVIDIA_VISIBLE_DEVICES=all in the container's environment",
                   "%s has NVIDIA_VISIBLE_DEVICES=%s: the container was given no GPU", whose,
                   value);
}

void doctor_check_gpu_visible(struct doctor *d)
{
    char pid[16], path[512];

    look_at(d, "self", "this shell", false);
    if (d->agent_pid == 0)
        return;
    snprintf(pid, sizeof(pid), "%u", d->agent_pid);
    snprintf(path, sizeof(path), "%s/proc/%s/environ", d->root, pid);
    if (access(path, R_OK) == 0)
        look_at(d, pid, "the agent", true);
    else
        doctor_say(d, DOCTOR_NOTE, "run the doctor as root, or as the agent's user",
                   "what the agent's environment is may not be looked at");
}

/* ---- the agent's own account ------------------------------------------------------------ */

static const char *text_of(const cJSON *o, const char *name)
{
    const cJSON *v = cJSON_GetObjectItemCaseSensitive(o, name);

    return cJSON_IsString(v) ? v->valuestring : "";
}

static unsigned long long count_of(const cJSON *o, const char *name)
{
    return table_number(cJSON_GetObjectItemCaseSensitive(o, name));
}

static void say_device(struct doctor *d, const cJSON *o)
{
    bool lost = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(o, "lost"));
    char total[32], ours[32];

    doctor_size(count_of(o, "total"), total, sizeof(total));
    doctor_size(count_of(o, "ours"), ours, sizeof(ours));
    doctor_say(d, lost ? DOCTOR_BAD : DOCTOR_OK,
               lost ? "dmesg tells why (Xid); then restart the agent, and the processes that used "
                      "the device"
                    : NULL,
               "the agent has %s, %s: %s of %s%s", text_of(o, "uuid"), text_of(o, "name"), ours,
               total, lost ? "; the device is lost, every copy on it fails" : "");
}

void doctor_check_gpu_answer(struct doctor *d, const cJSON *answer)
{
    const cJSON *driver = cJSON_GetObjectItemCaseSensitive(answer, "driver"), *o;
    unsigned long long stuck = count_of(answer, "stuck_now");
    unsigned long long unpinned = count_of(answer, "unpinned");

    if (!cJSON_IsNumber(driver)) {
        doctor_say(d, text_of(answer, "why")[0] != '\0' ? harm(d) : DOCTOR_OK,
                   text_of(answer, "why")[0] != '\0' ? "as above; then restart the agent" : NULL,
                   "the agent has not opened the driver%s%s",
                   text_of(answer, "why")[0] != '\0' ? ": "
                                                     : ", no client has asked for GPU memory",
                   text_of(answer, "why"));
        return;
    }
    cJSON_ArrayForEach(o, cJSON_GetObjectItemCaseSensitive(answer, "devices"))
    {
        say_device(d, o);
    }
    if (stuck > 0)
        doctor_say(d, DOCTOR_WARN, "dmesg (Xid); a device that hangs takes a reset or a reboot",
                   "%llu calls of the agent hang inside the driver", stuck);
    if (unpinned > 0)
        doctor_say(d, DOCTOR_WARN, "the agent's log says why",
                   "%llu copies went to or from host memory that the driver would not register: "
                   "they are slower",
                   unpinned);
}

void doctor_check_gpu_agent(struct doctor *d)
{
    cJSON *answer = doctor_ask_agent(d, MCSHM_QUERY_GPUS, "GPUs");

    if (answer != NULL)
        doctor_check_gpu_answer(d, answer);
    cJSON_Delete(answer);
}
