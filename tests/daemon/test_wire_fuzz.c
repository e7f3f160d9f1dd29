/* SPDX-License-Identifier: Apache-2.0 */
/* The fuzzer's entry on inputs made from fixed seeds: good conversations, changed here and there. */
#include <criterion/criterion.h>

#include "tests/fuzz/fuzz_wire.c"

static uint64_t state;

static uint32_t roll(uint32_t below)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)(state >> 32) % below;
}

/* What a good initiator or acceptor sends, with some frames. */
static size_t conversation(uint8_t *to, bool opened, bool initiator)
{
    struct mcd_wire_greeting g = {
        .magic = MCD_WIRE_MAGIC,
        .version_min = 1,
        .version_max = 1,
        .method = MCD_WIRE_NONE,
        .role = initiator ? MCD_WIRE_ACCEPTOR : MCD_WIRE_INITIATOR,
        .incarnation = 3,
    };
    struct mcd_wire_proof p = {.magic = MCD_WIRE_PROOF_MAGIC};
    struct mcd_wire_refusal r = {.magic = MCD_WIRE_REFUSAL_MAGIC, .status = MCS_LIMIT, .length = 3};
    size_t n = 0;

    if (!opened) {
        memcpy(to, &g, sizeof(g));
        n += sizeof(g);
        if (roll(8) == 0) {
            memcpy(to + n, &r, sizeof(r));
            n += sizeof(r);
        }
        memcpy(to + n, &p, sizeof(p));
        n += sizeof(p);
    }
    for (unsigned i = 0, frames = roll(6); i < frames; i++) {
        struct mcd_wire_frame f = {
            .magic = MCD_WIRE_FRAME_MAGIC,
            .version = 1,
            .type = (uint16_t)(1 + roll(20)),
            .length = roll(200),
            .id = roll(3),
            .sequence = i,
        };

        memcpy(to + n, &f, sizeof(f));
        memset(to + n + sizeof(f), (int)roll(256), f.length);
        n += sizeof(f) + f.length;
    }
    return n;
}

static void change(uint8_t *data, size_t *size)
{
    for (unsigned edits = roll(4); edits > 0 && *size > 0; edits--) {
        size_t at = roll((uint32_t)*size);

        switch (roll(4)) {
        case 0:
            data[at] = (uint8_t)roll(256);
            break;
        case 1:
            data[at] ^= (uint8_t)(1u << roll(8));
            break;
        case 2:
            *size = at;
            break;
        default:
            memmove(data + at, data + at + 1, *size - at - 1);
            *size -= 1;
        }
    }
}

Test(wire_fuzz, strangers)
{
    static uint8_t data[4096];

    for (uint64_t seed = 1; seed <= 6000; seed++) {
        bool opened, initiator;
        size_t size;

        state = seed * UINT64_C(0x9e3779b97f4a7c15);
        opened = roll(2) != 0;
        initiator = roll(2) != 0;
        data[0] = (uint8_t)((initiator ? 1u : 0u) | (opened ? FUZZ_OPENED : 0u));
        data[1] = (uint8_t)roll(256);
        size = conversation(data + 2, opened, initiator);
        change(data + 2, &size);
        cr_assert_eq(LLVMFuzzerTestOneInput(data, size + 2), 0);
    }
}

static void between(unsigned method, uint64_t rounds)
{
    uint8_t data[2 + 4 * 4];

    for (uint64_t seed = 1; seed <= rounds; seed++) {
        size_t acts;

        state = seed * UINT64_C(0xd1342543de82ef95);
        acts = roll(4);
        data[0] = (uint8_t)method;
        data[1] = 0;
        for (size_t i = 0; i < 4 * acts; i++)
            data[2 + i] = (uint8_t)roll(256);
        cr_assert_eq(LLVMFuzzerTestOneInput(data, 2 + 4 * acts), 0);
    }
}

Test(wire_fuzz, between_psk)
{
    between(2, 3000);
}

Test(wire_fuzz, between_tls)
{
    between(3, 300);
}
