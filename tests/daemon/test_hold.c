/* SPDX-License-Identifier: Apache-2.0 */
/* Pins of a session against a model of them, whatever it does. */
#include "objects.h"

#define OBJECTS 8u
#define MOST 40u
#define STEPS 6000u

struct model {
    struct {
        uint64_t hold;
        unsigned object;
        bool creation;
        unsigned life; /* of the key, when it was held */
    } held[MOST];
    unsigned n;
    bool there[OBJECTS], created[OBJECTS];
};

static uint64_t state = 88;

static unsigned roll(unsigned below)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (unsigned)(state >> 33) % below;
}

static const char *name(unsigned object)
{
    static char text[16];

    snprintf(text, sizeof(text), "object-%u", object);
    return text;
}

static unsigned creations(const struct model *m)
{
    unsigned n = 0;

    for (unsigned i = 0; i < m->n; i++)
        n += m->held[i].creation;
    return n;
}

static bool is_held(const struct model *m, unsigned object)
{
    for (unsigned i = 0; i < m->n; i++)
        if (m->held[i].object == object && !m->held[i].creation)
            return true;
    return false;
}

static void check(struct ob *o, const struct model *m)
{
    struct mco_stats s = ob_stats(o);
    uint64_t n, c, bytes;

    mcd_holds_count(o->f.session->holds, &n, &c, &bytes);
    cr_assert_eq(n, m->n);
    cr_assert_eq(c, creations(m));
    cr_assert_eq(s.in_place, m->n, "%llu in place, %u held", (unsigned long long)s.in_place, m->n);
    cr_assert_eq(s.writing, creations(m));
    for (unsigned i = 0; i < OBJECTS; i++)
        cr_assert_eq(ob_exists(o, name(i)), m->there[i], "object %u", i);
}

static void forget(struct model *m, unsigned i)
{
    if (m->held[i].creation)
        m->created[m->held[i].object] = false;
    m->held[i] = m->held[--m->n];
}

static void hold(struct ob *o, struct model *m, unsigned object)
{
    struct mcs_object_result r = ob_hold(o, name(object));

    if (!m->there[object]) {
        cr_assert_eq(r.status, MCS_NOT_FOUND);
    } else if (m->n == MOST) {
        cr_assert_eq(r.status, MCS_LIMIT);
    } else {
        cr_assert_eq(r.status, MCS_OK);
        m->held[m->n].hold = r.hold;
        m->held[m->n].creation = false;
        m->held[m->n++].object = object;
    }
}

static void create(struct ob *o, struct model *m, unsigned object)
{
    struct mcs_object_result r = ob_create(o, name(object), 1000);

    if (m->there[object]) {
        cr_assert_eq(r.status, MCS_EXISTS);
    } else if (m->created[object]) {
        cr_assert_eq(r.status, MCS_IN_USE);
    } else if (m->n == MOST) {
        cr_assert_eq(r.status, MCS_LIMIT);
    } else {
        cr_assert_eq(r.status, MCS_OK);
        m->held[m->n].hold = r.hold;
        m->held[m->n].creation = true;
        m->held[m->n++].object = object;
        m->created[object] = true;
    }
}

static void seal(struct ob *o, struct model *m, unsigned i)
{
    enum mcs_status want = m->held[i].creation ? MCS_OK : MCS_NOT_OWNER;

    cr_assert_eq(ob_seal(o, m->held[i].hold).status, want);
    if (want != MCS_OK)
        return;
    m->there[m->held[i].object] = true;
    forget(m, i);
}

static void put(struct ob *o, struct model *m, unsigned object, bool upsert)
{
    struct mcs_object_result r = ob_put(o, name(object), 0, 500, upsert ? MCS_OBJECT_UPSERT : 0);

    cr_assert_eq(r.status, m->created[object] ? MCS_IN_USE : MCS_OK);
    if (r.status == MCS_OK)
        m->there[object] = true;
}

static void removed(struct ob *o, struct model *m, unsigned object, bool force)
{
    unsigned status = ob_remove(o, name(object), force ? MCS_OBJECT_FORCE : 0);

    if (!m->there[object])
        cr_assert(status == MCS_NOT_FOUND || (m->created[object] && status == MCS_IN_USE));
    else if (!force && is_held(m, object))
        /* unless it is an earlier life of the key that is held */
        cr_assert(status == MCS_IN_USE || status == MCS_OK);
    else
        cr_assert_eq(status, MCS_OK);
    if (status == MCS_OK)
        m->there[object] = false;
}

/* A request that is canceled when some of its keys have their holds. */
static void canceled(struct ob *o, unsigned op)
{
    struct mcs_desc d, cancel = {.op = MCS_OP_CANCEL};

    ob_begin(o, (uint8_t)op, 0);
    for (unsigned i = 0; i < 300; i++)
        ob_name(o, name(roll(OBJECTS)))->size = 10;
    ob_write(o);
    d = ob_desc(o);
    d.priority = MCS_CLASS_BACKGROUND;
    fix_push(&o->f, &d);
    ob_turns(o, 1 + roll(3));
    cancel.slot = d.slot;
    cancel.generation = d.generation;
    fix_push(&o->f, &cancel);
    ob_end(o, &d);
}

static void step(struct ob *o, struct model *m)
{
    unsigned object = roll(OBJECTS), i = m->n == 0 ? 0 : roll(m->n);

    switch (roll(9)) {
    case 0:
    case 1:
        hold(o, m, object);
        break;
    case 2:
        create(o, m, object);
        break;
    case 3:
        put(o, m, object, roll(2) != 0);
        break;
    case 4:
        removed(o, m, object, roll(2) != 0);
        break;
    case 5:
        if (m->n != 0)
            seal(o, m, i);
        break;
    case 6:
        if (m->n != 0) {
            ob_release(o, &m->held[i].hold, 1);
            forget(m, i);
        }
        break;
    case 7:
        ob_get(o, name(object), 0, 2000, 0);
        break;
    default:
        if (roll(4) == 0 && m->n == MOST)
            canceled(o, MCS_OP_HOLD); /* none of it is to be had: all LIMIT */
        break;
    }
}

Test(hold, as_a_model_has_it, .timeout = 120)
{
    static struct ob o;
    static struct model m;
    struct mcs_slot s;

    ob_init_sized(&o, 8u << 20, 1u << 20, 4096, MOST);
    for (unsigned i = 0; i < STEPS; i++) {
        step(&o, &m);
        if (i % 16 == 0)
            check(&o, &m);
        if (i % 1000 == 999) { /* the client dies; another one comes */
            mcd_holds_destroy(o.f.session->holds, o.st.objects);
            cr_assert_eq(mcd_holds_create(MOST, &o.f.session->holds), 0);
            m.n = 0;
            memset(m.created, 0, sizeof(m.created));
            check(&o, &m);
        }
    }
    while (m.n != 0) {
        ob_release(&o, &m.held[0].hold, 1);
        forget(&m, 0);
    }
    check(&o, &m);
    cr_assert(ob_stats(&o).pinned == 0 && ob_stats(&o).leaving == 0);
    /* and all of it can go */
    ob_begin(&o, MCS_OP_REMOVE, 0);
    for (unsigned i = 0; i < OBJECTS; i++)
        ob_name(&o, name(i));
    s = ob_run(&o);
    cr_assert_eq(fix_state(s), MCS_STATE_COMPLETED);
    cr_assert_eq(ob_stats(&o).objects, 0u);
    ob_fini(&o);
}
