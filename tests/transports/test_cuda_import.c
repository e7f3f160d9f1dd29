/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of other processes: opened once, closed with the last use, and never more of it than there is. */
#include "cuda_rig.h"

struct world {
    struct rig r;
    struct rig_port p;
    struct other o;
    uint8_t *bytes;
};

#define ROOM (16 * MIB)

static void begin(struct world *w)
{
    other_start(&w->o);
    rig_create(&w->r, 2, 0);
    cr_assert_eq(rig_open(&w->r), MCS_OK);
    rig_port_open(&w->r, &w->p);
    w->bytes = malloc(ROOM);
    cr_assert_not_null(w->bytes);
}

static void end(struct world *w)
{
    rig_port_close(&w->p);
    rig_destroy(&w->r);
    other_end(&w->o);
    free(w->bytes);
}

static struct other_answer allocate(struct world *w, int device, uint64_t size, uint8_t fill)
{
    return other_ask(
        &w->o, (struct other_ask){.op = OTHER_ALLOC, .device = device, .size = size, .fill = fill},
        NULL);
}

/* A descriptor of memory that is exported. */
static int vmm(struct world *w, int device, uint64_t size, uint8_t fill)
{
    int fd;

    other_ask(&w->o,
              (struct other_ask){.op = OTHER_VMM, .device = device, .size = size, .fill = fill},
              &fd);
    cr_assert_geq(fd, 0);
    return fd;
}

static enum mcs_status import(struct world *w, unsigned device, const struct mct_cuda_part *parts,
                              unsigned n, struct mct_cuda_call *call)
{
    *call = (struct mct_cuda_call){
        .kind = MCT_CUDA_IMPORT, .device = device, .parts = parts, .nparts = n};
    return rig_call(&w->r, call);
}

static void expect(struct world *w, unsigned device, uint64_t at, uint64_t size, uint8_t value)
{
    memset(w->bytes, (uint8_t)~value, size);
    rig_read(&w->p, (int)device, w->bytes, at, size);
    for (uint64_t i = 0; i < size; i++)
        cr_assert_eq(w->bytes[i], value, "byte %llu is %02x, not %02x", (unsigned long long)i,
                     w->bytes[i], value);
}

static struct mct_cuda_part ipc(const struct other_answer *a, uint64_t offset, uint64_t size)
{
    return (struct mct_cuda_part){
        .fd = -1, .ipc = a->ipc, .allocation = a->id, .offset = offset, .size = size};
}

/* ---- by IPC handles -------------------------------------------------------------------------------- */

Test(cuda_import, an_allocation_is_opened_once_and_closed_with_its_last_use)
{
    struct mct_cuda_call first, second, third;
    struct mct_cuda_part part;
    struct other_answer a;
    const struct mct_cuda_stats *s;
    struct world w;
    int64_t opens, opened;

    begin(&w);
    s = mct_cuda_stats(w.r.cuda);
    opens = rig_count(FAKE_OPENS);
    opened = rig_count(FAKE_OPENED);
    a = allocate(&w, 0, 4 * MIB, 0x31);
    part = ipc(&a, 0, 4 * MIB);
    cr_assert_eq(import(&w, 0, &part, 1, &first), MCS_OK, "%s", first.text);
    part = ipc(&a, MIB + 12, 1000);
    cr_assert_eq(import(&w, 0, &part, 1, &second), MCS_OK, "%s", second.text);
    part = ipc(&a, 0, 1);
    cr_assert_eq(import(&w, 0, &part, 1, &third), MCS_OK, "%s", third.text);
    cr_assert_eq(second.address, first.address + MIB + 12);
    cr_assert_eq(rig_count(FAKE_OPENS), opens + 1);
    cr_assert_eq(mcs_load_relaxed(&s->imports), 3);
    cr_assert_eq(mcs_load_relaxed(&s->imports_open), 1);
    expect(&w, 0, first.address, 4 * MIB, 0x31);
    cr_assert_eq(rig_free(&w.r, first.memory), MCS_OK);
    expect(&w, 0, second.address, 1000, 0x31);
    cr_assert_eq(rig_free(&w.r, third.memory), MCS_OK);
    cr_assert_eq(rig_count(FAKE_OPENED), opened + 1);
    cr_assert_eq(rig_free(&w.r, second.memory), MCS_OK);
    cr_assert_eq(rig_count(FAKE_OPENED), opened);
    cr_assert_eq(mcs_load_relaxed(&s->imports_open), 0);
    end(&w);
}

