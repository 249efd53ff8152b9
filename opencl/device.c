/* SPDX-License-Identifier: Apache-2.0 */
/* Which device, and whether kernels may run there. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "opencl.h"

enum { PLATFORMS = 16, DEVICES = 64 };

static void text_of(const tp__ocl_driver *d, cl_device_id device, cl_device_info what, char *text, size_t size) {
    char said[1024] = "";
    if (d->clGetDeviceInfo(device, what, sizeof said - 1, said, NULL) != CL_SUCCESS) said[0] = '\0';
    snprintf(text, size, "%s", said[0] != '\0' ? said : "unknown");
}

static uint64_t number_of(const tp__ocl_driver *d, cl_device_id device, cl_device_info what, size_t bytes) {
    uint64_t value = 0; /* little-endian, as every host of this library */
    return d->clGetDeviceInfo(device, what, bytes, &value, NULL) == CL_SUCCESS ? value : 0;
}

/* Devices of every platform, in the loader's order. Returns a code where there are none. */
static cl_int list_devices(const tp__ocl_driver *d, cl_device_id *devices, int *count) {
    cl_platform_id platforms[PLATFORMS];
    cl_uint found = 0;
    *count = 0;
    cl_int code = d->clGetPlatformIDs(PLATFORMS, platforms, &found);
    if (code != CL_SUCCESS) return code;
    for (cl_uint i = 0; i < found && i < PLATFORMS && *count < DEVICES; i++) {
        cl_uint here = 0, room = (cl_uint)(DEVICES - *count);
        cl_int said = d->clGetDeviceIDs(platforms[i], CL_DEVICE_TYPE_ALL, room, devices + *count, &here);
        if (said == CL_SUCCESS)
            *count += (int)(here < room ? here : room);
        else
            code = said;
    }
    return *count > 0 ? CL_SUCCESS : code != CL_SUCCESS ? code : CL_DEVICE_NOT_FOUND;
}

/* The first thing that the kernels need and the device lacks. */
static void judge(tp_opencl *cl) {
    const tp__ocl_driver *d = &cl->cl;
    char profile[64], version[128];
    int major = 0, minor = 0;
    text_of(d, cl->device, CL_DEVICE_PROFILE, profile, sizeof profile);
    text_of(d, cl->device, CL_DEVICE_VERSION, version, sizeof version);
    sscanf(version, "OpenCL %d.%d", &major, &minor);
    uint64_t floats = number_of(d, cl->device, CL_DEVICE_SINGLE_FP_CONFIG, sizeof(cl_device_fp_config));
    char *why = cl->why;
    size_t size = sizeof cl->why;
    if (!number_of(d, cl->device, CL_DEVICE_AVAILABLE, sizeof(cl_bool)))
        snprintf(why, size, "%.40s is not available, says its driver", cl->name);
    else if (major * 10 + minor < 12)
        snprintf(why, size, "needs OpenCL 1.2, device has '%.40s'", version);
    else if (strcmp(profile, "FULL_PROFILE") != 0)
        snprintf(why, size, "needs FULL_PROFILE, device has %.40s", profile);
    else if (!number_of(d, cl->device, CL_DEVICE_COMPILER_AVAILABLE, sizeof(cl_bool)))
        snprintf(why, size, "the driver of %.40s has no compiler", cl->name);
    else if (!number_of(d, cl->device, CL_DEVICE_ENDIAN_LITTLE, sizeof(cl_bool)))
        snprintf(why, size, "%.40s is big-endian", cl->name);
    else if ((floats & (CL_FP_INF_NAN | CL_FP_ROUND_TO_NEAREST)) != (CL_FP_INF_NAN | CL_FP_ROUND_TO_NEAREST))
        snprintf(why, size, "needs NaN, infinity and rounding to nearest, which %.40s lacks", cl->name);
    else if (cl->info.work_group < TP__LANES)
        snprintf(why, size, "needs work-groups of %d, device gives %lld", TP__LANES, (long long)cl->info.work_group);
}

static uint64_t hash_of(const char *text, uint64_t hash) {
    return tp__ocl_hash(text, strlen(text), hash);
}

/* A simulator says that it is everything: only what is no CPU is a GPU. */
static const char *kind_of(cl_device_type type) {
    return type & CL_DEVICE_TYPE_CPU           ? "cpu"
           : type & CL_DEVICE_TYPE_GPU         ? "gpu"
           : type & CL_DEVICE_TYPE_ACCELERATOR ? "accelerator"
                                               : "custom";
}

