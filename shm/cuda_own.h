/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What shm/cuda.h needs of the CUDA driver API where the toolkit's header is not there: types, and constants with their
 * values, by the names and the layout of "CUDA Driver API Reference Manual", 13.0, chapters "Data types used by CUDA
 * driver", "Virtual Memory Management" and "Memory Management".  What we use, and no more.
 *
 * tests/shm/test_cuda_own.c includes this beside the toolkit's header with MCS_CUDA_OWN_COMPARE, under which types are
 * called own_... and the lists of constants make no enums, and compares all of it.
 */
#ifndef MCS_CUDA_OWN_H
#define MCS_CUDA_OWN_H

#include <stddef.h>
#include <stdint.h>

/* CUresult */
#define MCS_CUDA_OWN_RESULTS(X)                                                                    \
    X(CUDA_SUCCESS, 0)                                                                             \
    X(CUDA_ERROR_INVALID_VALUE, 1)                                                                 \
    X(CUDA_ERROR_OUT_OF_MEMORY, 2)                                                                 \
    X(CUDA_ERROR_NOT_INITIALIZED, 3)                                                               \
    X(CUDA_ERROR_DEINITIALIZED, 4)                                                                 \
    X(CUDA_ERROR_STUB_LIBRARY, 34)                                                                 \
    X(CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER, 36)                                                   \
    X(CUDA_ERROR_DEVICE_UNAVAILABLE, 46)                                                           \
    X(CUDA_ERROR_NO_DEVICE, 100)                                                                   \
    X(CUDA_ERROR_INVALID_DEVICE, 101)                                                              \
    X(CUDA_ERROR_INVALID_CONTEXT, 201)                                                             \
    X(CUDA_ERROR_MAP_FAILED, 205)                                                                  \
    X(CUDA_ERROR_UNMAP_FAILED, 206)                                                                \
    X(CUDA_ERROR_ALREADY_MAPPED, 208)                                                              \
    X(CUDA_ERROR_ALREADY_ACQUIRED, 210)                                                            \
    X(CUDA_ERROR_NOT_MAPPED, 211)                                                                  \
    X(CUDA_ERROR_ECC_UNCORRECTABLE, 214)                                                           \
    X(CUDA_ERROR_CONTEXT_ALREADY_IN_USE, 216)                                                      \
    X(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, 217)                                                     \
    X(CUDA_ERROR_NVLINK_UNCORRECTABLE, 220)                                                        \
    X(CUDA_ERROR_CONTAINED, 226)                                                                   \
    X(CUDA_ERROR_OPERATING_SYSTEM, 304)                                                            \
    X(CUDA_ERROR_INVALID_HANDLE, 400)                                                              \
    X(CUDA_ERROR_ILLEGAL_STATE, 401)                                                               \
    X(CUDA_ERROR_NOT_FOUND, 500)                                                                   \
    X(CUDA_ERROR_NOT_READY, 600)                                                                   \
    X(CUDA_ERROR_ILLEGAL_ADDRESS, 700)                                                             \
    X(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, 701)                                                     \
    X(CUDA_ERROR_LAUNCH_TIMEOUT, 702)                                                              \
    X(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, 704)                                                 \
    X(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, 705)                                                     \
    X(CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE, 708)                                                      \
    X(CUDA_ERROR_CONTEXT_IS_DESTROYED, 709)                                                        \
    X(CUDA_ERROR_ASSERT, 710)                                                                      \
    X(CUDA_ERROR_TOO_MANY_PEERS, 711)                                                              \
    X(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, 712)                                              \
    X(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, 713)                                                  \
    X(CUDA_ERROR_HARDWARE_STACK_ERROR, 714)                                                        \
    X(CUDA_ERROR_ILLEGAL_INSTRUCTION, 715)                                                         \
    X(CUDA_ERROR_MISALIGNED_ADDRESS, 716)                                                          \
    X(CUDA_ERROR_INVALID_ADDRESS_SPACE, 717)                                                       \
    X(CUDA_ERROR_INVALID_PC, 718)                                                                  \
    X(CUDA_ERROR_LAUNCH_FAILED, 719)                                                               \
    X(CUDA_ERROR_TENSOR_MEMORY_LEAK, 721)                                                          \
    X(CUDA_ERROR_NOT_PERMITTED, 800)                                                               \
    X(CUDA_ERROR_NOT_SUPPORTED, 801)                                                               \
    X(CUDA_ERROR_SYSTEM_NOT_READY, 802)                                                            \
    X(CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, 803)                                                      \
    X(CUDA_ERROR_MPS_CLIENT_TERMINATED, 810)                                                       \
    X(CUDA_ERROR_EXTERNAL_DEVICE, 911)                                                             \
    X(CUDA_ERROR_UNKNOWN, 999)