/* The driver opens the block that it was cut from, and the address is somewhere in it. */
Test(cuda_import, a_small_allocation_is_a_part_of_what_is_opened)
{
    struct mct_cuda_call call, beyond;
    struct mct_cuda_part part;
    struct other_answer a;
    struct world w;

    begin(&w);
    a = allocate(&w, 0, 100000, 0x77);
    cr_assert_neq(a.address % (2 * MIB), 0, "it begins a block: the test says nothing");
    part = ipc(&a, 12, 100000 - 12);
    cr_assert_eq(import(&w, 0, &part, 1, &call), MCS_OK, "%s", call.text);
    cr_assert_eq(call.address % (2 * MIB), a.address % (2 * MIB) + 12);
    expect(&w, 0, call.address, 100000 - 12, 0x77);
    /* up to the end of the block, and no further */
    part = ipc(&a, 0, 2 * MIB - a.address % (2 * MIB) + 1);
    cr_assert_eq(import(&w, 0, &part, 1, &beyond), MCS_BAD_RANGE, "%s", beyond.text);
    cr_assert_eq(rig_free(&w.r, call.memory), MCS_OK);
    end(&w);
}

Test(cuda_import, memory_that_was_freed_and_allocated_again_at_its_address_is_opened_anew)
{
    struct mct_cuda_call call;
    struct mct_cuda_part part;
    struct other_answer a;
    struct world w;
    uint64_t address = 0;
    unsigned same = 0;

    begin(&w);
    for (unsigned i = 0; i < 100; i++) {
        a = allocate(&w, 0, 2 * MIB, (uint8_t)i);
        same += a.address == address;
        address = a.address;
        part = ipc(&a, 0, 2 * MIB);
        cr_assert_eq(import(&w, 0, &part, 1, &call), MCS_OK, "%s", call.text);
        memset(w.bytes, 0, 4096);
        rig_read(&w.p, 0, w.bytes, call.address + 2 * MIB - 4096, 4096);
        for (unsigned k = 0; k < 4096; k++)
            cr_assert_eq(w.bytes[k], (uint8_t)i, "stale in round %u", i);
        cr_assert_eq(rig_free(&w.r, call.memory), MCS_OK);
        other_ask(&w.o, (struct other_ask){.op = OTHER_FREE, .address = address}, NULL);
    }
    cr_assert_gt(same, 0, "the address was never the same again: the test says nothing");
    end(&w);
}

Test(cuda_import, ranges_beyond_an_allocation_and_what_is_no_handle_are_refused)
{
    static const uint64_t bad[][2] = {{0, 2 * MIB + 1},
                                      {2 * MIB, 1},
                                      {2 * MIB - 1, 2},
                                      {UINT64_MAX, 1},
                                      {UINT64_MAX - 4, UINT64_MAX},
                                      {1, UINT64_MAX},
                                      {0, 0},
                                      {UINT64_C(1) << 63, UINT64_C(1) << 63}};
    struct mct_cuda_call call;
    struct mct_cuda_part part, two[2];
    struct other_answer a;
    struct world w;
    int64_t opened;

    begin(&w);
    opened = rig_count(FAKE_OPENED);
    a = allocate(&w, 0, 2 * MIB, 1);
    for (unsigned i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        part = ipc(&a, bad[i][0], bad[i][1]);
        cr_assert_eq(import(&w, 0, &part, 1, &call), MCS_BAD_RANGE, "%u: %s", i, call.text);
        cr_assert_null(call.memory);
        cr_expect(strstr(call.text, "2097152") != NULL, "%s", call.text);
        cr_assert_eq(rig_count(FAKE_OPENED), opened);
    }
    part = ipc(&a, 0, 2 * MIB);
    memset(&part.ipc, 0x5a, sizeof(part.ipc));
    cr_assert_eq(import(&w, 0, &part, 1, &call), MCS_BAD_SHM, "%s", call.text);
    cr_assert_null(call.memory);
    cr_expect(strstr(call.text, "CUDA_ERROR_") != NULL && strstr(call.text, "one user") != NULL &&
                  strstr(call.text, "expandable segments") != NULL,
              "%s", call.text);
    part = ipc(&a, 0, 2 * MIB);
    cr_assert_neq(import(&w, 1, &part, 1, &call), MCS_OK, "memory of another device was taken");
    two[0] = two[1] = part;
    cr_assert_eq(import(&w, 0, two, 2, &call), MCS_INVALID_ARGUMENT);
    cr_assert_eq(import(&w, 0, two, 0, &call), MCS_INVALID_ARGUMENT);
    cr_assert_eq(rig_count(FAKE_OPENED), opened);
    cr_assert_eq(mcs_load_relaxed(&mct_cuda_stats(w.r.cuda)->imports), 0);
    end(&w);
}

