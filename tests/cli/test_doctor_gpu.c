/* SPDX-License-Identifier: Apache-2.0 */
/* What the doctor says of GPUs: of made-up files, of what a driver tells, of an agent's answers. */
#include "cli/doctor_gpu.c"
#include "cli/doctor_gpus.c"
#include "cli/doctor_read.c"
#include "cli/doctor_user.c"
#include "cli/table.c"

#include "doctor_tree.h"

#define UUID "GPU-00112233-4455-6677-8899-aabbccddeeff"

TestSuite(doctor_gpu, .init = begin, .fini = end);

static struct doctor_gpus seen;

static void say(struct doctor *to)
{
    say_gpus(to, &seen);
}

static void user(const char *uid)
{
    char text[200];

    snprintf(text, sizeof(text), "Name:\tx\nUid:\t%s\t%s\t%s\t%s\nGid:\t7\t7\t7\t7\nGroups:\t9\n",
             uid, uid, uid, uid);
    put("/proc/self/status", text);
    put("/proc/77/status", text);
}

static void mode(const char *path, mode_t bits)
{
    char full[512];

    snprintf(full, sizeof(full), "%s%s", root, path);
    cr_assert_eq(chmod(full, bits), 0, "%s", full);
}

/* A device as it should be. */
static void good(void)
{
    seen = (struct doctor_gpus){.version = 13000, .count = 1};
    seen.gpus[0] = (struct doctor_gpu){.uuid = UUID,
                                       .name = "NVIDIA H200",
                                       .pci = "0000:41:00.0",
                                       .total = UINT64_C(141) << 30,
                                       .vmm = true,
                                       .posix_handles = true,
                                       .dmabuf = true,
                                       .rdma = true};
}

Test(doctor_gpu, where_nobody_asks_only_a_driver_is_worth_a_look)
{
    set("gpu.enable", "auto");
    cr_assert_not(doctor_wants_gpu(&d));
    put("/dev/nvidiactl", "");
    cr_assert(doctor_wants_gpu(&d));
    set("gpu.enable", "auto");
    d.settings[0] = (struct setting){.key = "gpu.enable", .value = "off"};
    cr_assert_not(doctor_wants_gpu(&d));
    expect(doctor_check_gpu_use, 0, DOCTOR_NOTE, "enable = off");
}

Test(doctor_gpu, required_and_not_there)
{
    expect(doctor_check_gpu_files, 0, DOCTOR_NOTE, "no NVIDIA driver");
    set("gpu.enable", "require");
    cr_assert(doctor_wants_gpu(&d));
    expect(doctor_check_gpu_use, 0, DOCTOR_OK, "does not start without");
    expect(doctor_check_gpu_files, 0, DOCTOR_BAD, "no NVIDIA driver");
    seen = (struct doctor_gpus){.result = -ENOENT, .why = "the GPU driver cannot be loaded"};
    expect(say, 0, DOCTOR_BAD, "cannot be loaded");
}

