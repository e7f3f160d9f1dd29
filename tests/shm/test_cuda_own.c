/* SPDX-License-Identifier: Apache-2.0 */
/* Our own declarations of the CUDA driver API (shm/cuda_own.h) are the toolkit's, as far as they go. */
#include <criterion/criterion.h>

#include <stddef.h>
#include <stdio.h>

/* Both versions of a function are declared under their own names then. */
#define __CUDA_API_VERSION_INTERNAL
#if defined(__has_include)
#if __has_include(<cuda.h>)
#include <cuda.h>
#endif
#endif

#if defined(CUDA_VERSION) && CUDA_VERSION >= 13000

#define MCS_CUDA_OWN_COMPARE
#include "shm/cuda_own.h"

#include "shm/cuda.h"

#define SAME_VALUE(name, value)                                                                    \
    cr_expect_eq((long long)(name), (long long)(value), #name " is %lld, not %lld",                \
                 (long long)(name), (long long)(value));

Test(cuda_own, constants_have_the_values_of_the_toolkit)
{MCS_CUDA_OWN_RESULTS(SAME_VALUE) MCS_CUDA_OWN_DEVICE_ATTRIBUTES(SAME_VALUE)
     MCS_CUDA_OWN_POINTER_ATTRIBUTES(SAME_VALUE) MCS_CUDA_OWN_MEMORY_TYPES(SAME_VALUE)
         MCS_CUDA_OWN_COMPUTE_MODES(SAME_VALUE) MCS_CUDA_OWN_ALLOCATION_TYPES(SAME_VALUE)
             MCS_CUDA_OWN_HANDLE_TYPES(SAME_VALUE) MCS_CUDA_OWN_LOCATION_TYPES(SAME_VALUE)
                 MCS_CUDA_OWN_ACCESS(SAME_VALUE) MCS_CUDA_OWN_GRANULARITIES(SAME_VALUE)
                     MCS_CUDA_OWN_RANGE_HANDLES(SAME_VALUE) MCS_CUDA_OWN_SOURCE_ORDERS(SAME_VALUE)
                         MCS_CUDA_OWN_FLAGS(SAME_VALUE) MCS_CUDA_OWN_MACROS(SAME_VALUE)}

#define SAME_SIZE(type)                                                                            \
    cr_expect_eq(sizeof(type), sizeof(own_##type), #type " has %zu bytes, not %zu", sizeof(type),  \
                 sizeof(own_##type));
#define SAME_PLACE(type, field)                                                                    \
    cr_expect(offsetof(type, field) == offsetof(own_##type, field) &&                              \
                  sizeof(((type *)0)->field) == sizeof(((own_##type *)0)->field),                  \
              #type "." #field " lies elsewhere");

Test(cuda_own, types_have_the_layout_of_the_toolkit)
{SAME_SIZE(CUdeviceptr) SAME_SIZE(CUdevice) SAME_SIZE(CUmemGenericAllocationHandle) SAME_SIZE(
    CUuuid) SAME_PLACE(CUuuid, bytes) SAME_SIZE(CUipcMemHandle) SAME_PLACE(CUipcMemHandle, reserved)
     SAME_SIZE(CUmemLocation) SAME_PLACE(CUmemLocation, type) SAME_PLACE(CUmemLocation, id)
         SAME_SIZE(CUmemAllocationProp) SAME_PLACE(CUmemAllocationProp, type)
             SAME_PLACE(CUmemAllocationProp, requestedHandleTypes)
                 SAME_PLACE(CUmemAllocationProp, location) SAME_PLACE(CUmemAllocationProp,
                                                                      win32HandleMetaData)
                     SAME_PLACE(CUmemAllocationProp, allocFlags.compressionType)
                         SAME_PLACE(CUmemAllocationProp, allocFlags.gpuDirectRDMACapable)
                             SAME_PLACE(CUmemAllocationProp, allocFlags.usage)
                                 SAME_SIZE(CUmemAccessDesc) SAME_PLACE(CUmemAccessDesc, location)
                                     SAME_PLACE(CUmemAccessDesc, flags)
                                         SAME_SIZE(CUmemcpyAttributes)
                                             SAME_PLACE(CUmemcpyAttributes, srcAccessOrder)
                                                 SAME_PLACE(CUmemcpyAttributes, srcLocHint)
                                                     SAME_PLACE(CUmemcpyAttributes, dstLocHint)
                                                         SAME_PLACE(CUmemcpyAttributes, flags)}

#define SAME_FUNCTION(required, field, symbol, arguments)                                          \
    cr_expect(__builtin_types_compatible_p(__typeof__(&(symbol)),                                  \
                                           __typeof__(((struct mcs_cuda *)0)->field)),             \
              #symbol " has other arguments");

Test(cuda_own, functions_take_what_those_of_the_toolkit_take)
{MCS_CUDA_FUNCTIONS(SAME_FUNCTION)}

#else

Test(cuda_own, compared_with_the_toolkit)
{
    cr_skip_test("no cuda.h of CUDA 13.0 or later here to compare with");
}

#endif
