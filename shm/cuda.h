/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NVIDIA's driver, libcuda.so.1, loaded when it is first asked for and never linked: one build serves hosts with and
 * without a GPU.  Agent, library and tools each load it for themselves, and call it only through this table.
 *
 * Types and constants are those of the CUDA driver API ("CUDA Driver API Reference Manual", 13.0), from the toolkit's
 * header where there is one, else from our own minimal declarations, which tests/shm/test_cuda_own.c compares with it.
 *
 * No thread keeps a context current beyond one call of ours: mcs_cuda_enter() pushes a device's primary context and
 * mcs_cuda_leave() pops it, so a thread of the caller's finds what it had.
 */
#ifndef MCS_CUDA_H
#define MCS_CUDA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if !defined(MCS_CUDA_OWN) && defined(__has_include)
#if __has_include(<cuda.h>)
#include <cuda.h>
#endif
#endif
#ifndef CUDA_VERSION
#include "cuda_own.h"
#elif CUDA_VERSION < 13000
#error                                                                                             \
    "this toolkit's cuda.h is older than CUDA 13.0: compile with -DMCS_CUDA_OWN, as the Makefile does"
#endif

#define MCS_CUDA_LIBRARY "libcuda.so.1"
/* Drivers before this have no cuMemImportFromShareableHandle for POSIX descriptors of all kinds that we meet, and no
 * stream memory operations without a module option: CUDA 12.0, R525. */
#define MCS_CUDA_VERSION_MIN 12000

/*
 * X(required, field, symbol, arguments): every entry that we call, by the name that the library exports, so by its
 * version.  Not required ones are NULL where the driver has none.
 */
