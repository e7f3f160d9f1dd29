/* SPDX-License-Identifier: Apache-2.0 */
/* Thompson's construction: text -> tree -> states; all states that can be are followed at once. */
#include "match.h"

#include <ctype.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STATES_MAX 8192u
#define DEPTH_MAX 100u
#define WORK_MAX 65536u /* nodes gone through, over and over where they are repeated */
#define REPEAT_MAX 255  /* as POSIX's RE_DUP_MAX at least is */
#define NONE UINT32_MAX

enum node_kind { EMPTY, SET, BEGIN, END, SEQUENCE, EITHER, REPEAT };

struct node {
    enum node_kind kind;
    uint32_t left, right; /* nodes */
    uint32_t set;
    int least, most; /* -1: no end */
};

enum state_kind { STATE_SET, STATE_SPLIT, STATE_BEGIN, STATE_END, STATE_MATCH };

struct state {
    enum state_kind kind;
    uint32_t set;
    uint32_t next, other; /* states */
};

struct set {
    uint8_t bits[32];
};

struct mco_match {
    struct state *states;
    uint32_t nstates, start;
    struct set *sets;
    uint32_t nsets;
    uint32_t *lists;              /* memory of these: */
    uint32_t *now, *then, *stack; /* states */
    uint32_t *seen;               /* by state: the step in which it was entered */
    uint32_t step;
};

struct parser {
    const unsigned char *at, *end;
    struct node *nodes;
    uint32_t nnodes, room;
    struct mco_match *m;
    unsigned depth, work;
    const char *why;
    int res;
};

static void set_add(struct set *s, unsigned c)
{
    s->bits[c / 8] |= (uint8_t)(1u << c % 8);
}

static bool set_has(const struct set *s, unsigned c)
{
    return (s->bits[c / 8] >> c % 8 & 1) != 0;
}

static uint32_t fail(struct parser *p, int res, const char *why)
{
    if (p->res == 0) {
        p->res = res;
        p->why = why;
    }
    return NONE;
}

static uint32_t node_new(struct parser *p, enum node_kind kind, uint32_t left, uint32_t right)
{
    if (p->res != 0)
        return NONE;
    if (p->nnodes == p->room) {
        uint32_t room = p->room * 2 + 64;
        struct node *more = realloc(p->nodes, room * sizeof(*more));

        if (more == NULL)
            return fail(p, -ENOMEM, "out of memory");
        p->nodes = more;
        p->room = room;
    }
    p->nodes[p->nnodes] = (struct node){.kind = kind, .left = left, .right = right};
    return p->nnodes++;
}

/* A node that takes one byte of a set, which is empty yet. */
static uint32_t set_new(struct parser *p, struct set **out)
{
    struct mco_match *m = p->m;
    uint32_t n = node_new(p, SET, NONE, NONE);
    struct set *more = n == NONE ? NULL : realloc(m->sets, (m->nsets + 1) * sizeof(*more));

    if (more == NULL)
        return fail(p, -ENOMEM, "out of memory");
    m->sets = more;
    m->sets[m->nsets] = (struct set){.bits = {0}};
    *out = &m->sets[m->nsets];
    p->nodes[n].set = m->nsets++;
    return n;
}

/* ---- parsing --------------------------------------------------------------------------------- */

static bool add_class(struct set *s, const unsigned char *name, size_t n)
{
    static const struct {
        const char *name;
        int (*is)(int);
    } classes[] = {{"alnum", isalnum}, {"alpha", isalpha}, {"blank", isblank},
                   {"cntrl", iscntrl}, {"digit", isdigit}, {"graph", isgraph},
                   {"lower", islower}, {"print", isprint}, {"punct", ispunct},
                   {"space", isspace}, {"upper", isupper}, {"xdigit", isxdigit}};

    for (size_t i = 0; i < sizeof(classes) / sizeof(classes[0]); i++) {
        if (strlen(classes[i].name) != n || memcmp(classes[i].name, name, n) != 0)
            continue;
        for (int c = 0; c < 128; c++)
            if (classes[i].is(c))
                set_add(s, (unsigned)c);
        return true;
    }
    return false;
}

