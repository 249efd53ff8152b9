/* SPDX-License-Identifier: Apache-2.0 */
/* OpenCL's functions, found when the library is loaded, and the names of its errors. */
#ifndef TP_OPENCL_DRIVER_H
#define TP_OPENCL_DRIVER_H

#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>

#include "tileproof_opencl.h"

/* Every function that is called: tests/opencl/shim.c makes each fail in turn. */
#define TP__CL_CALLS(CALL)                                                                                                       \
    CALL(clGetPlatformIDs)                                                                                                       \
    CALL(clGetPlatformInfo)                                                                                                      \
    CALL(clGetDeviceIDs)                                                                                                         \
    CALL(clGetDeviceInfo)                                                                                                        \
    CALL(clCreateContext)                                                                                                        \
    CALL(clRetainContext)                                                                                                        \
    CALL(clReleaseContext)                                                                                                       \
    CALL(clGetContextInfo)                                                                                                       \
    CALL(clCreateCommandQueue)                                                                                                   \
    CALL(clReleaseCommandQueue)                                                                                                  \
    CALL(clGetCommandQueueInfo)                                                                                                  \
    CALL(clCreateBuffer)                                                                                                         \
    CALL(clRetainMemObject)                                                                                                      \
    CALL(clReleaseMemObject)                                                                                                     \
    CALL(clGetMemObjectInfo)                                                                                                     \
    CALL(clCreateProgramWithSource)                                                                                              \
    CALL(clCreateProgramWithBinary)                                                                                              \
    CALL(clBuildProgram)                                                                                                         \
    CALL(clGetProgramInfo)                                                                                                       \
    CALL(clGetProgramBuildInfo)                                                                                                  \
    CALL(clReleaseProgram)                                                                                                       \
    CALL(clCreateKernel)                                                                                                         \
    CALL(clSetKernelArg)                                                                                                         \
    CALL(clGetKernelWorkGroupInfo)                                                                                               \
    CALL(clReleaseKernel)                                                                                                        \
    CALL(clEnqueueNDRangeKernel)                                                                                                 \
    CALL(clEnqueueReadBuffer)                                                                                                    \
    CALL(clEnqueueWriteBuffer)                                                                                                   \
    CALL(clEnqueueCopyBuffer)                                                                                                    \
    CALL(clSetEventCallback)                                                                                                     \
    CALL(clGetEventProfilingInfo)                                                                                                \
    CALL(clWaitForEvents)                                                                                                        \
    CALL(clRetainEvent)                                                                                                          \
    CALL(clReleaseEvent)                                                                                                         \
    CALL(clFlush)                                                                                                                \
    CALL(clFinish)

typedef struct tp__ocl_driver {
    void *library;
#define CALL(name) __typeof__(&name) name;
    TP__CL_CALLS(CALL)
#undef CALL
} tp__ocl_driver;

/* 0, or -1 with why: "libOpenCL.so.1 not found". It is never unloaded: drivers leave threads behind. */
int tp__ocl_driver_open(tp__ocl_driver *driver, const char *library, char *why, size_t size);

/* FNV-1a of some bytes, joined to that of others; 0: of none. */
uint64_t tp__ocl_hash(const void *bytes, size_t size, uint64_t hash);

/* "CL_OUT_OF_RESOURCES" */
const char *tp__ocl_name(cl_int code);

/* Sets the error's text; returns the status. */
tp_status tp__ocl_fail(tp_error *error, tp_status status, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* Of a driver's code: TP_OK for CL_SUCCESS, TP_NO_MEMORY or TP_DEVICE_FAILED with call and code. */
tp_status tp__ocl_status(tp_error *error, const char *call, cl_int code);

#define TP__TRY(expression)                                                                                                      \
    do {                                                                                                                         \
        tp_status tried_ = (expression);                                                                                         \
        if (tried_ != TP_OK) return tried_;                                                                                      \
    } while (0)
#define TP__CL_TRY(error, call, code) TP__TRY(tp__ocl_status((error), (call), (code)))

#endif