/* CUdevice_attribute */
#define MCS_CUDA_OWN_DEVICE_ATTRIBUTES(X)                                                          \
    X(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 16)                                                \
    X(CU_DEVICE_ATTRIBUTE_COMPUTE_MODE, 20)                                                        \
    X(CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT, 40)                                                  \
    X(CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 41)                                                  \
    X(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 75)                                            \
    X(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 76)                                            \
    X(CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, 91)                             \
    X(CU_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES, 98)                                             \
    X(CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED, 99)                                             \
    X(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 102)                                \
    X(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 103)                        \
    X(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, 110)                            \
    X(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED, 116)                                          \
    X(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS, 117)                               \
    X(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING, 118)                                    \
    X(CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED, 124)                                                  \
    X(CU_DEVICE_ATTRIBUTE_MPS_ENABLED, 133)                                                        \
    X(CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, 134)

/* CUpointer_attribute */
#define MCS_CUDA_OWN_POINTER_ATTRIBUTES(X)                                                         \
    X(CU_POINTER_ATTRIBUTE_CONTEXT, 1)                                                             \
    X(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, 2)                                                         \
    X(CU_POINTER_ATTRIBUTE_DEVICE_POINTER, 3)                                                      \
    X(CU_POINTER_ATTRIBUTE_HOST_POINTER, 4)                                                        \
    X(CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, 6)                                                         \
    X(CU_POINTER_ATTRIBUTE_BUFFER_ID, 7)                                                           \
    X(CU_POINTER_ATTRIBUTE_IS_MANAGED, 8)                                                          \
    X(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, 9)                                                      \
    X(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, 10)                                         \
    X(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, 11)                                                   \
    X(CU_POINTER_ATTRIBUTE_RANGE_SIZE, 12)                                                         \
    X(CU_POINTER_ATTRIBUTE_MAPPED, 13)                                                             \
    X(CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, 14)                                               \
    X(CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE, 15)                                         \
    X(CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, 17)                                                     \
    X(CU_POINTER_ATTRIBUTE_MAPPING_SIZE, 18)                                                       \
    X(CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, 19)                                                  \
    X(CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID, 20)

/* CUmemorytype */
#define MCS_CUDA_OWN_MEMORY_TYPES(X)                                                               \
    X(CU_MEMORYTYPE_HOST, 1)                                                                       \
    X(CU_MEMORYTYPE_DEVICE, 2)                                                                     \
    X(CU_MEMORYTYPE_ARRAY, 3)                                                                      \
    X(CU_MEMORYTYPE_UNIFIED, 4)

/* CUcomputemode */
#define MCS_CUDA_OWN_COMPUTE_MODES(X)                                                              \
    X(CU_COMPUTEMODE_DEFAULT, 0)                                                                   \
    X(CU_COMPUTEMODE_PROHIBITED, 2)                                                                \
    X(CU_COMPUTEMODE_EXCLUSIVE_PROCESS, 3)

/* CUmemAllocationType */
#define MCS_CUDA_OWN_ALLOCATION_TYPES(X)                                                           \
    X(CU_MEM_ALLOCATION_TYPE_INVALID, 0)                                                           \
    X(CU_MEM_ALLOCATION_TYPE_PINNED, 1)

/* CUmemAllocationHandleType */
#define MCS_CUDA_OWN_HANDLE_TYPES(X)                                                               \
    X(CU_MEM_HANDLE_TYPE_NONE, 0)                                                                  \
    X(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 1)

/* CUmemLocationType */
#define MCS_CUDA_OWN_LOCATION_TYPES(X)                                                             \
    X(CU_MEM_LOCATION_TYPE_INVALID, 0)                                                             \
    X(CU_MEM_LOCATION_TYPE_DEVICE, 1)                                                              \
    X(CU_MEM_LOCATION_TYPE_HOST, 2)                                                                \
    X(CU_MEM_LOCATION_TYPE_HOST_NUMA, 3)