/* In a bracket, at "[:", "[." or "[=". -1: a class, taken; -2: an error; else the one byte that it stands for. */
static int bracket_special(struct parser *p, struct set *s)
{
    unsigned char kind = p->at[1];
    const unsigned char *name = p->at + 2, *q = name;

    while (q + 1 < p->end && !(q[0] == kind && q[1] == ']'))
        q++;
    if (q + 1 >= p->end) {
        fail(p, -EINVAL, "a [: :], [. .] or [= =] has no end");
        return -2;
    }
    p->at = q + 2;
    if (kind != ':' && q - name == 1)
        return name[0];
    if (kind != ':' || !add_class(s, name, (size_t)(q - name))) {
        fail(p, -EINVAL, "a class of characters is not known");
        return -2;
    }
    return -1;
}

/* One end of a range, or a byte, or a class (-1). */
static int bracket_item(struct parser *p, struct set *s)
{
    if (p->end - p->at >= 2 && p->at[0] == '[' &&
        (p->at[1] == ':' || p->at[1] == '.' || p->at[1] == '='))
        return bracket_special(p, s);
    return *p->at++;
}

static uint32_t parse_bracket(struct parser *p)
{
    struct set *s = NULL;
    uint32_t n = set_new(p, &s);
    bool negate = p->at < p->end && *p->at == '^', first = true;

    if (n == NONE)
        return NONE;
    p->at += negate;
    for (;; first = false) {
        int from, to;

        if (p->at >= p->end)
            return fail(p, -EINVAL, "a [ has no ]");
        if (*p->at == ']' && !first)
            break;
        from = to = bracket_item(p, s);
        if (from == -2)
            return NONE;
        if (p->end - p->at >= 2 && p->at[0] == '-' && p->at[1] != ']') {
            p->at++;
            to = from < 0 ? -2 : bracket_item(p, s);
            if (to < 0 || to < from)
                return fail(p, -EINVAL, "a range in [ ] has its ends the wrong way round");
        }
        for (int c = from; c >= 0 && c <= to; c++)
            set_add(s, (unsigned)c);
    }
    p->at++;
    for (unsigned i = 0; negate && i < sizeof(s->bits); i++)
        s->bits[i] = (uint8_t)~s->bits[i];
    return n;
}

static uint32_t parse_either(struct parser *p);

static uint32_t parse_group(struct parser *p)
{
    uint32_t n;

    if (++p->depth > DEPTH_MAX)
        return fail(p, -E2BIG, "more than 100 ( within each other");
    n = parse_either(p);
    if (p->at >= p->end || *p->at != ')')
        return fail(p, -EINVAL, "a ( has no )");
    p->at++;
    p->depth--;
    return n;
}

static uint32_t parse_byte(struct parser *p, unsigned c)
{
    struct set *s = NULL;
    uint32_t n = set_new(p, &s);

    if (n != NONE)
        set_add(s, c);
    return n;
}

static uint32_t parse_any(struct parser *p)
{
    struct set *s = NULL;
    uint32_t n = set_new(p, &s);

    if (n != NONE)
        memset(s->bits, 0xff, sizeof(s->bits));
    return n;
}

static uint32_t parse_atom(struct parser *p)
{
    unsigned char c = *p->at++;

    switch (c) {
    case '(':
        return parse_group(p);
    case '[':
        return parse_bracket(p);
    case '.':
        return parse_any(p);
    case '^':
        return node_new(p, BEGIN, NONE, NONE);
    case '$':
        return node_new(p, END, NONE, NONE);
    case '*':
    case '+':
    case '?':
    case '{':
        return fail(p, -EINVAL, "a repetition (* + ? {) has nothing before it");
    case '\\':
        if (p->at >= p->end)
            return fail(p, -EINVAL, "a \\ is the last character");
        c = *p->at++;
        if (isalnum(c))
            return fail(p, -EINVAL,
                        "a \\ before a letter or digit: back references and the like are not "
                        "supported");
        return parse_byte(p, c);
    default:
        return parse_byte(p, c);
    }
}

static int parse_number(struct parser *p)
{
    int v = 0;

    if (p->at >= p->end || !isdigit(*p->at))
        return -1;
    while (p->at < p->end && isdigit(*p->at) && v <= REPEAT_MAX)
        v = v * 10 + (*p->at++ - '0');
    return v;
}