#define MCS_CUDA_FUNCTIONS(X)                                                                      \
    X(1, init, cuInit, (unsigned flags))                                                           \
    X(1, driver_get_version, cuDriverGetVersion, (int *version))                                   \
    X(1, get_error_name, cuGetErrorName, (CUresult e, const char **out))                           \
    X(1, get_error_string, cuGetErrorString, (CUresult e, const char **out))                       \
    X(1, device_get_count, cuDeviceGetCount, (int *count))                                         \
    X(1, device_get, cuDeviceGet, (CUdevice * d, int ordinal))                                     \
    X(1, device_get_name, cuDeviceGetName, (char *name, int size, CUdevice d))                     \
    X(1, device_get_uuid, cuDeviceGetUuid_v2, (CUuuid * uuid, CUdevice d))                         \
    X(1, device_total_mem, cuDeviceTotalMem_v2, (size_t * bytes, CUdevice d))                      \
    X(1, device_get_attribute, cuDeviceGetAttribute,                                               \
      (int *value, CUdevice_attribute a, CUdevice d))                                              \
    X(1, device_get_pci_bus_id, cuDeviceGetPCIBusId, (char *id, int size, CUdevice d))             \
    X(1, device_can_access_peer, cuDeviceCanAccessPeer, (int *can, CUdevice d, CUdevice peer))     \
    X(1, primary_retain, cuDevicePrimaryCtxRetain, (CUcontext * c, CUdevice d))                    \
    X(1, primary_release, cuDevicePrimaryCtxRelease_v2, (CUdevice d))                              \
    X(1, ctx_push, cuCtxPushCurrent_v2, (CUcontext c))                                             \
    X(1, ctx_pop, cuCtxPopCurrent_v2, (CUcontext * c))                                             \
    X(1, ctx_get_current, cuCtxGetCurrent, (CUcontext * c))                                        \
    X(1, ctx_get_device, cuCtxGetDevice, (CUdevice * d))                                           \
    X(1, ctx_enable_peer, cuCtxEnablePeerAccess, (CUcontext peer, unsigned flags))                 \
    X(1, mem_get_info, cuMemGetInfo_v2, (size_t * free, size_t * total))                           \
    X(1, mem_granularity, cuMemGetAllocationGranularity,                                           \
      (size_t * out, const CUmemAllocationProp *p, CUmemAllocationGranularity_flags option))       \
    X(1, mem_create, cuMemCreate,                                                                  \
      (CUmemGenericAllocationHandle * h, size_t size, const CUmemAllocationProp *p,                \
       unsigned long long flags))                                                                  \
    X(1, mem_release, cuMemRelease, (CUmemGenericAllocationHandle h))                              \
    X(1, mem_reserve, cuMemAddressReserve,                                                         \
      (CUdeviceptr * at, size_t size, size_t align, CUdeviceptr hint, unsigned long long flags))   \
    X(1, mem_address_free, cuMemAddressFree, (CUdeviceptr at, size_t size))                        \
    X(1, mem_map, cuMemMap,                                                                        \
      (CUdeviceptr at, size_t size, size_t offset, CUmemGenericAllocationHandle h,                 \
       unsigned long long flags))                                                                  \
    X(1, mem_unmap, cuMemUnmap, (CUdeviceptr at, size_t size))                                     \
    X(1, mem_set_access, cuMemSetAccess,                                                           \
      (CUdeviceptr at, size_t size, const CUmemAccessDesc *d, size_t count))                       \
    X(1, mem_export, cuMemExportToShareableHandle,                                                 \
      (void *out, CUmemGenericAllocationHandle h, CUmemAllocationHandleType type,                  \
       unsigned long long flags))                                                                  \
    X(1, mem_import, cuMemImportFromShareableHandle,                                               \
      (CUmemGenericAllocationHandle * h, void *os_handle, CUmemAllocationHandleType type))         \
    X(1, mem_retain, cuMemRetainAllocationHandle, (CUmemGenericAllocationHandle * h, void *at))    \
    X(1, mem_properties, cuMemGetAllocationPropertiesFromHandle,                                   \
      (CUmemAllocationProp * p, CUmemGenericAllocationHandle h))                                   \
    X(1, mem_range, cuMemGetAddressRange_v2, (CUdeviceptr * base, size_t * size, CUdeviceptr at))  \
    X(0, mem_range_handle, cuMemGetHandleForAddressRange,                                          \
      (void *out, CUdeviceptr at, size_t size, CUmemRangeHandleType type,                          \
       unsigned long long flags))                                                                  \
    X(1, pointer_attribute, cuPointerGetAttribute,                                                 \
      (void *out, CUpointer_attribute a, CUdeviceptr at))                                          \
    X(1, mem_alloc, cuMemAlloc_v2, (CUdeviceptr * at, size_t size))                                \
    X(1, mem_free, cuMemFree_v2, (CUdeviceptr at))                                                 \
    X(1, host_alloc, cuMemHostAlloc, (void **out, size_t size, unsigned flags))                    \
    X(1, host_free, cuMemFreeHost, (void *at))                                                     \
    X(1, host_register, cuMemHostRegister_v2, (void *at, size_t size, unsigned flags))             \
    X(1, host_unregister, cuMemHostUnregister, (void *at))                                         \
    X(1, host_device_pointer, cuMemHostGetDevicePointer_v2,                                        \
      (CUdeviceptr * out, void *at, unsigned flags))                                               \
    X(1, ipc_get, cuIpcGetMemHandle, (CUipcMemHandle * out, CUdeviceptr at))                       \
    X(1, ipc_open, cuIpcOpenMemHandle_v2, (CUdeviceptr * at, CUipcMemHandle h, unsigned flags))    \
    X(1, ipc_close, cuIpcCloseMemHandle, (CUdeviceptr at))                                         \
    X(1, stream_create, cuStreamCreate, (CUstream * s, unsigned flags))                            \
    X(1, stream_destroy, cuStreamDestroy_v2, (CUstream s))                                         \
    X(1, stream_synchronize, cuStreamSynchronize, (CUstream s))                                    \
    X(1, stream_query, cuStreamQuery, (CUstream s))                                                \
    X(1, stream_wait_event, cuStreamWaitEvent, (CUstream s, CUevent e, unsigned flags))            \
    X(1, stream_write32, cuStreamWriteValue32_v2,                                                  \
      (CUstream s, CUdeviceptr at, uint32_t value, unsigned flags))                                \
    X(1, stream_wait32, cuStreamWaitValue32_v2,                                                    \
      (CUstream s, CUdeviceptr at, uint32_t value, unsigned flags))                                \
    X(1, launch_host_func, cuLaunchHostFunc, (CUstream s, CUhostFn f, void *context))              \
    X(1, event_create, cuEventCreate, (CUevent * e, unsigned flags))                               \
    X(1, event_destroy, cuEventDestroy_v2, (CUevent e))                                            \
    X(1, event_record, cuEventRecord, (CUevent e, CUstream s))                                     \
    X(1, event_query, cuEventQuery, (CUevent e))                                                   \
    X(1, copy, cuMemcpyAsync, (CUdeviceptr to, CUdeviceptr from, size_t size, CUstream s))         \
    X(1, copy_peer, cuMemcpyPeerAsync,                                                             \
      (CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context,             \
       size_t size, CUstream s))                                                                   \
    X(0, copy_batch, cuMemcpyBatchAsync_v2,                                                        \
      (CUdeviceptr * to, CUdeviceptr * from, size_t * sizes, size_t count,                         \
       CUmemcpyAttributes * attributes, size_t * first, size_t nattributes, CUstream s))           \
    X(0, copy_batch_12, cuMemcpyBatchAsync,                                                        \
      (CUdeviceptr * to, CUdeviceptr * from, size_t * sizes, size_t count,                         \
       CUmemcpyAttributes * attributes, size_t * first, size_t nattributes, size_t * failed,       \
       CUstream s))                                                                                \
    X(1, copy_to_host, cuMemcpyDtoH_v2, (void *to, CUdeviceptr from, size_t size))                 \
    X(1, copy_from_host, cuMemcpyHtoD_v2, (CUdeviceptr to, const void *from, size_t size))         \
    X(1, fill8, cuMemsetD8Async, (CUdeviceptr at, unsigned char value, size_t count, CUstream s))  \
    X(1, fill32, cuMemsetD32Async, (CUdeviceptr at, unsigned value, size_t count, CUstream s))