#define CALLS 32u

/* Four sessions, each of which imports and lets go of the same allocation all the time, while another one copies from it. */
Test(cuda_import, another_tenant_that_has_seen_a_handle_does_not_get_its_memory)
{
    struct mct_cuda_call first, second;
    struct mct_cuda_part part, stolen;
    struct other_answer a;
    struct world w;

    begin(&w);
    a = allocate(&w, 0, 4 * MIB, 0x31);
    part = ipc(&a, 0, 4 * MIB);
    part.tenant = 1;
    cr_assert_eq(import(&w, 0, &part, 1, &first), MCS_OK, "%s", first.text);
    stolen = part;
    stolen.tenant = 2;
    cr_assert_eq(import(&w, 0, &stolen, 1, &second), MCS_ACCESS);
    stolen.allocation++;
    cr_assert_eq(import(&w, 0, &stolen, 1, &second), MCS_ACCESS);
    cr_assert_eq(rig_free(&w.r, first.memory), MCS_OK);
    end(&w);
}

Test(cuda_import, sessions_of_one_process_share_what_is_open)
{
    struct mct_cuda_call calls[CALLS], held;
    struct mct_cuda_part part;
    bool done[CALLS];
    struct other_answer a;
    struct world w;
    int64_t opened;

    begin(&w);
    opened = rig_count(FAKE_OPENED);
    a = allocate(&w, 1, 2 * MIB, 0x42);
    part = ipc(&a, 0, 2 * MIB);
    for (unsigned round = 0; round < 20; round++) {
        for (unsigned i = 0; i < CALLS; i++) {
            calls[i] = (struct mct_cuda_call){.kind = MCT_CUDA_IMPORT,
                                              .order = 1 + i % 4,
                                              .device = 1,
                                              .parts = &part,
                                              .nparts = 1};
            rig_begin(&w.r, &calls[i], &done[i]);
        }
        for (unsigned i = 0; i < CALLS; i++) {
            rig_await(&w.r, &done[i]);
            cr_assert_eq(calls[i].status, MCS_OK, "%s", calls[i].text);
        }
        cr_assert_eq(rig_count(FAKE_OPENED), opened + 1);
        expect(&w, 1, calls[round % CALLS].address, 65536, 0x42);
        for (unsigned i = 0; i < CALLS; i++) {
            calls[i].kind = MCT_CUDA_FREE;
            rig_begin(&w.r, &calls[i], &done[i]);
        }
        if (round % 2 == 0) /* while they are let go of */
            cr_assert_eq(import(&w, 1, &part, 1, &held), MCS_OK, "%s", held.text);
        for (unsigned i = 0; i < CALLS; i++) {
            rig_await(&w.r, &done[i]);
            cr_assert_eq(calls[i].status, MCS_OK, "%s", calls[i].text);
        }
        if (round % 2 == 0) {
            expect(&w, 1, held.address, 65536, 0x42);
            cr_assert_eq(rig_free(&w.r, held.memory), MCS_OK);
        }
        cr_assert_eq(rig_count(FAKE_OPENED), opened);
    }
    end(&w);
}