static void describe(tp_opencl *cl) {
    const tp__ocl_driver *d = &cl->cl;
    cl_platform_id platform = NULL;
    text_of(d, cl->device, CL_DEVICE_NAME, cl->name, sizeof cl->name);
    text_of(d, cl->device, CL_DRIVER_VERSION, cl->version, sizeof cl->version);
    snprintf(cl->platform, sizeof cl->platform, "unknown");
    char said[1024] = "";
    if (d->clGetDeviceInfo(cl->device, CL_DEVICE_PLATFORM, sizeof platform, &platform, NULL) == CL_SUCCESS &&
        d->clGetPlatformInfo(platform, CL_PLATFORM_NAME, sizeof said - 1, said, NULL) == CL_SUCCESS)
        snprintf(cl->platform, sizeof cl->platform, "%s", said);
    cl->info.memory_bytes = (int64_t)number_of(d, cl->device, CL_DEVICE_GLOBAL_MEM_SIZE, sizeof(cl_ulong));
    cl->info.allocation_bytes = (int64_t)number_of(d, cl->device, CL_DEVICE_MAX_MEM_ALLOC_SIZE, sizeof(cl_ulong));
    cl->info.local_bytes = (int64_t)number_of(d, cl->device, CL_DEVICE_LOCAL_MEM_SIZE, sizeof(cl_ulong));
    cl->info.work_group = (int64_t)number_of(d, cl->device, CL_DEVICE_MAX_WORK_GROUP_SIZE, sizeof(size_t));
    cl->info.units = (int64_t)number_of(d, cl->device, CL_DEVICE_MAX_COMPUTE_UNITS, sizeof(cl_uint));
    cl->info.kind = kind_of(number_of(d, cl->device, CL_DEVICE_TYPE, sizeof(cl_device_type)));
    /* of what decides a kernel's bits beside its source */
    uint64_t hash = hash_of(cl->version, hash_of(cl->name, hash_of(cl->platform, 0)));
    snprintf(cl->numerics, sizeof cl->numerics, "%016llx", (unsigned long long)hash);
}

/* The caller's context and device, which must belong together. */
static tp_status take_context(tp_opencl *cl, const tp_opencl_options *options, tp_error *error) {
    cl_device_id devices[DEVICES];
    size_t bytes = 0;
    TP__CL_TRY(error, "clGetContextInfo",
               cl->cl.clGetContextInfo(options->context, CL_CONTEXT_DEVICES, sizeof devices, devices, &bytes));
    int count = (int)(bytes / sizeof *devices);
    cl->device_count = count;
    for (int i = 0; i < count; i++)
        if (options->device == NULL || options->device == devices[i]) {
            cl->device = devices[i];
            TP__CL_TRY(error, "clRetainContext", cl->cl.clRetainContext(options->context));
            cl->context = options->context;
            return TP_OK;
        }
    return tp__ocl_fail(error, TP_INVALID, "device is %p: it must be one of the context's %d", options->device, count);
}

static tp_status choose(tp_opencl *cl, const tp_opencl_options *options, tp_error *error) {
    cl_device_id devices[DEVICES];
    if (options->context != NULL) return take_context(cl, options, error);
    cl_int code = list_devices(&cl->cl, devices, &cl->device_count);
    if (cl->device_count == 0) {
        snprintf(cl->why, sizeof cl->why, "no OpenCL device: %s (%d)", tp__ocl_name(code), code);
        return TP_OK;
    }
    if (options->index >= cl->device_count) {
        snprintf(cl->why, sizeof cl->why, "device %d asked for, the loader shows %d", options->index, cl->device_count);
        return TP_OK;
    }
    cl->device = devices[options->index];
    return TP_OK;
}

tp_status tp__ocl_device_open(tp_opencl *cl, const tp_opencl_options *options, tp_error *error) {
    const tp__ocl_driver *d = &cl->cl;
    if (tp__ocl_driver_open(&cl->cl, options->library, cl->why, sizeof cl->why) != 0) return TP_OK;
    TP__TRY(choose(cl, options, error));
    if (cl->device == NULL) return TP_OK;
    describe(cl);
    judge(cl);
    if (cl->why[0] != '\0') return TP_OK;
    cl_int code = CL_SUCCESS;
    if (cl->context == NULL) {
        cl->context = d->clCreateContext(NULL, 1, &cl->device, NULL, NULL, &code);
        if (code != CL_SUCCESS) {
            cl->context = NULL;
            snprintf(cl->why, sizeof cl->why, "clCreateContext gave %s (%d)", tp__ocl_name(code), code);
            return TP_OK;
        }
    }
    cl->queue = d->clCreateCommandQueue(cl->context, cl->device, CL_QUEUE_PROFILING_ENABLE, &code);
    if (code != CL_SUCCESS) {
        cl->queue = NULL;
        snprintf(cl->why, sizeof cl->why, "clCreateCommandQueue gave %s (%d)", tp__ocl_name(code), code);
    }
    return TP_OK;
}