/* CUmemAccess_flags */
#define MCS_CUDA_OWN_ACCESS(X)                                                                     \
    X(CU_MEM_ACCESS_FLAGS_PROT_NONE, 0)                                                            \
    X(CU_MEM_ACCESS_FLAGS_PROT_READ, 1)                                                            \
    X(CU_MEM_ACCESS_FLAGS_PROT_READWRITE, 3)

/* CUmemAllocationGranularity_flags */
#define MCS_CUDA_OWN_GRANULARITIES(X)                                                              \
    X(CU_MEM_ALLOC_GRANULARITY_MINIMUM, 0)                                                         \
    X(CU_MEM_ALLOC_GRANULARITY_RECOMMENDED, 1)

/* CUmemRangeHandleType */
#define MCS_CUDA_OWN_RANGE_HANDLES(X) X(CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 1)

/* CUmemcpySrcAccessOrder: of the sources of a batch of copies */
#define MCS_CUDA_OWN_SOURCE_ORDERS(X)                                                              \
    X(CU_MEMCPY_SRC_ACCESS_ORDER_INVALID, 0)                                                       \
    X(CU_MEMCPY_SRC_ACCESS_ORDER_STREAM, 1)                                                        \
    X(CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL, 2)                                               \
    X(CU_MEMCPY_SRC_ACCESS_ORDER_ANY, 3)

/* CUstream_flags, CUevent_flags, CUevent_wait_flags, CUstreamWaitValue_flags, CUstreamWriteValue_flags,
 * CUmemcpyFlags, CUipcMem_flags: of no type here, since they are passed as unsigned */
#define MCS_CUDA_OWN_FLAGS(X)                                                                      \
    X(CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER, 100)                                               \
    X(CU_STREAM_DEFAULT, 0)                                                                        \
    X(CU_STREAM_NON_BLOCKING, 1)                                                                   \
    X(CU_EVENT_DEFAULT, 0)                                                                         \
    X(CU_EVENT_BLOCKING_SYNC, 1)                                                                   \
    X(CU_EVENT_DISABLE_TIMING, 2)                                                                  \
    X(CU_EVENT_INTERPROCESS, 4)                                                                    \
    X(CU_EVENT_WAIT_DEFAULT, 0)                                                                    \
    X(CU_STREAM_WAIT_VALUE_GEQ, 0)                                                                 \
    X(CU_STREAM_WAIT_VALUE_EQ, 1)                                                                  \
    X(CU_STREAM_WAIT_VALUE_FLUSH, 1 << 30)                                                         \
    X(CU_STREAM_WRITE_VALUE_DEFAULT, 0)                                                            \
    X(CU_MEMCPY_FLAG_DEFAULT, 0)                                                                   \
    X(CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE, 1)                                               \
    X(CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS, 1)

/* Macros in the toolkit's header, too. */
#define MCS_CUDA_OWN_MACROS(X)                                                                     \
    X(CU_IPC_HANDLE_SIZE, 64)                                                                      \
    X(CU_MEMHOSTALLOC_PORTABLE, 1)                                                                 \
    X(CU_MEMHOSTALLOC_DEVICEMAP, 2)                                                                \
    X(CU_MEMHOSTREGISTER_PORTABLE, 1)                                                              \
    X(CU_MEMHOSTREGISTER_DEVICEMAP, 2)                                                             \
    X(CU_MEMHOSTREGISTER_READ_ONLY, 8)

#ifdef MCS_CUDA_OWN_COMPARE
#define MCS_CUDA_OWN_TYPE(name) own_##name
#else
#define MCS_CUDA_OWN_TYPE(name) name

