/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The control file of the double of libcuda.so.1: what a test arms while processes run, and what it reads of them, also
 * after their end.  FAKE_CUDA_CONTROL names it; every process that loads the double maps it shared.  An empty file
 * is made ready by the first one.
 */
#ifndef FAKE_CUDA_H
#define FAKE_CUDA_H

#include <assert.h>
#include <stdint.h>

#define FAKE_CUDA_MAGIC UINT64_C(0x4144554345464b46)
#define FAKE_CUDA_DEVICES 8
#define FAKE_CUDA_RULES 32
#define FAKE_CUDA_PROCESSES 256
#define FAKE_CUDA_MEMORIES 8192
#define FAKE_CUDA_CALLS 96

enum fake_action {
    FAKE_OFF,
    FAKE_FAIL, /* returns `result` */
    FAKE_LOSE, /* returns `result`, and so does everything on that device in that process from then on */
    FAKE_SLEEP, /* `ms`, then goes on */
    FAKE_HANG   /* until the rule is taken away */
};

/* What happens at calls of one name. Written by the test, `action` last. 96 bytes. */
struct fake_rule {
    char call
        [40]; /* "cuMemCreate"; "run:copy", "run:fill", "run:write", "run:wait", "run:host": when a stream gets
                    * there; "*": all calls */
    uint32_t action;
    int32_t result;
    uint32_t pid; /* 0: any process */
    uint32_t ms;
    uint64_t first; /* at this call from now on; 1: the next one */
    uint64_t times; /* and so many; 0: all from then on */
    uint64_t seen;  /* calls that were looked at */
    uint64_t acted;
    uint64_t waiting; /* threads that sleep or hang here now */
};
static_assert(sizeof(struct fake_rule) == 96, "fake_rule layout");

/* What a process has. */
enum fake_count {
    FAKE_CONTEXTS,      /* primary contexts that are alive */
    FAKE_RETAINS,       /* of them */
    FAKE_HANDLES,       /* references to allocation handles: created, imported, retained */
    FAKE_MAPPINGS,      /* cuMemMap */
    FAKE_RESERVATIONS,  /* of addresses; of device 0 */
    FAKE_ALLOCATIONS,   /* cuMemAlloc */
    FAKE_OPENED,        /* IPC handles */
    FAKE_HOST,          /* cuMemHostAlloc */
    FAKE_REGISTRATIONS, /* cuMemHostRegister; of the context's device */
    FAKE_STREAMS,
    FAKE_EVENTS,
    FAKE_OBJECTS, /* so many kinds of things that can be left behind; from here on it only counts up */
    FAKE_COPIES = FAKE_OBJECTS,
    FAKE_BYTES,
    FAKE_BATCHES,
    FAKE_STAGED,           /* copies between devices that do not reach each other */
    FAKE_PAGEABLE,         /* copies from or to host memory that is not registered */
    FAKE_OPENS,            /* cuIpcOpenMemHandle that went well */
    FAKE_REGISTERED_BYTES, /* now */
    FAKE_COUNTS
};

struct fake_process {
    uint32_t pid;       /* 0: never used */
    uint32_t misuses;   /* with FAKE_CUDA_ABORT=1 it is the last thing that a process does */
    char sentence[200]; /* of the last one */
    int64_t counts[FAKE_CUDA_DEVICES][FAKE_COUNTS];
    uint64_t calls[FAKE_CUDA_CALLS]; /* by place in names[] */
};

/* Device memory that somebody holds. */
struct fake_memory {
    uint64_t inode, size; /* inode 0: free */
    uint32_t device, reserved;
    uint64_t holders[FAKE_CUDA_PROCESSES / 64]; /* places of processes */
};

struct fake_control {
    uint64_t magic;
    uint32_t size, calls;
    uint32_t delay_us;  /* before each operation of a stream */
    uint32_t delay_pid; /* of this process only; 0: any */
    char names[FAKE_CUDA_CALLS][40];
    struct fake_rule rules[FAKE_CUDA_RULES];
    struct fake_process processes[FAKE_CUDA_PROCESSES];
    struct fake_memory memories[FAKE_CUDA_MEMORIES];
};

#endif