Test(cuda_import, a_close_that_hangs_holds_up_nobody_but_who_wants_the_same_memory)
{
    struct mct_cuda_call one, other, again, freed;
    struct mct_cuda_part part, part2;
    struct other_answer a, b;
    bool done, back;
    struct world w;

    begin(&w);
    a = allocate(&w, 0, 2 * MIB, 1);
    b = allocate(&w, 0, 2 * MIB, 2);
    part = ipc(&a, 0, 2 * MIB);
    part2 = ipc(&b, 0, 2 * MIB);
    cr_assert_eq(import(&w, 0, &part, 1, &one), MCS_OK, "%s", one.text);
    fake_cuda_arm(fake, 0, "cuIpcCloseMemHandle", FAKE_HANG, 0, 1, 1);
    freed = (struct mct_cuda_call){.kind = MCT_CUDA_FREE, .order = 1, .memory = one.memory};
    rig_begin(&w.r, &freed, &done);
    for (int tries = 0; mcs_load_relaxed(&fake->rules[0].waiting) == 0; tries++) {
        cr_assert_lt(tries, FOREVER_MS / 5);
        if (!mct_cuda_poll(w.r.cuda))
            (void)rig_wait(w.r.control_fd, 5);
    }
    cr_assert_eq(import(&w, 0, &part2, 1, &other), MCS_OK, "%s", other.text);
    expect(&w, 0, other.address, 65536, 2);
    cr_assert_eq(rig_free(&w.r, other.memory), MCS_OK);
    again = (struct mct_cuda_call){
        .kind = MCT_CUDA_IMPORT, .order = 2, .device = 0, .parts = &part, .nparts = 1};
    rig_begin(&w.r, &again, &back);
    cr_assert_eq(import(&w, 0, &part2, 1, &other), MCS_OK, "%s", other.text);
    cr_assert_not(back);
    cr_assert_not(done);
    fake_cuda_disarm(fake);
    rig_await(&w.r, &done);
    rig_await(&w.r, &back);
    cr_assert_eq(again.status, MCS_OK, "%s", again.text);
    expect(&w, 0, again.address, 65536, 1);
    cr_assert_eq(rig_free(&w.r, again.memory), MCS_OK);
    cr_assert_eq(rig_free(&w.r, other.memory), MCS_OK);
    end(&w);
}

/* ---- by exported handles --------------------------------------------------------------------------- */

Test(cuda_import, exported_allocations_lie_one_behind_the_other_as_there)
{
    struct mct_cuda_part parts[3] = {{.size = MIB, .offset = 3 * MIB, .whole = 4 * MIB},
                                     {.size = 2 * MIB, .offset = 0, .whole = 2 * MIB},
                                     {.size = 100, .offset = 0, .whole = 4 * MIB}};
    struct mct_cuda_call call;
    struct world w;
    uint8_t byte = 0x99;

    begin(&w);
    parts[0].fd = vmm(&w, 1, 4 * MIB, 0xa1);
    parts[1].fd = vmm(&w, 1, 2 * MIB, 0xa2);
    parts[2].fd = vmm(&w, 1, 4 * MIB, 0xa3);
    cr_assert_eq(import(&w, 1, parts, 3, &call), MCS_OK, "%s", call.text);
    expect(&w, 1, call.address, MIB, 0xa1);
    expect(&w, 1, call.address + MIB, 2 * MIB, 0xa2);
    expect(&w, 1, call.address + 3 * MIB, 100, 0xa3);
    /* both ways, and by the other device */
    rig_write(&w.p, 1, call.address + MIB - 1, &byte, 1);
    expect(&w, 1, call.address + MIB - 1, 1, 0x99);
    for (unsigned i = 0; i < 3; i++)
        close(parts[i].fd);
    cr_assert_eq(rig_free(&w.r, call.memory), MCS_OK);
    end(&w);
}

/* As a tensor in a segment of a framework: the driver maps no part of an allocation. */
Test(cuda_import, a_part_in_the_midst_of_an_allocation_is_reached)
{
    struct mct_cuda_part part = {.size = 1000, .offset = 5 * MIB + 8, .whole = 20 * MIB};
    struct mct_cuda_call call;
    struct world w;
    uint8_t byte = 0x99;

    begin(&w);
    part.fd = vmm(&w, 0, 20 * MIB, 0xb1);
    cr_assert_eq(import(&w, 0, &part, 1, &call), MCS_OK, "%s", call.text);
    cr_assert_eq(call.address % MIB, 8);
    expect(&w, 0, call.address, 1000, 0xb1);
    rig_write(&w.p, 0, call.address + 999, &byte, 1);
    expect(&w, 0, call.address + 999, 1, 0x99);
    close(part.fd);
    cr_assert_eq(rig_free(&w.r, call.memory), MCS_OK);
    end(&w);
}

