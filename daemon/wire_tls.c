/* SPDX-License-Identifier: Apache-2.0 */
/* TLS 1.3 with certificates on both sides, over memory: nothing in here touches a socket. */
#include "wire_internal.h"

#include <errno.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/x509_vfy.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHAIN_MAX (32u << 10) /* bytes of certificates that a stranger may send */

struct mcd_wire_tls {
    SSL *ssl;
    BIO *in, *out; /* owned by ssl */
    const struct mcd_wire_auth *auth;
    char verdict[384]; /* why the peer's certificate was refused */
};

void mcd_wire_tls_subject(X509 *certificate, char *text, size_t size)
{
    BIO *b = BIO_new(BIO_s_mem());
    int n = 0;

    if (b != NULL &&
        X509_NAME_print_ex(b, X509_get_subject_name(certificate), 0, XN_FLAG_RFC2253) >= 0)
        n = BIO_read(b, text, (int)size - 1);
    text[n > 0 ? n : 0] = 0;
    if (text[0] == 0)
        snprintf(text, size, "without a subject");
    BIO_free(b);
}

static void print_time(const ASN1_TIME *time, char *text, size_t size)
{
    BIO *b = BIO_new(BIO_s_mem());
    int n = 0;

    if (b != NULL && ASN1_TIME_print(b, time) == 1)
        n = BIO_read(b, text, (int)size - 1);
    text[n > 0 ? n : 0] = 0;
    BIO_free(b);
}

static const char *remedy(int why)
{
    switch (why) {
    case X509_V_ERR_CERT_HAS_EXPIRED:
        return "renew it";
    case X509_V_ERR_CERT_NOT_YET_VALID:
        return "look at the clocks of both hosts";
    case X509_V_ERR_INVALID_PURPOSE:
        return "it has to be good for servers and for clients";
    default:
        return "[peer] tls_ca has to hold its issuer";
    }
}

/* OpenSSL's verdict stands; it is only written down while the certificate is at hand. */
static int on_verify(int ok, X509_STORE_CTX *store)
{
    SSL *ssl = X509_STORE_CTX_get_ex_data(store, SSL_get_ex_data_X509_STORE_CTX_idx());
    struct mcd_wire_tls *t = ssl != NULL ? SSL_get_app_data(ssl) : NULL;
    X509 *certificate = X509_STORE_CTX_get_current_cert(store);
    int why = X509_STORE_CTX_get_error(store);
    char subject[160] = "unknown", when[48] = "", dates[80] = "";

    if (ok || t == NULL || t->verdict[0] != 0)
        return ok;
    if (certificate != NULL) {
        mcd_wire_tls_subject(certificate, subject, sizeof(subject));
        if (why == X509_V_ERR_CERT_HAS_EXPIRED) {
            print_time(X509_get0_notAfter(certificate), when, sizeof(when));
            snprintf(dates, sizeof(dates), " (at %s)", when);
        } else if (why == X509_V_ERR_CERT_NOT_YET_VALID) {
            print_time(X509_get0_notBefore(certificate), when, sizeof(when));
            snprintf(dates, sizeof(dates), " (before %s)", when);
        }
    }
    snprintf(t->verdict, sizeof(t->verdict), "the peer's certificate %s is refused: %s%s: %s",
             subject, X509_verify_cert_error_string(why), dates, remedy(why));
    return ok;
}

static int no_passphrase(char *buffer, int size, int writing, void *context)
{
    (void)buffer, (void)size, (void)writing, (void)context;
    return -1; /* an agent has nobody to ask */
}

static void last_error(char *text, size_t size)
{
    unsigned long e = ERR_peek_last_error();
    const char *why = e != 0 ? ERR_reason_error_string(e) : NULL;

    snprintf(text, size, "%s", why != NULL ? why : "unknown reason");
    ERR_clear_error();
}

