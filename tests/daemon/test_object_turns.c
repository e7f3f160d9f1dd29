/* SPDX-License-Identifier: Apache-2.0 */
/* Requests about objects among other tasks: turns, order, deadlines, what they wait for. */
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include "daemon/fault.h"
#include "objects.h"

/* A PUT of `size` bytes under way in an engine whose slices are small. */
static struct mcs_desc put_begun(struct ob *o, uint64_t size)
{
    struct mcs_desc d;

    ob_begin(o, MCS_OP_PUT, 0);
    ob_name(o, "large");
    ob_piece(o, 0, size);
    ob_write(o);
    d = ob_desc(o);
    fix_push(&o->f, &d);
    while (ob_stats(o).writing == 0)
        ob_turns(o, 1);
    cr_assert(!ob_ended(o, &d));
    return d;
}

Test(object_turns, a_large_put_lets_others_pass)
{
    static struct ob o;
    struct mcs_desc large, small;

    ob_init_sized(&o, 8u << 20, 2u << 20, 4096, 10);
    ob_paint(o.f.local.map, FIX_EXTENT_SIZE, 4);
    large = put_begun(&o, FIX_EXTENT_SIZE);
    small = fix_desc(&o.f, MCS_OP_WRITE, 64);
    small.slot = small.batch = 1;
    small.priority = MCS_CLASS_HIGH;
    fix_push(&o.f, &small);
    cr_assert_eq(fix_state(fix_end(&o.f, &small)), MCS_STATE_COMPLETED);
    cr_assert(!ob_ended(&o, &large));
    ob_turns(&o, 1);
    cr_assert_eq(mcs_slot_peek(&o.f.client, large.slot) & 0x7f, MCS_STATE_PENDING);
    cr_assert_eq(fix_state(ob_end(&o, &large)), MCS_STATE_COMPLETED);
    cr_assert_eq(ob_result(&o, 0).crc, mct_crc32c(0, o.f.local.map, FIX_EXTENT_SIZE));
    memset(o.f.local.map, 0, FIX_EXTENT_SIZE);
    cr_assert_eq(ob_get(&o, "large", 0, FIX_EXTENT_SIZE, 0).status, MCS_OK);
    cr_assert_eq(ob_result(&o, 0).crc, mct_crc32c(0, o.f.local.map, FIX_EXTENT_SIZE));
    ob_fini(&o);
}

Test(object_turns, a_canceled_put_leaves_nothing)
{
    static struct ob o;
    struct mcs_desc d, cancel = {.op = MCS_OP_CANCEL};

    ob_init_sized(&o, 8u << 20, 2u << 20, 4096, 10);
    d = put_begun(&o, FIX_EXTENT_SIZE);
    cancel.slot = d.slot;
    cancel.generation = d.generation;
    fix_push(&o.f, &cancel);
    cr_assert_eq(fix_state(ob_end(&o, &d)), MCS_STATE_CANCELED);
    cr_assert(ob_stats(&o).writing == 0 && ob_stats(&o).objects == 0);
    cr_assert(!ob_exists(&o, "large"));
    cr_assert_eq(ob_put(&o, "large", 0, 10, 0).status, MCS_OK);
    ob_fini(&o);
}

Test(object_turns, a_canceled_get_pins_nothing)
{
    static struct ob o;
    struct mcs_desc d, cancel = {.op = MCS_OP_CANCEL};

    ob_init_sized(&o, 8u << 20, 2u << 20, 4096, 10);
    ob_put(&o, "large", 0, FIX_EXTENT_SIZE, 0);
    ob_begin(&o, MCS_OP_GET, 0);
    ob_name(&o, "large");
    ob_piece(&o, 0, FIX_EXTENT_SIZE);
    ob_write(&o);
    d = ob_desc(&o);
    fix_push(&o.f, &d);
    while (ob_stats(&o).pinned == 0)
        ob_turns(&o, 1);
    cancel.slot = d.slot;
    cancel.generation = d.generation;
    fix_push(&o.f, &cancel);
    cr_assert_eq(fix_state(ob_end(&o, &d)), MCS_STATE_CANCELED);
    cr_assert_eq(ob_stats(&o).pinned, 0u);
    ob_fini(&o);
}

