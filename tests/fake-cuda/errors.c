/* SPDX-License-Identifier: Apache-2.0 */
/* Names of the driver's results: "CUDA Driver API Reference Manual", 13.0, CUresult. */
#include "inside.h"

#include <stdlib.h>
#include <string.h>

#define RESULTS(X)                                                                                 \
    X(CUDA_SUCCESS)                                                                                \
    X(CUDA_ERROR_INVALID_VALUE)                                                                    \
    X(CUDA_ERROR_OUT_OF_MEMORY)                                                                    \
    X(CUDA_ERROR_NOT_INITIALIZED)                                                                  \
    X(CUDA_ERROR_DEINITIALIZED)                                                                    \
    X(CUDA_ERROR_STUB_LIBRARY)                                                                     \
    X(CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER)                                                       \
    X(CUDA_ERROR_DEVICE_UNAVAILABLE)                                                               \
    X(CUDA_ERROR_NO_DEVICE)                                                                        \
    X(CUDA_ERROR_INVALID_DEVICE)                                                                   \
    X(CUDA_ERROR_INVALID_CONTEXT)                                                                  \
    X(CUDA_ERROR_MAP_FAILED)                                                                       \
    X(CUDA_ERROR_UNMAP_FAILED)                                                                     \
    X(CUDA_ERROR_ALREADY_MAPPED)                                                                   \
    X(CUDA_ERROR_ALREADY_ACQUIRED)                                                                 \
    X(CUDA_ERROR_NOT_MAPPED)                                                                       \
    X(CUDA_ERROR_ECC_UNCORRECTABLE)                                                                \
    X(CUDA_ERROR_CONTEXT_ALREADY_IN_USE)                                                           \
    X(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED)                                                          \
    X(CUDA_ERROR_NVLINK_UNCORRECTABLE)                                                             \
    X(CUDA_ERROR_CONTAINED)                                                                        \
    X(CUDA_ERROR_OPERATING_SYSTEM)                                                                 \
    X(CUDA_ERROR_INVALID_HANDLE)                                                                   \
    X(CUDA_ERROR_ILLEGAL_STATE)                                                                    \
    X(CUDA_ERROR_NOT_FOUND)                                                                        \
    X(CUDA_ERROR_NOT_READY)                                                                        \
    X(CUDA_ERROR_ILLEGAL_ADDRESS)                                                                  \
    X(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES)                                                          \
    X(CUDA_ERROR_LAUNCH_TIMEOUT)                                                                   \
    X(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED)                                                      \
    X(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED)                                                          \
    X(CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE)                                                           \
    X(CUDA_ERROR_CONTEXT_IS_DESTROYED)                                                             \
    X(CUDA_ERROR_ASSERT)                                                                           \
    X(CUDA_ERROR_TOO_MANY_PEERS)                                                                   \
    X(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED)                                                   \
    X(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED)                                                       \
    X(CUDA_ERROR_HARDWARE_STACK_ERROR)                                                             \
    X(CUDA_ERROR_ILLEGAL_INSTRUCTION)                                                              \
    X(CUDA_ERROR_MISALIGNED_ADDRESS)                                                               \
    X(CUDA_ERROR_INVALID_ADDRESS_SPACE)                                                            \
    X(CUDA_ERROR_INVALID_PC)                                                                       \
    X(CUDA_ERROR_LAUNCH_FAILED)                                                                    \
    X(CUDA_ERROR_TENSOR_MEMORY_LEAK)                                                               \
    X(CUDA_ERROR_NOT_PERMITTED)                                                                    \
    X(CUDA_ERROR_NOT_SUPPORTED)                                                                    \
    X(CUDA_ERROR_SYSTEM_NOT_READY)                                                                 \
    X(CUDA_ERROR_SYSTEM_DRIVER_MISMATCH)                                                           \
    X(CUDA_ERROR_MPS_CLIENT_TERMINATED)                                                            \
    X(CUDA_ERROR_EXTERNAL_DEVICE)                                                                  \
    X(CUDA_ERROR_UNKNOWN)

static const struct {
    CUresult value;
    const char *name;
} results[] = {
#define RESULT(name) {name, #name},
    RESULTS(RESULT)
#undef RESULT
};

const char *fake_error_name(CUresult e)
{
    for (size_t i = 0; i < sizeof(results) / sizeof(results[0]); i++) {
        if (results[i].value == e)
            return results[i].name;
    }
    return NULL;
}

bool fake_error_parse(const char *text, size_t length, CUresult *out)
{
    char copy[64];
    char *end;

    if (length == 0 || length >= sizeof(copy))
        return false;
    memcpy(copy, text, length);
    copy[length] = '\0';
    for (size_t i = 0; i < sizeof(results) / sizeof(results[0]); i++) {
        if (strcmp(results[i].name, copy) == 0) {
            *out = results[i].value;
            return true;
        }
    }
    *out = (CUresult)strtoul(copy, &end, 10);
    return *end == '\0';
}

CUresult fake_cuGetErrorName(CUresult e, const char **out)
{
    CUresult res = fake_enter(FAKE_cuGetErrorName, FAKE_ANY);

    if (res == CUDA_SUCCESS) {
        *out = fake_error_name(e);
        res = fake_leave(*out != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
    }
    return res;
}

CUresult fake_cuGetErrorString(CUresult e, const char **out)
{
    CUresult res = fake_enter(FAKE_cuGetErrorString, FAKE_ANY);

    if (res == CUDA_SUCCESS) {
        *out = fake_error_name(e) != NULL ? "as the double of the driver says" : NULL;
        res = fake_leave(*out != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
    }
    return res;
}
