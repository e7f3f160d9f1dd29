/* SPDX-License-Identifier: Apache-2.0 */
/* `mcshm-bench share`: what tenants get beside each other, and what a flood costs a small task. */
#ifndef BENCH_SHARE_H
#define BENCH_SHARE_H

int share_command(int argc, char **argv);

#endif