Test(object_turns, the_queue_goes_in_the_middle)
{
    static struct ob o;

    ob_init_sized(&o, 8u << 20, 2u << 20, 4096, 10);
    put_begun(&o, FIX_EXTENT_SIZE);
    {
        struct mcd_holds *holds = o.f.session->holds;

        fix_fini(&o.f);
        o.f.engine = NULL;
        mcd_holds_destroy(holds, o.st.objects);
    }
    cr_assert(ob_stats(&o).writing == 0 && ob_stats(&o).objects == 0);
    mco_destroy(o.st.objects);
    free(o.extents[0].map);
}

Test(object_turns, a_seal_that_is_canceled_may_be_tried_again)
{
    static struct ob o;
    struct mcs_object_result c;
    struct mcs_desc d, cancel = {.op = MCS_OP_CANCEL};

    ob_init_sized(&o, 8u << 20, 2u << 20, 4096, 10);
    c = ob_create(&o, "k", FIX_EXTENT_SIZE);
    ob_begin(&o, MCS_OP_SEAL, 0);
    o.keys[o.args.count++] = (struct mcs_object_key){.size = c.hold};
    ob_write(&o);
    d = ob_desc(&o);
    cancel.slot = d.slot;
    cancel.generation = d.generation;
    fix_push(&o.f, &d);
    ob_turns(&o, 2);
    cr_assert(!ob_ended(&o, &d));
    fix_push(&o.f, &cancel);
    cr_assert_eq(fix_state(ob_end(&o, &d)), MCS_STATE_CANCELED);
    cr_assert(!ob_exists(&o, "k"));
    cr_assert_eq(ob_seal(&o, c.hold).status, MCS_OK);
    ob_fini(&o);
}

/* Who never sees the results gets no holds by them. */
Test(object_turns, holds_of_a_canceled_request_are_taken_back)
{
    static struct ob o;
    struct mcs_desc d, cancel = {.op = MCS_OP_CANCEL};
    uint64_t n, creations, bytes;

    for (unsigned op = MCS_OP_CREATE; op <= MCS_OP_HOLD; op += MCS_OP_HOLD - MCS_OP_CREATE) {
        ob_init_sized(&o, 8u << 20, 2u << 20, 4096, 1000);
        ob_put(&o, "k", 0, 100, 0);
        ob_begin(&o, (uint8_t)op, 0);
        for (unsigned i = 0; i < 300; i++) {
            char key[16];

            snprintf(key, sizeof(key), op == MCS_OP_HOLD ? "k" : "c-%u", i);
            ob_name(&o, key)->size = 100;
        }
        ob_write(&o);
        d = ob_desc(&o);
        fix_push(&o.f, &d);
        do {
            ob_turns(&o, 1);
            mcd_holds_count(o.f.session->holds, &n, &creations, &bytes);
        } while (n < 100);
        cr_assert(!ob_ended(&o, &d));
        cancel.slot = d.slot;
        cancel.generation = d.generation;
        fix_push(&o.f, &cancel);
        cr_assert_eq(fix_state(ob_end(&o, &d)), MCS_STATE_CANCELED);
        mcd_holds_count(o.f.session->holds, &n, &creations, &bytes);
        cr_assert(n == 0 && creations == 0 && bytes == 0);
        cr_assert(ob_stats(&o).writing == 0 && ob_stats(&o).pinned == 0);
        ob_fini(&o);
    }
}

