/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "opencl/shim.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>

#define EXPORT __attribute__((visibility("default")))
enum { FAILURE = CL_OUT_OF_RESOURCES, NAMES = 64 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    char name[40];
    int calls, fail;
} counts[NAMES];
static long knobs[SHIM_KNOBS];
static int has_failed;
static atomic_int live_objects;

static int slot(const char *name) {
    int i = 0;
    while (i < NAMES - 1 && counts[i].name[0] != '\0' && strcmp(counts[i].name, name) != 0) i++;
    strncpy(counts[i].name, name, sizeof counts[i].name - 1);
    return i;
}

/* Counts a call; is it to fail? */
static int fails(const char *name) {
    pthread_mutex_lock(&lock);
    int i = slot(name);
    counts[i].calls++;
    int now = counts[i].fail > 0 && --counts[i].fail == 0;
    now |= knobs[SHIM_GONE] && strncmp(name, "clRe", 4) != 0; /* objects of the host can be retained and released */
    has_failed |= now;
    pthread_mutex_unlock(&lock);
    return now;
}

static long knob(shim_knob which) {
    pthread_mutex_lock(&lock);
    long value = knobs[which];
    pthread_mutex_unlock(&lock);
    return value;
}

static void fail(const char *name, int n) {
    pthread_mutex_lock(&lock);
    counts[slot(name)].fail = n;
    pthread_mutex_unlock(&lock);
}
static void set(shim_knob which, long value) {
    pthread_mutex_lock(&lock);
    knobs[which] = value;
    pthread_mutex_unlock(&lock);
}
static void reset(void) {
    pthread_mutex_lock(&lock);
    memset(counts, 0, sizeof counts);
    memset(knobs, 0, sizeof knobs);
    has_failed = 0;
    pthread_mutex_unlock(&lock);
}
static int calls(const char *name) {
    pthread_mutex_lock(&lock);
    int n = counts[slot(name)].calls;
    pthread_mutex_unlock(&lock);
    return n;
}
static int failed(void) {
    pthread_mutex_lock(&lock);
    int now = has_failed;
    pthread_mutex_unlock(&lock);
    return now;
}
static int live(void) {
    return live_objects;
}

EXPORT const shim *shim_of(void);
EXPORT const shim *shim_of(void) {
    static const shim here = {fail, set, reset, calls, failed, live};
    return &here;
}

static void *real(const char *name) {
    static void *library;
    if (library == NULL) { /* OPENCL_REAL: where this one stands in the loader's place */
        const char *file = getenv("OPENCL_REAL");
        library = dlopen(file != NULL ? file : "libOpenCL.so.1", RTLD_NOW | RTLD_LOCAL);
    }
    void *found = library != NULL ? dlsym(library, name) : NULL;
    if (found == NULL) abort();
    return found;
}
#define REAL(name) ((__typeof__(&name))(uintptr_t)real(#name))