Test(doctor_gpu, files_that_are_missing_or_closed)
{
    put("/proc/driver/nvidia/version",
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.1\nGCC version: 12\n");
    put("/dev/nvidiactl", "");
    user("1000");
    mode("/dev/nvidiactl", 0666);
    expect(doctor_check_gpu_files, 0, DOCTOR_OK, "580.1");
    cr_assert_null(strstr(d.findings[0].what, "GCC"));
    expect(doctor_check_gpu_files, 1, DOCTOR_OK, "this user may open /dev/nvidiactl");
    expect(doctor_check_gpu_files, 2, DOCTOR_WARN, "/dev/nvidia-uvm: No such file");
    expect(doctor_check_gpu_files, 3, DOCTOR_WARN, "no /dev/nvidia0");
    put("/dev/nvidia-uvm", "");
    mode("/dev/nvidia-uvm", 0666);
    put("/dev/nvidia0", "");
    mode("/dev/nvidia0", 0600);
    put("/dev/nvidia-caps/x", ""); /* no device's file */
    expect(doctor_check_gpu_files, 3, DOCTOR_WARN, "may not open /dev/nvidia0: mode 0600");
    cr_assert_eq(d.nfindings, 4);
    user("0");
    expect(doctor_check_gpu_files, 3, DOCTOR_OK, "may open /dev/nvidia0");
    /* an agent whose unit has PrivateDevices=yes */
    put("/proc/77/root/dev/null", "");
    d.agent_pid = 77;
    expect(doctor_check_gpu_files, 1, DOCTOR_WARN, "not for the agent");
    cr_assert_not_null(strstr(d.findings[1].remedy, "PrivateDevices=no"));
}

Test(doctor_gpu, devices_and_what_they_lack)
{
    good();
    expect(say, 0, DOCTOR_OK, "driver for CUDA 13.0, 1 device");
    expect(say, 1, DOCTOR_OK, "NVIDIA H200, 141G, PCI 0000:41:00.0");
    cr_assert_eq(d.nfindings, 2);
    seen.gpus[0].posix_handles = false;
    expect(say, 2, DOCTOR_WARN, "POSIX handles no");
    good();
    seen.gpus[0].compute_mode = CU_COMPUTEMODE_EXCLUSIVE_PROCESS;
    expect(say, 2, DOCTOR_WARN, "EXCLUSIVE_PROCESS");
    seen.gpus[0].compute_mode = CU_COMPUTEMODE_PROHIBITED;
    expect(say, 2, DOCTOR_WARN, "PROHIBITED");
    good();
    seen.gpus[0].dmabuf = false;
    expect(say, 2, DOCTOR_NOTE, "no dmabuf");
    good();
    snprintf(seen.gpus[0].name, sizeof(seen.gpus[0].name), "NVIDIA A100-SXM4-40GB MIG 1g.5gb");
    expect(say, 2, DOCTOR_NOTE, "MIG instance");
}

Test(doctor_gpu, the_double_is_not_mistaken_for_hardware)
{
    good();
    snprintf(seen.gpus[0].name, sizeof(seen.gpus[0].name),
             "FAKE GPU 0 (tests/fake-cuda, no hardware)");
    expect(say, 1, DOCTOR_OK, "FAKE GPU 0");
    expect(say, 2, DOCTOR_WARN, "test double");
}

Test(doctor_gpu, a_driver_that_does_not_answer)
{
    put("/dev/nvidiactl", "");
    seen = (struct doctor_gpus){.result = -ETIMEDOUT,
                                .why = "the GPU driver did not answer within 30 s"};
    expect(say, 0, DOCTOR_WARN, "did not answer");
    cr_assert_not_null(strstr(d.findings[0].remedy, "nvidia-smi"));
}

Test(doctor_gpu, which_devices_are_seen)
{
    put("/proc/self/environ", "HOME=/root");
    expect(doctor_check_gpu_visible, 0, DOCTOR_OK, "this shell has no CUDA_VISIBLE_DEVICES");
    put("/proc/self/environ", "CUDA_VISIBLE_DEVICES=1,0");
    expect(doctor_check_gpu_visible, 0, DOCTOR_NOTE, "CUDA_VISIBLE_DEVICES=1,0");
    put("/proc/self/environ", "CUDA_VISIBLE_DEVICES=");
    expect(doctor_check_gpu_visible, 0, DOCTOR_WARN, "sees no other device");
    put("/proc/self/environ", "NVIDIA_VISIBLE_DEVICES=void");
    expect(doctor_check_gpu_visible, 1, DOCTOR_WARN, "given no GPU");
    d.agent_pid = 77;
    expect(doctor_check_gpu_visible, 2, DOCTOR_NOTE, "may not be looked at");
    put("/proc/77/environ", "CUDA_VISIBLE_DEVICES=0");
    expect(doctor_check_gpu_visible, 2, DOCTOR_WARN, "the agent has CUDA_VISIBLE_DEVICES=0");
}

static const char *answer;

static void judge_answer(struct doctor *to)
{
    cJSON *document = cJSON_Parse(answer);

    cr_assert_not_null(document);
    doctor_check_gpu_answer(to, document);
    cJSON_Delete(document);
}

Test(doctor_gpu, what_the_agent_says)
{
    answer = "{\"enable\":\"auto\",\"driver\":null,\"why\":\"\",\"devices\":[]}";
    expect(judge_answer, 0, DOCTOR_OK, "no client has asked");
    answer = "{\"enable\":\"auto\",\"driver\":null,\"why\":\"it is too old\",\"devices\":[]}";
    expect(judge_answer, 0, DOCTOR_WARN, "it is too old");
    answer =
        "{\"driver\":13000,\"devices\":[{\"uuid\":\"" UUID "\",\"name\":\"NVIDIA H200\","
        "\"total\":1073741824,\"ours\":2097152,\"lost\":false}],\"stuck_now\":0,\"unpinned\":0}";
    expect(judge_answer, 0, DOCTOR_OK, UUID ", NVIDIA H200: 2M of 1G");
    cr_assert_eq(d.nfindings, 1);
    answer = "{\"driver\":13000,\"devices\":[{\"uuid\":\"" UUID "\",\"name\":\"NVIDIA H200\","
             "\"total\":1073741824,\"ours\":0,\"lost\":true}],\"stuck_now\":2,\"unpinned\":3}";
    expect(judge_answer, 0, DOCTOR_BAD, "is lost");
    expect(judge_answer, 1, DOCTOR_WARN, "2 calls");
    expect(judge_answer, 2, DOCTOR_WARN, "3 copies");
}
