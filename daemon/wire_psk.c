/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The shared secret: proofs and the MACs of frames.
 *
 *   transcript = label, initiator's greeting, acceptor's greeting, chosen version
 *   key(use)   = HKDF-SHA256(secret, salt = SHA256(transcript), info = use)
 *   proof      = HMAC-SHA256(key("initiator proof" | "acceptor proof"), transcript)
 *   MAC        = first 16 bytes of HMAC-SHA256(key("initiator frames" | "acceptor frames"),
 *                number of the frame, its header and payload)
 *
 * The greetings hold both nonces, roles, incarnations, version ranges and methods, so a proof is
 * good for one connection and one direction, and nobody between can change what was greeted.
 */
#include "wire_internal.h"

#include <errno.h>
#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/kdf.h>
#include <stdlib.h>
#include <string.h>

#define KEY 32u
#define LABEL "mcshm control psk"

struct mcd_wire_psk {
    uint8_t transcript[sizeof(LABEL) + 2 * sizeof(struct mcd_wire_greeting) + sizeof(uint16_t)];
    uint8_t prove[KEY], expect[KEY]; /* keys of our proof and of theirs */
    EVP_MAC_CTX *send, *receive;     /* keyed */
};

static int derive(const struct mcd_wire_auth *auth, const uint8_t salt[32], const char *use,
                  uint8_t key[KEY])
{
    EVP_KDF *kdf = EVP_KDF_fetch(NULL, "HKDF", NULL);
    EVP_KDF_CTX *context = kdf != NULL ? EVP_KDF_CTX_new(kdf) : NULL;
    char digest[] = "SHA256";
    OSSL_PARAM params[] = {
        OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, digest, 0),
        OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_KEY, auth->psk, auth->psk_size),
        OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_SALT, (void *)(uintptr_t)salt, 32),
        OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_INFO, (void *)(uintptr_t)use, strlen(use)),
        OSSL_PARAM_construct_end(),
    };
    int res = context != NULL && EVP_KDF_derive(context, key, KEY, params) == 1 ? 0 : -ENOMEM;

    EVP_KDF_CTX_free(context);
    EVP_KDF_free(kdf);
    return res;
}

/* A context that remembers its key. */
static int keyed(const uint8_t key[KEY], EVP_MAC_CTX **out)
{
    EVP_MAC *mac = EVP_MAC_fetch(NULL, "HMAC", NULL);
    EVP_MAC_CTX *context = mac != NULL ? EVP_MAC_CTX_new(mac) : NULL;
    char digest[] = "SHA256";
    OSSL_PARAM params[] = {
        OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_DIGEST, digest, 0),
        OSSL_PARAM_construct_end(),
    };
    int res = -ENOMEM;

    if (context != NULL && EVP_MAC_init(context, key, KEY, params) == 1) {
        *out = context;
        context = NULL;
        res = 0;
    }
    EVP_MAC_CTX_free(context);
    EVP_MAC_free(mac);
    return res;
}

int mcd_wire_psk_create(const struct mcd_wire_auth *auth, const struct mcd_wire_greeting *initiator,
                        const struct mcd_wire_greeting *acceptor, uint16_t version,
                        bool is_initiator, struct mcd_wire_psk **out)
{
    static const char *const proofs[] = {"acceptor proof", "initiator proof"};
    static const char *const frames[] = {"acceptor frames", "initiator frames"};
    struct mcd_wire_psk *p = calloc(1, sizeof(*p));
    uint8_t salt[32], send[KEY], receive[KEY], *at;
    int res = -ENOMEM;

    if (p == NULL)
        goto out;
    at = p->transcript;
    memcpy(at, LABEL, sizeof(LABEL));
    at += sizeof(LABEL);
    memcpy(at, initiator, sizeof(*initiator));
    at += sizeof(*initiator);
    memcpy(at, acceptor, sizeof(*acceptor));
    at += sizeof(*acceptor);
    memcpy(at, &version, sizeof(version));
    if (EVP_Digest(p->transcript, sizeof(p->transcript), salt, NULL, EVP_sha256(), NULL) != 1)
        goto out;
    if (derive(auth, salt, proofs[is_initiator], p->prove) != 0 ||
        derive(auth, salt, proofs[!is_initiator], p->expect) != 0 ||
        derive(auth, salt, frames[is_initiator], send) != 0 ||
        derive(auth, salt, frames[!is_initiator], receive) != 0 || keyed(send, &p->send) != 0 ||
        keyed(receive, &p->receive) != 0)
        goto out;
    *out = p;
    p = NULL;
    res = 0;
out:
    OPENSSL_cleanse(send, sizeof(send));
    OPENSSL_cleanse(receive, sizeof(receive));
    mcd_wire_psk_destroy(p);
    return res;
}

void mcd_wire_psk_destroy(struct mcd_wire_psk *p)
{
    if (p == NULL)
        return;
    EVP_MAC_CTX_free(p->send);
    EVP_MAC_CTX_free(p->receive);
    OPENSSL_cleanse(p, sizeof(*p));
    free(p);
}

static int proof(const struct mcd_wire_psk *p, const uint8_t key[KEY], uint8_t mac[32])
{
    size_t size = 0;

    if (EVP_Q_mac(NULL, "HMAC", NULL, "SHA256", NULL, key, KEY, p->transcript,
                  sizeof(p->transcript), mac, 32, &size) == NULL ||
        size != 32)
        return -ENOMEM;
    return 0;
}

int mcd_wire_psk_prove(struct mcd_wire_psk *p, uint8_t mac[32])
{
    return proof(p, p->prove, mac);
}

bool mcd_wire_psk_verify(struct mcd_wire_psk *p, const uint8_t mac[32])
{
    uint8_t due[32];

    return proof(p, p->expect, due) == 0 && CRYPTO_memcmp(due, mac, sizeof(due)) == 0;
}

static int seal(EVP_MAC_CTX *context, uint64_t sequence, const void *frame, size_t size,
                uint8_t mac[32])
{
    size_t n = 0;

    if (EVP_MAC_init(context, NULL, 0, NULL) != 1 ||
        EVP_MAC_update(context, (const uint8_t *)&sequence, sizeof(sequence)) != 1 ||
        EVP_MAC_update(context, frame, size) != 1 || EVP_MAC_final(context, mac, &n, 32) != 1 ||
        n != 32)
        return -ENOMEM;
    return 0;
}

int mcd_wire_psk_seal(struct mcd_wire_psk *p, uint64_t sequence, const void *frame, size_t size,
                      uint8_t mac[MCD_WIRE_MAC])
{
    uint8_t whole[32];
    int res = seal(p->send, sequence, frame, size, whole);

    if (res == 0)
        memcpy(mac, whole, MCD_WIRE_MAC);
    return res;
}

bool mcd_wire_psk_check(struct mcd_wire_psk *p, uint64_t sequence, const void *frame, size_t size,
                        const uint8_t mac[MCD_WIRE_MAC])
{
    uint8_t due[32];

    return seal(p->receive, sequence, frame, size, due) == 0 &&
           CRYPTO_memcmp(due, mac, MCD_WIRE_MAC) == 0;
}
