/* SPDX-License-Identifier: Apache-2.0 */
/* Certificates made on the spot. */
#ifndef TESTS_WIRE_CERTS_H
#define TESTS_WIRE_CERTS_H

#include <openssl/ec.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include "wire_pair.h"

struct wp_ca {
    EVP_PKEY *key;
    X509 *certificate;
};

#define WP_DAY (24l * 3600)

static inline X509 *wp_certificate(const char *name, EVP_PKEY *key, const struct wp_ca *issuer,
                                   long from, long until, const char *usage)
{
    static long serial;
    X509 *c = X509_new();
    X509_NAME *n = X509_NAME_new();
    X509_EXTENSION *e;

    WP_CHECK(c != NULL && n != NULL);
    X509_set_version(c, 2);
    ASN1_INTEGER_set(X509_get_serialNumber(c), ++serial);
    X509_gmtime_adj(X509_getm_notBefore(c), from);
    X509_gmtime_adj(X509_getm_notAfter(c), until);
    X509_NAME_add_entry_by_txt(n, "CN", MBSTRING_ASC, (const unsigned char *)name, -1, -1, 0);
    X509_set_subject_name(c, n);
    X509_set_issuer_name(c, issuer != NULL ? X509_get_subject_name(issuer->certificate) : n);
    X509_set_pubkey(c, key);
    if (issuer == NULL) {
        e = X509V3_EXT_conf_nid(NULL, NULL, NID_basic_constraints, "critical,CA:TRUE");
        WP_CHECK(e != NULL && X509_add_ext(c, e, -1) == 1);
        X509_EXTENSION_free(e);
    }
    if (usage != NULL) {
        e = X509V3_EXT_conf_nid(NULL, NULL, NID_ext_key_usage, usage);
        WP_CHECK(e != NULL && X509_add_ext(c, e, -1) == 1);
        X509_EXTENSION_free(e);
    }
    WP_CHECK(X509_sign(c, issuer != NULL ? issuer->key : key, EVP_sha256()) > 0);
    X509_NAME_free(n);
    return c;
}

static inline void wp_ca_create(struct wp_ca *ca, const char *name)
{
    ca->key = EVP_EC_gen("P-256");
    WP_CHECK(ca->key != NULL);
    ca->certificate = wp_certificate(name, ca->key, NULL, -WP_DAY, WP_DAY, NULL);
}

static inline void wp_ca_destroy(struct wp_ca *ca)
{
    X509_free(ca->certificate);
    EVP_PKEY_free(ca->key);
}

static inline void wp_write_certificate(const char *path, X509 *c)
{
    FILE *f = fopen(path, "w");

    WP_CHECK(f != NULL && PEM_write_X509(f, c) == 1);
    fclose(f);
}

/* passphrase NULL: none. */
static inline void wp_write_key(const char *path, EVP_PKEY *key, const char *passphrase)
{
    FILE *f = fopen(path, "w");

    WP_CHECK(f != NULL && fchmod(fileno(f), 0600) == 0 &&
             PEM_write_PrivateKey(f, key, passphrase != NULL ? EVP_aes_128_cbc() : NULL, NULL, 0,
                                  NULL, (void *)(uintptr_t)passphrase) == 1);
    fclose(f);
}

struct wp_tls {
    const char *name;
    const struct wp_ca *issuer, *trusted; /* who signed it, whom it believes */
    long from, until;                     /* seconds from now; 0, 0: a day either way */
    const char *usage;
};

/* An agent's side, from files that are gone afterwards. */
static inline struct mcd_wire_auth *wp_tls(const struct wp_tls *t)
{
    bool dated = t->from != 0 || t->until != 0;
    EVP_PKEY *key = EVP_EC_gen("P-256");
    X509 *c = wp_certificate(t->name, key, t->issuer, dated ? t->from : -WP_DAY,
                             dated ? t->until : WP_DAY, t->usage);
    struct mcd_wire_auth *a = NULL;
    char folder[256], cert[300], secret[300], ca[300], error[512] = "";
    struct mcd_wire_auth_options o = {
        .method = MCD_WIRE_TLS, .tls_cert = cert, .tls_key = secret, .tls_ca = ca};

    wp_folder(folder);
    snprintf(cert, sizeof(cert), "%s/cert", folder);
    snprintf(secret, sizeof(secret), "%s/key", folder);
    snprintf(ca, sizeof(ca), "%s/ca", folder);
    wp_write_certificate(cert, c);
    wp_write_key(secret, key, NULL);
    wp_write_certificate(ca, t->trusted->certificate);
    if (mcd_wire_auth_create(&o, &a, error, sizeof(error)) != 0) {
        fprintf(stderr, "%s\n", error);
        abort();
    }
    unlink(cert);
    unlink(secret);
    unlink(ca);
    rmdir(folder);
    X509_free(c);
    EVP_PKEY_free(key);
    return a;
}

#endif