/* A client that takes the memory away which it has named. */
Test(object_turns, memory_that_was_taken_away)
{
    static struct ob o;
    struct mcs_object_result r;
    uint8_t *map, *old;
    int fd = memfd_create("holes", MFD_CLOEXEC), guard;

    ob_init(&o);
    r = ob_put(&o, "there", 0, 100000, 0);
    cr_assert_eq(r.status, MCS_OK);
    cr_assert(fd >= 0 && ftruncate(fd, FIX_EXTENT_SIZE) == 0);
    map = mmap(NULL, FIX_EXTENT_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    cr_assert_neq(map, MAP_FAILED);
    cr_assert_eq(ftruncate(fd, 65536), 0);
    cr_assert_eq(mcd_fault_init(-1), 0);
    guard = mcd_fault_add(map, FIX_EXTENT_SIZE);
    cr_assert_geq(guard, 0);
    old = o.f.local.map;
    o.f.local.map = map;
    for (unsigned get = 0; get < 2; get++) {
        struct mcs_slot s;

        ob_begin(&o, get ? MCS_OP_GET : MCS_OP_PUT, 0);
        ob_name(&o, get ? "there" : "k");
        ob_piece(&o, get ? 500000 : 0, 100000);
        s = ob_run(&o);
        cr_assert_eq(fix_state(s), MCS_STATE_FAILED);
        cr_assert_eq(fix_error(s), MCS_MEMORY_FAULT);
    }
    cr_assert(ob_stats(&o).objects == 1 && ob_stats(&o).writing == 0 && ob_stats(&o).pinned == 0);
    cr_assert_gt(o.f.engine->counters.faults, 1u);
    o.f.local.map = old;
    mcd_fault_remove(guard);
    munmap(map, FIX_EXTENT_SIZE);
    close(fd);
    ob_fini(&o);
}

/* No extent is made for it: the PUT waits, and is asked for nothing meanwhile. */
static struct mcs_desc put_waiting(struct ob *o, uint32_t deadline_us)
{
    struct mcs_desc d;

    o->closed = true;
    ob_begin(o, MCS_OP_PUT, 0);
    o->deadline = deadline_us;
    ob_name(o, "k");
    ob_piece(o, 0, 4096);
    ob_write(o);
    d = ob_desc(o);
    fix_push(&o->f, &d);
    for (int i = 0; i < 1000 && o->f.queue.waits == 0; i++)
        ob_turns(o, 1);
    cr_assert_eq(o->f.queue.waits, 1u);
    cr_assert_eq(o->f.queue.parked, 0u);
    return d;
}

Test(object_turns, space_is_awaited)
{
    static struct ob o;
    struct mcs_desc d;
    uint64_t waits;

    ob_init(&o);
    d = put_waiting(&o, 0);
    waits = o.f.engine->counters.objects.space_waits;
    ob_turns(&o, 200);
    cr_assert_eq(o.f.engine->counters.objects.space_waits, waits, "nobody tries meanwhile");
    o.closed = false;
    cr_assert_eq(fix_state(ob_end(&o, &d)), MCS_STATE_COMPLETED);
    cr_assert_eq(ob_result(&o, 0).status, MCS_OK);
    ob_fini(&o);
}

Test(object_turns, what_waits_has_its_deadline)
{
    static struct ob o;
    struct mcs_desc d;

    ob_init(&o);
    d = put_waiting(&o, 20000);
    cr_assert_eq(fix_state(ob_end(&o, &d)), MCS_STATE_TIMEOUT);
    cr_assert_eq(o.f.queue.waits, 0u);
    ob_fini(&o);
}

Test(object_turns, what_waits_can_be_canceled)
{
    static struct ob o;
    struct mcs_desc d, cancel = {.op = MCS_OP_CANCEL};

    ob_init(&o);
    d = put_waiting(&o, 0);
    cancel.slot = d.slot;
    cancel.generation = d.generation;
    fix_push(&o.f, &cancel);
    cr_assert_eq(fix_state(ob_end(&o, &d)), MCS_STATE_CANCELED);
    o.closed = false;
    cr_assert_eq(ob_put(&o, "k", 0, 10, 0).status, MCS_OK);
    ob_fini(&o);
}

Test(object_turns, a_fence_waits_for_what_waits)
{
    static struct ob o;
    struct mcs_desc d, fenced;

    ob_init(&o);
    d = put_waiting(&o, 0);
    fenced = fix_desc(&o.f, MCS_OP_WRITE, 64);
    fenced.slot = fenced.batch = 1;
    fenced.flags = MCS_DESC_FENCE;
    fix_push(&o.f, &fenced);
    ob_turns(&o, 100);
    cr_assert(!ob_ended(&o, &fenced));
    o.closed = false;
    cr_assert_eq(fix_state(ob_end(&o, &d)), MCS_STATE_COMPLETED);
    cr_assert_eq(fix_state(ob_end(&o, &fenced)), MCS_STATE_COMPLETED);
    ob_fini(&o);
}

Test(object_turns, a_fenced_get_sees_the_put_before_it)
{
    static struct ob o;
    struct mcs_desc put, get;
    struct mcs_object_args *a;

    ob_init_sized(&o, 8u << 20, 2u << 20, 4096, 10);
    ob_paint(o.f.local.map, 65536, 4);
    ob_begin(&o, MCS_OP_PUT, 0);
    ob_name(&o, "k");
    ob_piece(&o, 0, 65536);
    ob_write(&o);
    put = ob_desc(&o);
    /* the other block lies behind it */
    a = (struct mcs_object_args *)(o.f.client.args + 8192);
    memcpy(a, o.f.client.args, o.args.total);
    ((struct mcs_object_piece *)((uint8_t *)a + a->pieces))->local = 1 << 18;
    get = ob_desc(&o);
    get.op = MCS_OP_GET;
    get.args = 8192 / MCS_LINE;
    get.slot = get.batch = 1;
    get.flags = MCS_DESC_FENCE;
    fix_push(&o.f, &put);
    fix_push(&o.f, &get);
    cr_assert_eq(fix_state(ob_end(&o, &put)), MCS_STATE_COMPLETED);
    cr_assert_eq(fix_state(ob_end(&o, &get)), MCS_STATE_COMPLETED);
    cr_assert_arr_eq(o.f.local.map + (1 << 18), o.f.local.map, 65536);
    ob_fini(&o);
}

Test(object_turns, full_of_what_is_pinned)
{
    static struct ob o;
    struct mcs_object_result r;
    char key[16];
    unsigned n = 0;

    ob_init_sized(&o, 1u << 20, 1u << 20, 64 << 10, 10);
    do {
        snprintf(key, sizeof(key), "pinned-%u", n++);
        r = ob_put(&o, key, 0, 100 << 10, MCS_OBJECT_HARD_PIN);
    } while (r.status == MCS_OK && n < 20);
    cr_assert_eq(r.status, MCS_NO_SPACE);
    cr_assert_gt(n, 8u);
    /* all that are there are whole, and one more goes in when one goes */
    cr_assert_eq(ob_remove(&o, "pinned-0", MCS_OBJECT_FORCE), MCS_OK);
    cr_assert_eq(ob_put(&o, "more", 0, 100 << 10, 0).status, MCS_OK);
    ob_fini(&o);
}

static void *engine_thread(void *arg)
{
    mcd_engine_run(arg);
    return NULL;
}

/* The engine sleeps while all that it has waits for the store. */
Test(object_turns, a_sleeping_engine_is_woken, .timeout = 60)
{
    static struct ob o;
    struct mcs_desc d;
    pthread_t thread;

    ob_init(&o);
    d = put_waiting(&o, 0);
    cr_assert_eq(pthread_create(&thread, NULL, engine_thread, o.f.engine), 0);
    /* partner: sleep_until_rung() */
    while (mcs_load_acquire(&o.f.engine->asleep) == 0)
        mcs_pause();
    o.closed = false;
    ob_serve(&o);
    while (!ob_ended(&o, &d))
        mcs_pause();
    mcd_engine_stop(o.f.engine);
    pthread_join(thread, NULL);
    cr_assert_eq(ob_result(&o, 0).status, MCS_OK);
    ob_fini(&o);
}

/* ---- the same key at the same time ------------------------------------------------------------- */

/* A PUT of "large" while one is under way; its block lies behind the first one's. */
static struct mcs_desc put_again(struct ob *o, uint32_t flags)
{
    struct mcs_desc d;

    ob_begin(o, MCS_OP_PUT, flags);
    ob_name(o, "large");
    ob_piece(o, 0, 5000);
    o->f.client.args += 8192;
    ob_write(o);
    o->f.client.args -= 8192;
    d = ob_desc(o);
    d.args = 8192 / MCS_LINE;
    d.slot = d.batch = 1;
    d.priority = MCS_CLASS_HIGH; /* so that it has its turn */
    fix_push(&o->f, &d);
    for (int i = 0; i < 10; i++)
        ob_turns(o, 1);
    cr_assert(!ob_ended(o, &d));
    return d;
}

static struct mcs_object_result result_of_again(struct ob *o, const struct mcs_desc *d)
{
    struct mcs_object_result r;

    cr_assert_eq(fix_state(ob_end(o, d)), MCS_STATE_COMPLETED);
    memcpy(&r, o->f.client.args + 8192 + o->args.results, sizeof(r));
    return r;
}

/* Put over an object that is just being put: it is there, or becomes that. */
Test(object_turns, who_comes_second_waits_for_the_first)
{
    static const uint32_t flags[] = {0, MCS_OBJECT_NEW, MCS_OBJECT_UPSERT};
    static struct ob o;

    for (unsigned i = 0; i < 3; i++) {
        struct mcs_object_result r;
        struct mcs_desc first, second;

        ob_init_sized(&o, 8u << 20, 2u << 20, 4096, 10);
        first = put_begun(&o, FIX_EXTENT_SIZE);
        second = put_again(&o, flags[i]);
        cr_assert_eq(o.f.queue.waits, 1u, "and costs nothing meanwhile");
        cr_assert_eq(fix_state(ob_end(&o, &first)), MCS_STATE_COMPLETED);
        r = result_of_again(&o, &second);
        cr_assert_eq(r.status, i == 1 ? MCS_EXISTS : MCS_OK);
        cr_assert_eq(r.size, i == 2 ? 5000u : FIX_EXTENT_SIZE);
        cr_assert(ob_stats(&o).objects == 1 && ob_stats(&o).writing == 0);
        ob_fini(&o);
    }
}

Test(object_turns, who_comes_second_writes_what_the_first_has_given_up)
{
    static struct ob o;
    struct mcs_object_result r;
    struct mcs_desc first, second, cancel = {.op = MCS_OP_CANCEL};

    ob_init_sized(&o, 8u << 20, 2u << 20, 4096, 10);
    first = put_begun(&o, FIX_EXTENT_SIZE);
    second = put_again(&o, MCS_OBJECT_NEW);
    cancel.slot = first.slot;
    cancel.generation = first.generation;
    fix_push(&o.f, &cancel);
    cr_assert_eq(fix_state(ob_end(&o, &first)), MCS_STATE_CANCELED);
    r = result_of_again(&o, &second);
    cr_assert(r.status == MCS_OK && r.size == 5000);
    ob_fini(&o);
}

/* Two requests, each with the keys of the other, in the other order. */
Test(object_turns, keys_crosswise)
{
    static struct ob o;
    struct mcs_desc d[2];
    uint32_t results[2];

    ob_init_sized(&o, 8u << 20, 2u << 20, 4096, 10);
    for (unsigned i = 0; i < 2; i++) {
        ob_begin(&o, MCS_OP_PUT, MCS_OBJECT_UPSERT);
        for (unsigned k = 0; k < 8; k++) {
            ob_name(&o, (k % 2 == 0) == (i == 0) ? "one" : "two");
            ob_piece(&o, 0, 100000);
        }
        o.f.client.args += i * 8192;
        ob_write(&o);
        o.f.client.args -= i * 8192;
        results[i] = o.args.results + i * 8192;
        d[i] = ob_desc(&o);
        d[i].args = i * 8192 / MCS_LINE;
        d[i].slot = d[i].batch = i;
    }
    fix_push(&o.f, &d[0]);
    fix_push(&o.f, &d[1]);
    for (unsigned i = 0; i < 2; i++)
        cr_assert_eq(fix_state(ob_end(&o, &d[i])), MCS_STATE_COMPLETED);
    for (unsigned i = 0; i < 2; i++)
        for (unsigned k = 0; k < 8; k++) {
            struct mcs_object_result r;

            memcpy(&r, o.f.client.args + results[i] + k * sizeof(r), sizeof(r));
            cr_assert_eq(r.status, MCS_OK);
        }
    cr_assert(ob_stats(&o).objects == 2 && ob_stats(&o).writing == 0);
    ob_fini(&o);
}

/* Many holds of a request that ends otherwise are not all taken back at once, while others wait. */
Test(object_turns, holds_are_taken_back_some_a_turn)
{
    static struct ob o;
    struct mcs_desc d;
    uint64_t n, before, creations, bytes;

    ob_init_sized(&o, 8u << 20, 2u << 20, 4096, 1000);
    ob_put(&o, "k", 0, 100, 0);
    ob_begin(&o, MCS_OP_HOLD, 0);
    for (unsigned i = 0; i < 700; i++)
        ob_name(&o, "k");
    ob_write(&o);
    d = ob_desc(&o);
    fix_push(&o.f, &d);
    do {
        ob_turns(&o, 1);
        mcd_holds_count(o.f.session->holds, &n, &creations, &bytes);
    } while (n < 600);
    cr_assert(!ob_ended(&o, &d));
    before = n;
    mcd_task_cancel(o.f.engine, &o.f.queue, d.slot);
    mcd_holds_count(o.f.session->holds, &n, &creations, &bytes);
    cr_assert(n > before / 2 && n < before && !ob_ended(&o, &d), "%llu holds",
              (unsigned long long)n);
    cr_assert_eq(fix_state(ob_end(&o, &d)), MCS_STATE_CANCELED);
    mcd_holds_count(o.f.session->holds, &n, &creations, &bytes);
    cr_assert_eq(n, 0u);
    ob_fini(&o);
}