#define MCS_CUDA_OWN_ENUM(name, value) name = (value),
typedef enum cudaError_enum { MCS_CUDA_OWN_RESULTS(MCS_CUDA_OWN_ENUM) } CUresult;
typedef enum CUdevice_attribute_enum {
    MCS_CUDA_OWN_DEVICE_ATTRIBUTES(MCS_CUDA_OWN_ENUM)
} CUdevice_attribute;
typedef enum CUpointer_attribute_enum {
    MCS_CUDA_OWN_POINTER_ATTRIBUTES(MCS_CUDA_OWN_ENUM)
} CUpointer_attribute;
typedef enum CUmemorytype_enum { MCS_CUDA_OWN_MEMORY_TYPES(MCS_CUDA_OWN_ENUM) } CUmemorytype;
typedef enum CUcomputemode_enum { MCS_CUDA_OWN_COMPUTE_MODES(MCS_CUDA_OWN_ENUM) } CUcomputemode;
typedef enum CUmemAllocationType_enum {
    MCS_CUDA_OWN_ALLOCATION_TYPES(MCS_CUDA_OWN_ENUM)
} CUmemAllocationType;
typedef enum CUmemAllocationHandleType_enum {
    MCS_CUDA_OWN_HANDLE_TYPES(MCS_CUDA_OWN_ENUM)
} CUmemAllocationHandleType;
typedef enum CUmemLocationType_enum {
    MCS_CUDA_OWN_LOCATION_TYPES(MCS_CUDA_OWN_ENUM)
} CUmemLocationType;
typedef enum CUmemAccess_flags_enum { MCS_CUDA_OWN_ACCESS(MCS_CUDA_OWN_ENUM) } CUmemAccess_flags;
typedef enum CUmemAllocationGranularity_flags_enum {
    MCS_CUDA_OWN_GRANULARITIES(MCS_CUDA_OWN_ENUM)
} CUmemAllocationGranularity_flags;
typedef enum CUmemRangeHandleType_enum {
    MCS_CUDA_OWN_RANGE_HANDLES(MCS_CUDA_OWN_ENUM)
} CUmemRangeHandleType;
typedef enum CUmemcpySrcAccessOrder_enum {
    MCS_CUDA_OWN_SOURCE_ORDERS(MCS_CUDA_OWN_ENUM)
} CUmemcpySrcAccessOrder;
enum { MCS_CUDA_OWN_FLAGS(MCS_CUDA_OWN_ENUM) };
#undef MCS_CUDA_OWN_ENUM

#define CU_IPC_HANDLE_SIZE 64
#define CU_MEMHOSTALLOC_PORTABLE 1
#define CU_MEMHOSTALLOC_DEVICEMAP 2
#define CU_MEMHOSTREGISTER_PORTABLE 1
#define CU_MEMHOSTREGISTER_DEVICEMAP 2
#define CU_MEMHOSTREGISTER_READ_ONLY 8

typedef struct CUctx_st *CUcontext;
typedef struct CUevent_st *CUevent;
typedef struct CUstream_st *CUstream;
typedef void (*CUhostFn)(void *context);
#endif

typedef unsigned long long MCS_CUDA_OWN_TYPE(CUdeviceptr);
typedef int MCS_CUDA_OWN_TYPE(CUdevice);
typedef unsigned long long MCS_CUDA_OWN_TYPE(CUmemGenericAllocationHandle);

typedef struct {
    char bytes[16];
} MCS_CUDA_OWN_TYPE(CUuuid);

typedef struct {
    char reserved[CU_IPC_HANDLE_SIZE];
} MCS_CUDA_OWN_TYPE(CUipcMemHandle);

typedef struct {
    CUmemLocationType type;
    int id;
} MCS_CUDA_OWN_TYPE(CUmemLocation);

typedef struct {
    CUmemAllocationType type;
    CUmemAllocationHandleType requestedHandleTypes;
    MCS_CUDA_OWN_TYPE(CUmemLocation) location;
    void *win32HandleMetaData;
    struct {
        unsigned char compressionType;
        unsigned char gpuDirectRDMACapable;
        unsigned short usage;
        unsigned char reserved[4];
    } allocFlags;
} MCS_CUDA_OWN_TYPE(CUmemAllocationProp);

typedef struct {
    MCS_CUDA_OWN_TYPE(CUmemLocation) location;
    CUmemAccess_flags flags;
} MCS_CUDA_OWN_TYPE(CUmemAccessDesc);

typedef struct {
    CUmemcpySrcAccessOrder srcAccessOrder;
    MCS_CUDA_OWN_TYPE(CUmemLocation) srcLocHint;
    MCS_CUDA_OWN_TYPE(CUmemLocation) dstLocHint;
    unsigned int flags;
} MCS_CUDA_OWN_TYPE(CUmemcpyAttributes);

#endif