struct mcs_cuda {
    void *library;
    int version; /* of the driver, as cuDriverGetVersion() says: 13000 is 13.0 */
#define MCS_CUDA_FIELD(required, field, symbol, arguments) CUresult(*field) arguments;
    MCS_CUDA_FUNCTIONS(MCS_CUDA_FIELD)
#undef MCS_CUDA_FIELD
};

/* A device's UUID: what devices are called in every message, file and log, since ordinals depend on CUDA_VISIBLE_DEVICES. */
struct mcs_gpu_id {
    uint8_t bytes[16];
};
/* Is a device of that name (cuDeviceGetName) a MIG instance? "NVIDIA A100-SXM4-40GB MIG 1g.5gb": no attribute tells. */
bool mcs_gpu_is_instance(const char *name);
#define MCS_GPU_ID_TEXT 41u /* "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx" with its NUL */
/* As CUDA_VISIBLE_DEVICES has it: "MIG-..." where the device's name says so; NULL: not known. */
void mcs_gpu_id_print(const struct mcs_gpu_id *id, const char *name, char text[MCS_GPU_ID_TEXT]);
/* "GPU-..." or "MIG-...", or without that; 0 or -EINVAL. */
int mcs_gpu_id_parse(const char *text, struct mcs_gpu_id *out);

/*
 * Loads the driver and initialises it, once a process: later calls give the same table, or the same error. But for EPROTO an
 * error is no longer believed after two seconds: what was not there yet is tried again by who calls then. Any thread.  May
 * take seconds, and fork() after it is the caller's risk, as always with CUDA.  why: a sentence with the remedy.
 * -ENOENT: no such library; -ENODEV: it has no device; -EPROTO: a function is missing, or too old (its version is
 * named); -EIO: cuInit() failed (the driver's word for it is named).
 */
int mcs_cuda_load(const struct mcs_cuda **out, char *why, size_t why_size);

/* "CUDA_ERROR_OUT_OF_MEMORY"; never NULL, static. */
const char *mcs_cuda_error(const struct mcs_cuda *d, CUresult e);
/* Whether the process's contexts on the device are broken for good after this ("sticky"). */
bool mcs_cuda_is_lost(CUresult e);

/* Makes the device's primary context current on this thread, keeping what was, for calls until the matching leave. */
CUresult mcs_cuda_enter(const struct mcs_cuda *d, CUcontext primary);
void mcs_cuda_leave(const struct mcs_cuda *d);

#endif