/* Behind an atom: {m}, {m,} or {m,n}. */
static bool parse_interval(struct parser *p, int *least, int *most)
{
    *least = parse_number(p);
    *most = *least;
    if (*least >= 0 && p->at < p->end && *p->at == ',') {
        p->at++;
        *most = p->at < p->end && *p->at == '}' ? -1 : parse_number(p);
        if (*most == -1 && (p->at >= p->end || *p->at != '}'))
            *least = -1;
    }
    if (*least < 0 || p->at >= p->end || *p->at != '}' || *least > REPEAT_MAX ||
        *most > REPEAT_MAX || (*most >= 0 && *most < *least)) {
        fail(p, -EINVAL, "a { is not followed by m}, m,} or m,n} with m <= n <= 255");
        return false;
    }
    p->at++;
    return true;
}

static uint32_t parse_repeated(struct parser *p)
{
    uint32_t n = parse_atom(p);
    enum node_kind kind = n == NONE ? EMPTY : p->nodes[n].kind;

    while (p->res == 0 && p->at < p->end && strchr("*+?{", *p->at) != NULL && *p->at != '\0') {
        int least = *p->at == '+', most = *p->at == '?' ? 1 : -1;

        if (kind == BEGIN)
            return fail(p, -EINVAL, "a repetition (* + ? {) has nothing before it");
        if (*p->at++ == '{' && !parse_interval(p, &least, &most))
            return NONE;
        n = node_new(p, REPEAT, n, NONE);
        if (n != NONE) {
            p->nodes[n].least = least;
            p->nodes[n].most = most;
        }
    }
    return n;
}

static uint32_t parse_sequence(struct parser *p)
{
    uint32_t n = node_new(p, EMPTY, NONE, NONE);

    /* a ) that closes nothing stands for itself */
    while (p->res == 0 && p->at < p->end && *p->at != '|' && (*p->at != ')' || p->depth == 0))
        n = node_new(p, SEQUENCE, n, parse_repeated(p));
    return n;
}

static uint32_t parse_either(struct parser *p)
{
    uint32_t n = parse_sequence(p);

    while (p->res == 0 && p->at < p->end && *p->at == '|') {
        p->at++;
        n = node_new(p, EITHER, n, parse_sequence(p));
    }
    return n;
}

/* ---- states: built from the end ------------------------------------------------------------------ */

static uint32_t state_new(struct parser *p, enum state_kind kind, uint32_t next, uint32_t other,
                          uint32_t set)
{
    struct mco_match *m = p->m;

    if (p->res != 0)
        return 0;
    if (m->nstates == STATES_MAX) {
        fail(p, -E2BIG, "it has too many repetitions of repetitions");
        return 0;
    }
    m->states[m->nstates] = (struct state){.kind = kind, .next = next, .other = other, .set = set};
    return m->nstates++;
}

static uint32_t build(struct parser *p, uint32_t n, uint32_t next);

static uint32_t build_repeat(struct parser *p, const struct node *r, uint32_t next)
{
    if (r->most < 0) {
        uint32_t loop = state_new(p, STATE_SPLIT, NONE, next, 0);
        uint32_t body = build(p, r->left, loop);

        if (p->res == 0)
            p->m->states[loop].next = body;
        next = loop;
    }
    for (int i = r->least; i < r->most && p->res == 0; i++)
        next = state_new(p, STATE_SPLIT, build(p, r->left, next), next, 0);
    for (int i = 0; i < r->least && p->res == 0; i++)
        next = build(p, r->left, next);
    return next;
}