int mcd_wire_tls_context(const struct mcd_wire_auth_options *o, SSL_CTX **out, char *error,
                         size_t error_size)
{
    SSL_CTX *c;
    STACK_OF(X509_NAME) * names;
    char why[128];
    int res = -EINVAL;

    ERR_clear_error();
    c = SSL_CTX_new(TLS_method());
    if (c == NULL) {
        last_error(why, sizeof(why));
        snprintf(error, error_size, "OpenSSL cannot start: %s", why);
        return -ENOMEM;
    }
    SSL_CTX_set_min_proto_version(c, TLS1_3_VERSION);
    SSL_CTX_set_max_proto_version(c, TLS1_3_VERSION);
    /* No resumption: each connection shows its certificate, so that an expired one ends with it. */
    SSL_CTX_set_session_cache_mode(c, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_num_tickets(c, 0);
    SSL_CTX_set_options(c, SSL_OP_NO_TICKET | SSL_OP_NO_COMPRESSION | SSL_OP_NO_RENEGOTIATION);
    SSL_CTX_set_max_early_data(c, 0);
    SSL_CTX_set_max_cert_list(c, CHAIN_MAX);
    SSL_CTX_set_default_passwd_cb(c, no_passphrase);
    SSL_CTX_set_verify(c, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, on_verify);
    if (SSL_CTX_use_certificate_chain_file(c, o->tls_cert) != 1) {
        last_error(why, sizeof(why));
        snprintf(error, error_size, "[peer] tls_cert = %s holds no usable certificate: %s",
                 o->tls_cert, why);
        goto out;
    }
    if (SSL_CTX_use_PrivateKey_file(c, o->tls_key, SSL_FILETYPE_PEM) != 1) {
        last_error(why, sizeof(why));
        snprintf(error, error_size,
                 "[peer] tls_key = %s holds no usable key of the certificate in %s, without a "
                 "passphrase: %s",
                 o->tls_key, o->tls_cert, why);
        goto out;
    }
    names = SSL_load_client_CA_file(o->tls_ca);
    if (names == NULL || SSL_CTX_load_verify_locations(c, o->tls_ca, NULL) != 1) {
        last_error(why, sizeof(why));
        sk_X509_NAME_pop_free(names, X509_NAME_free);
        snprintf(error, error_size, "[peer] tls_ca = %s holds no usable certificate: %s", o->tls_ca,
                 why);
        goto out;
    }
    SSL_CTX_set_client_CA_list(c, names);
    *out = c;
    c = NULL;
    res = 0;
out:
    SSL_CTX_free(c);
    return res;
}

int mcd_wire_tls_create(const struct mcd_wire_auth *auth, bool initiator, struct mcd_wire_tls **out)
{
    struct mcd_wire_tls *t = calloc(1, sizeof(*t));

    if (t == NULL)
        return -ENOMEM;
    t->auth = auth;
    t->ssl = SSL_new(auth->tls);
    t->in = BIO_new(BIO_s_mem());
    t->out = BIO_new(BIO_s_mem());
    if (t->ssl == NULL || t->in == NULL || t->out == NULL) {
        BIO_free(t->in);
        BIO_free(t->out);
        SSL_free(t->ssl);
        free(t);
        ERR_clear_error();
        return -ENOMEM;
    }
    BIO_set_mem_eof_return(t->in, -1);
    BIO_set_mem_eof_return(t->out, -1);
    SSL_set_bio(t->ssl, t->in, t->out);
    SSL_set_app_data(t->ssl, t);
    if (initiator)
        SSL_set_connect_state(t->ssl);
    else
        SSL_set_accept_state(t->ssl);
    *out = t;
    return 0;
}

void mcd_wire_tls_destroy(struct mcd_wire_tls *t)
{
    if (t == NULL)
        return;
    SSL_free(t->ssl);
    free(t);
}

int mcd_wire_tls_feed(struct mcd_wire_tls *t, const void *data, size_t size)
{
    return size == 0 || BIO_write(t->in, data, (int)size) == (int)size ? 0 : -ENOMEM;
}

/* Is an alert of the peer about what this side showed? */
static bool on_certificate(int alert)
{
    return (alert >= SSL_AD_BAD_CERTIFICATE && alert <= SSL_AD_CERTIFICATE_UNKNOWN) ||
           alert == SSL_AD_UNKNOWN_CA || alert == SSL_AD_ACCESS_DENIED ||
           alert == SSL_AD_CERTIFICATE_REQUIRED;
}

/* Why the last call on t->ssl failed. */
static void explain(struct mcd_wire_tls *t, char *error, size_t error_size)
{
    unsigned long e = ERR_peek_last_error();
    int reason = ERR_GET_REASON(e);

    if (t->verdict[0] != 0) {
        snprintf(error, error_size, "%s", t->verdict);
    } else if (e != 0 && ERR_GET_LIB(e) == ERR_LIB_SSL && reason >= SSL_AD_REASON_OFFSET) {
        int alert = reason - SSL_AD_REASON_OFFSET;

        snprintf(error, error_size, "the peer %s%s: %s",
                 on_certificate(alert) ? "refuses this agent's certificate " : "ends TLS",
                 on_certificate(alert) ? t->auth->subject : "", SSL_alert_desc_string_long(alert));
    } else if (e != 0 && ERR_GET_LIB(e) == ERR_LIB_SSL &&
               reason == SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE) {
        snprintf(error, error_size, "the peer shows no certificate");
    } else {
        const char *why = e != 0 ? ERR_reason_error_string(e) : NULL;

        snprintf(error, error_size, "TLS failed: %s", why != NULL ? why : "unknown reason");
    }
    ERR_clear_error();
}

int mcd_wire_tls_handshake(struct mcd_wire_tls *t, char *error, size_t error_size)
{
    int res;

    ERR_clear_error();
    res = SSL_do_handshake(t->ssl);
    if (res == 1)
        return 1;
    if (SSL_get_error(t->ssl, res) == SSL_ERROR_WANT_READ)
        return 0;
    explain(t, error, error_size);
    return -EPERM;
}

int mcd_wire_tls_read(struct mcd_wire_tls *t, void *data, size_t size, char *error,
                      size_t error_size)
{
    int res;

    ERR_clear_error();
    res = SSL_read(t->ssl, data, (int)size);
    if (res > 0)
        return res;
    switch (SSL_get_error(t->ssl, res)) {
    case SSL_ERROR_WANT_READ:
        return 0;
    case SSL_ERROR_ZERO_RETURN:
        return -EPIPE;
    default:
        explain(t, error, error_size);
        return -EPERM;
    }
}

bool mcd_wire_tls_pending(const struct mcd_wire_tls *t)
{
    return BIO_ctrl_pending(t->in) > 0 || SSL_has_pending(t->ssl) != 0;
}

int mcd_wire_tls_write(struct mcd_wire_tls *t, const void *data, size_t size)
{
    int res;

    ERR_clear_error();
    /* memory takes all of it, or there is none */
    res = SSL_write(t->ssl, data, (int)size);
    ERR_clear_error();
    return res == (int)size ? 0 : -ENOMEM;
}

int mcd_wire_tls_take(struct mcd_wire_tls *t, struct mcd_wire_buffer *out)
{
    size_t n = BIO_ctrl_pending(t->out);

    if (n == 0)
        return 0;
    if (mcd_wire_buffer_reserve(out, n) != 0 ||
        BIO_read(t->out, out->data + out->end, (int)n) != (int)n)
        return -ENOMEM;
    out->end += n;
    return 0;
}
