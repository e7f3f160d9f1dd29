/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rules of tenants in the configuration: [tenant] is for each user that no other rule names (one
 * tenant a uid), [tenant:NAME] for those users and groups that it lists.  One table of keys (rule.c)
 * makes parsing, --check-config, --dump-config, the sample file and the manual page.
 */
#ifndef MCD_RULE_H
#define MCD_RULE_H

#include <sys/types.h>

#include "config.h"

/* Everything at its default. */
void mcd_tenant_rule_init(struct mcd_tenant_rule *r, const char *name);
/* One key of section "tenant" or "tenant:NAME", which is made when it is new; key NULL: only that.
 * -EINVAL and one sentence. */
int mcd_tenant_rule_set(struct mcd_config *c, const char *section, const char *key,
                        const char *value, char *error, size_t error_size);
/* Lists that can be read, of which no two name the same user or group. */
int mcd_tenant_rules_check(const struct mcd_config *c, char *error, size_t error_size);
/* Takes all rules over; returns how many of their keys changed, as mcd_config_adopt() does. */
unsigned mcd_tenant_rules_adopt(struct mcd_config *to, const struct mcd_config *from,
                                void (*told)(void *context, const char *key, bool changed),
                                void *context);
void mcd_tenant_rules_dump(const struct mcd_config *c, FILE *out);
void mcd_tenant_rules_sample(FILE *out);
void mcd_tenant_rules_man(FILE *out);

/* The first rule that names the user or one of its groups; else [tenant]. */
const struct mcd_tenant_rule *mcd_tenant_rule_of(const struct mcd_config *c, uid_t uid,
                                                 const gid_t *gids, size_t ngids);

#endif