/* Functions that return a code; change: of the number of live objects, where it is passed on. */
#define CODE(name, change, parameters, arguments)                                                                                \
    EXPORT cl_int CL_API_CALL name parameters {                                                                                  \
        if (fails(#name)) return FAILURE;                                                                                        \
        cl_int code = REAL(name) arguments;                                                                                      \
        if (code == CL_SUCCESS) live_objects += (change);                                                                        \
        return code;                                                                                                             \
    }
/* Releasing happens all the same: whoever is told that it failed can do nothing about it. */
#define RELEASE(name, parameters, arguments)                                                                                     \
    EXPORT cl_int CL_API_CALL name parameters {                                                                                  \
        int fail_now = fails(#name);                                                                                             \
        cl_int code = REAL(name) arguments;                                                                                      \
        if (code == CL_SUCCESS) live_objects--;                                                                                  \
        return fail_now ? FAILURE : code;                                                                                        \
    }
/* Functions that return a handle and give a code by their last argument. */
#define MAKE(type, name, parameters, arguments)                                                                                  \
    EXPORT type CL_API_CALL name parameters {                                                                                    \
        if (fails(#name)) {                                                                                                      \
            if (code != NULL) *code = FAILURE;                                                                                   \
            return NULL;                                                                                                         \
        }                                                                                                                        \
        type made = REAL(name) arguments;                                                                                        \
        if (made != NULL) live_objects++;                                                                                        \
        return made;                                                                                                             \
    }

typedef size_t sz;
EXPORT cl_int CL_API_CALL clGetPlatformIDs(cl_uint n, cl_platform_id *to, cl_uint *count) {
    if (fails("clGetPlatformIDs")) return FAILURE;
    if (knob(SHIM_NO_DEVICE)) return -1001;
    return REAL(clGetPlatformIDs)(n, to, count);
}
EXPORT cl_int CL_API_CALL clGetDeviceInfo(cl_device_id d, cl_device_info what, sz bytes, void *to, sz *size) {
    if (fails("clGetDeviceInfo")) return FAILURE;
    long local = knob(SHIM_LOCAL_BYTES);
    if (what == CL_DEVICE_TYPE && getenv("OPENCL_GPU") != NULL) { /* for labels: nothing else of it is a GPU's */
        cl_device_type said = CL_DEVICE_TYPE_GPU;
        memcpy(to, &said, sizeof said);
        return CL_SUCCESS;
    }
    if (what != CL_DEVICE_LOCAL_MEM_SIZE || local == 0) return REAL(clGetDeviceInfo)(d, what, bytes, to, size);
    cl_ulong said = (cl_ulong)local;
    memcpy(to, &said, sizeof said);
    return CL_SUCCESS;
}
CODE(clGetPlatformInfo, 0, (cl_platform_id p, cl_platform_info what, sz bytes, void *to, sz *size), (p, what, bytes, to, size))
CODE(clGetDeviceIDs, 0, (cl_platform_id p, cl_device_type t, cl_uint n, cl_device_id *to, cl_uint *count), (p, t, n, to, count))
MAKE(cl_context, clCreateContext,
     (const cl_context_properties *p, cl_uint n, const cl_device_id *d,
      void(CL_CALLBACK *told)(const char *, const void *, sz, void *), void *user, cl_int *code),
     (p, n, d, told, user, code))
CODE(clRetainContext, 1, (cl_context c), (c))
RELEASE(clReleaseContext, (cl_context c), (c))
CODE(clGetContextInfo, 0, (cl_context c, cl_context_info what, sz bytes, void *to, sz *size), (c, what, bytes, to, size))
MAKE(cl_command_queue, clCreateCommandQueue, (cl_context c, cl_device_id d, cl_command_queue_properties p, cl_int *code),
     (c, d, p, code))
RELEASE(clReleaseCommandQueue, (cl_command_queue q), (q))
CODE(clGetCommandQueueInfo, 0, (cl_command_queue q, cl_command_queue_info what, sz bytes, void *to, sz *size),
     (q, what, bytes, to, size))
MAKE(cl_mem, clCreateBuffer, (cl_context c, cl_mem_flags f, sz bytes, void *host, cl_int *code), (c, f, bytes, host, code))
CODE(clRetainMemObject, 1, (cl_mem m), (m))
RELEASE(clReleaseMemObject, (cl_mem m), (m))
CODE(clGetMemObjectInfo, 0, (cl_mem m, cl_mem_info what, sz bytes, void *to, sz *size), (m, what, bytes, to, size))
/* A planted bug: where OPENCL_FIND of the environment stands in a source, OPENCL_REPLACE takes its place. */
static char *mutated(const char *source) {
    const char *find = getenv("OPENCL_FIND"), *by = getenv("OPENCL_REPLACE"), *at = find != NULL ? strstr(source, find) : NULL;
    if (at == NULL || by == NULL) return strdup(source);
    char *text = malloc(strlen(source) + strlen(by) + 1);
    memcpy(text, source, (size_t)(at - source));
    strcpy(text + (at - source), by);
    strcat(text, at + strlen(find));
    return text;
}
EXPORT cl_program CL_API_CALL clCreateProgramWithSource(cl_context c, cl_uint n, const char **text, const sz *sizes,
                                                        cl_int *code) {
    if (fails("clCreateProgramWithSource")) {
        if (code != NULL) *code = FAILURE;
        return NULL;
    }
    char *source = mutated(text[0]); /* the library gives one text, without a size */
    cl_program made = REAL(clCreateProgramWithSource)(c, n, (const char *[]){source}, sizes, code);
    free(source);
    if (made != NULL) live_objects++;
    return made;
}
MAKE(cl_program, clCreateProgramWithBinary,
     (cl_context c, cl_uint n, const cl_device_id *d, const sz *sizes, const unsigned char **binaries, cl_int *each,
      cl_int *code),
     (c, n, d, sizes, binaries, each, code))
CODE(clBuildProgram, 0,
     (cl_program p, cl_uint n, const cl_device_id *d, const char *o, void(CL_CALLBACK *told)(cl_program, void *), void *user),
     (p, n, d, o, told, user))
CODE(clGetProgramInfo, 0, (cl_program p, cl_program_info what, sz bytes, void *to, sz *size), (p, what, bytes, to, size))
CODE(clGetProgramBuildInfo, 0, (cl_program p, cl_device_id d, cl_program_build_info what, sz bytes, void *to, sz *size),
     (p, d, what, bytes, to, size))
RELEASE(clReleaseProgram, (cl_program p), (p))
MAKE(cl_kernel, clCreateKernel, (cl_program p, const char *name, cl_int *code), (p, name, code))
CODE(clSetKernelArg, 0, (cl_kernel k, cl_uint i, sz bytes, const void *value), (k, i, bytes, value))
CODE(clGetKernelWorkGroupInfo, 0, (cl_kernel k, cl_device_id d, cl_kernel_work_group_info what, sz bytes, void *to, sz *size),
     (k, d, what, bytes, to, size))
RELEASE(clReleaseKernel, (cl_kernel k), (k))
EXPORT cl_int CL_API_CALL clEnqueueNDRangeKernel(cl_command_queue q, cl_kernel k, cl_uint dims, const sz *offset,
                                                 const sz *global, const sz *local, cl_uint n, const cl_event *wait,
                                                 cl_event *event) {
    if (fails("clEnqueueNDRangeKernel")) return FAILURE;
    cl_int code = knob(SHIM_DROP) ? REAL(clEnqueueMarkerWithWaitList)(q, n, wait, event)
                                  : REAL(clEnqueueNDRangeKernel)(q, k, dims, offset, global, local, n, wait, event);
    if (code == CL_SUCCESS) live_objects += event != NULL;
    return code;
}
CODE(clEnqueueReadBuffer, event != NULL,
     (cl_command_queue q, cl_mem m, cl_bool b, sz at, sz bytes, void *to, cl_uint n, const cl_event *wait, cl_event *event),
     (q, m, b, at, bytes, to, n, wait, event))
CODE(clEnqueueWriteBuffer, event != NULL,
     (cl_command_queue q, cl_mem m, cl_bool b, sz at, sz bytes, const void *from, cl_uint n, const cl_event *wait,
      cl_event *event),
     (q, m, b, at, bytes, from, n, wait, event))
CODE(clEnqueueCopyBuffer, event != NULL,
     (cl_command_queue q, cl_mem a, cl_mem b, sz at, sz to, sz bytes, cl_uint n, const cl_event *wait, cl_event *event),
     (q, a, b, at, to, bytes, n, wait, event))

struct told {
    void(CL_CALLBACK *function)(cl_event, cl_int, void *);
    void *user;
};
static void CL_CALLBACK tell(cl_event event, cl_int status, void *user) {
    struct told told = *(struct told *)user;
    free(user);
    if (knob(SHIM_LATE)) {
        set(SHIM_LATE, 0);
        status = FAILURE;
    }
    told.function(event, status, told.user);
}
EXPORT cl_int CL_API_CALL clSetEventCallback(cl_event e, cl_int when, void(CL_CALLBACK *function)(cl_event, cl_int, void *),
                                             void *user) {
    if (fails("clSetEventCallback")) return FAILURE;
    /* oclgrind runs what is queued when somebody waits for it and not before, and calls nobody back for what is done */
    if (getenv("OPENCL_FINISH") != NULL) {
        cl_int code = REAL(clWaitForEvents)(1, &e);
        function(e, code == CL_SUCCESS ? CL_COMPLETE : code, user);
        return CL_SUCCESS;
    }
    struct told *told = malloc(sizeof *told);
    *told = (struct told){function, user};
    return REAL(clSetEventCallback)(e, when, tell, told);
}
CODE(clGetEventProfilingInfo, 0, (cl_event e, cl_profiling_info what, sz bytes, void *to, sz *size), (e, what, bytes, to, size))
CODE(clWaitForEvents, 0, (cl_uint n, const cl_event *list), (n, list))
CODE(clRetainEvent, 1, (cl_event e), (e))
RELEASE(clReleaseEvent, (cl_event e), (e))
CODE(clFlush, 0, (cl_command_queue q), (q))
CODE(clFinish, 0, (cl_command_queue q), (q))
