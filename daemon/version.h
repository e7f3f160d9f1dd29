/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCD_VERSION_H
#define MCD_VERSION_H
#define MCD_VERSION                                                                                \
    "0.1.0" /* as MCSHM_VERSION in lib/mcshm.h; tests/daemon/test_config.c compares */
#endif