Test(cuda_import, parts_that_cannot_be_are_refused_and_leave_nothing)
{
    struct mct_cuda_part parts[2], good[2];
    struct mct_cuda_call call;
    struct world w;
    int fd[2], memfd = memfd_create("no handle", 0);

    begin(&w);
    for (unsigned i = 0; i < 2; i++)
        fd[i] = vmm(&w, 0, 2 * MIB, 5);
    for (unsigned i = 0; i < 2; i++)
        good[i] = (struct mct_cuda_part){.fd = fd[i], .size = 2 * MIB, .whole = 2 * MIB};
    cr_assert_eq(import(&w, 0, good, 2, &call), MCS_OK, "%s", call.text);
    cr_assert_eq(rig_free(&w.r, call.memory), MCS_OK);
    for (unsigned i = 0; i < 16; i++) {
        memcpy(parts, good, sizeof(parts));
        switch (i) {
        case 0:
            parts[0].size = MIB; /* the second would not lie behind it */
            break;
        case 1:
            parts[1].offset = 1; /* nor here */
            break;
        case 2:
            parts[0].size = 0;
            break;
        case 3:
            parts[1].size = 0;
            break;
        case 4:
            parts[0].offset = UINT64_MAX - MIB;
            break;
        case 5:
            parts[1].size = UINT64_MAX;
            break;
        case 6:
            parts[1].size = UINT64_C(1) << 63;
            break;
        case 7:
            parts[0].size = UINT64_MAX / (2 * MIB) * (2 * MIB);
            break;
        case 8:
            parts[1].fd = -1;
            break;
        case 9:
            parts[1].size = 2 * MIB + 1; /* more than its allocation has */
            break;
        case 10:
            parts[1].whole = 3 * MIB; /* not what allocations are multiples of */
            break;
        case 11:
            parts[1].whole = 4 * MIB; /* more than there is */
            break;
        case 12:
            parts[0].size = parts[0].whole = 4 * MIB;
            break;
        case 13:
            parts[1].fd = memfd;
            break;
        case 14:
            parts[1].fd = w.r.control_fd;
            break;
        default:
            parts[1].fd = 1000000; /* closed */
            break;
        }
        cr_assert_neq(import(&w, 0, parts, 2, &call), MCS_OK, "case %u", i);
        cr_assert_null(call.memory);
        cr_expect_neq(call.text[0], '\0');
        cr_expect(call.status == (i < 11 ? MCS_INVALID_ARGUMENT : MCS_BAD_SHM), "case %u: %d, %s",
                  i, (int)call.status, call.text);
    }
    cr_assert_neq(import(&w, 1, good, 2, &call), MCS_OK, "memory of another device was taken");
    cr_assert_eq(call.status, MCS_BAD_SHM);
    for (unsigned i = 0; i < 2; i++)
        close(fd[i]);
    close(memfd);
    end(&w);
}

Test(cuda_import, whichever_call_of_the_driver_fails_nothing_is_left_behind)
{
    static const char *const names[] = {
        "cuMemImportFromShareableHandle",
        "cuMemGetAllocationPropertiesFromHandle",
        "cuMemAddressReserve",
        "cuMemMap",
        "cuMemSetAccess",
        "cuIpcOpenMemHandle_v2",
        "cuMemGetAddressRange_v2",
        "cuPointerGetAttribute",
    };
    struct mct_cuda_part parts[2], one;
    struct mct_cuda_call call;
    struct other_answer a;
    struct world w;
    struct rig now;

    begin(&w);
    a = allocate(&w, 0, 2 * MIB, 1);
    one = ipc(&a, 0, 2 * MIB);
    for (unsigned i = 0; i < 2; i++)
        parts[i] =
            (struct mct_cuda_part){.fd = vmm(&w, 0, 2 * MIB, 5), .size = 2 * MIB, .whole = 2 * MIB};
    /* the device is in use from here on */
    cr_assert_eq(import(&w, 0, &one, 1, &call), MCS_OK);
    cr_assert_eq(rig_free(&w.r, call.memory), MCS_OK);
    for (unsigned i = 0; i < FAKE_OBJECTS; i++)
        now.before[i] = rig_count(i);
    for (unsigned i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        uint64_t acted = 1, n = 0;

        for (n = 1; acted != 0; n++) {
            fake_cuda_arm(fake, 0, names[i], FAKE_FAIL, CUDA_ERROR_UNKNOWN, n, 1);
            if (import(&w, 0, parts, 2, &call) == MCS_OK)
                cr_assert_eq(rig_free(&w.r, call.memory), MCS_OK);
            if (import(&w, 0, &one, 1, &call) == MCS_OK)
                cr_assert_eq(rig_free(&w.r, call.memory), MCS_OK);
            acted = mcs_load_relaxed(&fake->rules[0].acted);
            fake_cuda_disarm(fake);
            rig_same(&now, names[i]);
        }
        cr_expect_gt(n, 2, "%s was never called", names[i]);
    }
    for (unsigned i = 0; i < 2; i++)
        close(parts[i].fd);
    end(&w);
}