/* The state from which node n leads to `next`. The tree is deep only to the left, where sequences are. */
static uint32_t build(struct parser *p, uint32_t n, uint32_t next)
{
    if (p->res == 0 && ++p->work > WORK_MAX)
        fail(p, -E2BIG, "it has too many repetitions of repetitions");
    while (p->res == 0 && p->nodes[n].kind == SEQUENCE) {
        next = build(p, p->nodes[n].right, next);
        n = p->nodes[n].left;
    }
    if (p->res != 0)
        return 0;
    switch (p->nodes[n].kind) {
    case SET:
        return state_new(p, STATE_SET, next, NONE, p->nodes[n].set);
    case BEGIN:
        return state_new(p, STATE_BEGIN, next, NONE, 0);
    case END:
        return state_new(p, STATE_END, next, NONE, 0);
    case EITHER: {
        uint32_t right = build(p, p->nodes[n].right, next);

        return state_new(p, STATE_SPLIT, build(p, p->nodes[n].left, next), right, 0);
    }
    case REPEAT:
        return build_repeat(p, &p->nodes[n], next);
    case SEQUENCE: /* taken above */
    case EMPTY:
        break;
    }
    return next;
}

int mco_match_create(const char *text, size_t length, struct mco_match **out, char *error,
                     size_t error_size)
{
    struct mco_match *m = calloc(1, sizeof(*m));
    struct parser p = {
        .at = (const unsigned char *)text, .end = (const unsigned char *)text + length, .m = m};
    uint32_t root;

    if (m == NULL)
        return -ENOMEM;
    m->states = malloc(STATES_MAX * sizeof(*m->states));
    m->lists = malloc(4 * STATES_MAX * sizeof(uint32_t));
    m->seen = calloc(STATES_MAX, sizeof(uint32_t));
    if (m->states == NULL || m->lists == NULL || m->seen == NULL) {
        fail(&p, -ENOMEM, "out of memory");
    } else {
        m->now = m->lists;
        m->then = m->now + STATES_MAX;
        m->stack =
            m->then + STATES_MAX; /* a state leads to two at most, and is gone through once */
        root = parse_either(&p);
        m->start = build(&p, root, state_new(&p, STATE_MATCH, NONE, NONE, 0));
    }
    free(p.nodes);
    if (p.res != 0) {
        snprintf(error, error_size, "%s, at byte %zu", p.why,
                 (size_t)(p.at - (const unsigned char *)text));
        mco_match_destroy(m);
        return p.res;
    }
    *out = m;
    return 0;
}

void mco_match_destroy(struct mco_match *m)
{
    if (m == NULL)
        return;
    free(m->states);
    free(m->sets);
    free(m->lists);
    free(m->seen);
    free(m);
}

/* ---- matching -------------------------------------------------------------------------------------- */

/* Enters a state and all that need no byte from there. True: the end is among them. */
static bool enter(struct mco_match *m, uint32_t *list, uint32_t *n, uint32_t state, bool first,
                  bool last)
{
    uint32_t depth = 0;

    m->stack[depth++] = state;
    while (depth != 0) {
        uint32_t i = m->stack[--depth];
        const struct state *s = &m->states[i];

        if (m->seen[i] == m->step)
            continue;
        m->seen[i] = m->step;
        if (s->kind == STATE_MATCH)
            return true;
        if (s->kind == STATE_SET)
            list[(*n)++] = i;
        else if (s->kind == STATE_SPLIT || (s->kind == STATE_BEGIN && first) ||
                 (s->kind == STATE_END && last))
            m->stack[depth++] = s->next;
        if (s->kind == STATE_SPLIT)
            m->stack[depth++] = s->other;
    }
    return false;
}

bool mco_match(struct mco_match *m, const void *key, size_t length)
{
    const unsigned char *bytes = key;
    uint32_t n = 0;

    if (memchr(key, '\0', length) != NULL)
        return false;
    if (m->step > UINT32_MAX - length - 2) {
        memset(m->seen, 0, STATES_MAX * sizeof(uint32_t));
        m->step = 0;
    }
    m->step++;
    if (enter(m, m->now, &n, m->start, true, length == 0))
        return true;
    for (size_t i = 0; i < length; i++) {
        uint32_t *swap = m->now, more = 0;

        m->step++;
        for (uint32_t k = 0; k < n; k++) {
            const struct state *s = &m->states[m->now[k]];

            if (set_has(&m->sets[s->set], bytes[i]) &&
                enter(m, m->then, &more, s->next, false, i + 1 == length))
                return true;
        }
        if (enter(m, m->then, &more, m->start, false, i + 1 == length))
            return true;
        m->now = m->then;
        m->then = swap;
        n = more;
    }
    return false;
}
