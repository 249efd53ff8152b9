/* SPDX-License-Identifier: Apache-2.0 */
/* The table of tileproof_backend.h; creation and destruction. */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "opencl.h"

/* The caller's options as this library knows them: fields that it lacks are 0, and more must be 0. */
static tp_status take_options(const tp_opencl_options *given, tp_opencl_options *options, tp_error *error) {
    static const tp_opencl_options none = TP_OPENCL_OPTIONS_INIT;
    enum { FIRST = offsetof(tp_opencl_options, cache) + sizeof none.cache, LARGEST = 65536 };
    *options = none;
    if (given == NULL) return TP_OK;
    if (given->struct_size < FIRST || given->struct_size > LARGEST)
        return tp__ocl_fail(error, TP_INVALID, "tp_opencl_options.struct_size is %u: it must be in %d..%d", given->struct_size,
                            (int)FIRST, (int)LARGEST);
    for (size_t i = sizeof none; i < given->struct_size; i++)
        if (((const unsigned char *)given)[i] != 0)
            return tp__ocl_fail(error, TP_INVALID, "tp_opencl_options has a field set that is newer than this library");
    memcpy(options, given, given->struct_size < sizeof none ? given->struct_size : sizeof none);
    if (options->number == 0) options->number = 1;
    if (options->number < 1 || options->number > 255)
        return tp__ocl_fail(error, TP_INVALID, "number is %d: it must be in 1..255, or 0 for 1", options->number);
    if (options->index < 0) return tp__ocl_fail(error, TP_INVALID, "index is %d: it must be at least 0", options->index);
    if (options->reserved != 0) return tp__ocl_fail(error, TP_INVALID, "reserved is %d: it must be 0", options->reserved);
    if (options->context != NULL && options->index != 0)
        return tp__ocl_fail(error, TP_INVALID, "index is %d with a context: name one of its devices by `device`", options->index);
    if (options->device != NULL && options->context == NULL)
        return tp__ocl_fail(error, TP_INVALID, "device is given without a context: give both, or an index");
    return TP_OK;
}

static tp_status take_cache(tp_opencl *cl, const char *folder, tp_error *error) {
    struct stat is;
    if (folder == NULL) return TP_OK;
    if (stat(folder, &is) != 0 || !S_ISDIR(is.st_mode))
        return tp__ocl_fail(error, TP_INVALID, "cache is '%.200s': it must be a folder that exists", folder);
    cl->cache = strdup(folder);
    return cl->cache != NULL ? TP_OK : tp__ocl_fail(error, TP_NO_MEMORY, "no host memory for the name of the cache folder");
}

static void fill_table(tp_opencl *cl, int device) {
    cl->backend = (tp_backend)TP_BACKEND_INIT;
    cl->backend.device = device;
    cl->backend.name = "opencl";
    cl->backend.flags = TP_BACKEND_INDEX_ON_DEVICE;
    cl->backend.user = cl;
    cl->backend.kernel_at = tp__ocl_kernel_at;
    cl->backend.serves = tp__ocl_serves;
    cl->backend.figures = tp__ocl_figures;
    cl->backend.prepare = tp__ocl_prepare;
    cl->backend.release_prepared = tp__ocl_release_prepared;
    cl->backend.allocate = tp__ocl_memory_allocate;
    cl->backend.release = tp__ocl_memory_release;
    cl->backend.copy = tp__ocl_memory_copy;
    cl->backend.submit = tp__ocl_submit;
    cl->backend.release_event = tp__ocl_release_event;
    cl->info.struct_size = sizeof cl->info;
    cl->info.usable = cl->queue != NULL;
    cl->info.name = cl->name;
    cl->info.platform = cl->platform;
    cl->info.driver = cl->version;
    cl->info.why = cl->why;
    if (cl->info.kind == NULL) cl->info.kind = "";
    uint64_t hash = tp__ocl_hash(tp__ocl_source_forward, strlen(tp__ocl_source_forward), 0);
    hash = tp__ocl_hash(tp__ocl_source_backward, strlen(tp__ocl_source_backward), hash);
    snprintf(cl->kernels, sizeof cl->kernels, "%016llx", (unsigned long long)hash);
    cl->info.kernels = cl->kernels;
}

static tp_status open_all(tp_opencl *cl, const tp_opencl_options *options, tp_error *error) {
    TP__TRY(take_cache(cl, options->cache, error));
    TP__TRY(tp__ocl_device_open(cl, options, error));
    fill_table(cl, options->number);
    return cl->queue != NULL ? tp__ocl_complete_begin(cl, error) : TP_OK;
}

tp_status tp_opencl_create(const tp_opencl_options *given, tp_opencl **made, tp_error *error) {
    tp_opencl_options options;
    if (made == NULL) return tp__ocl_fail(error, TP_INVALID, "made is NULL");
    *made = NULL;
    TP__TRY(take_options(given, &options, error));
    tp_opencl *cl = calloc(1, sizeof *cl);
    if (cl == NULL) return tp__ocl_fail(error, TP_NO_MEMORY, "no host memory for a backend of %zu bytes", sizeof *cl);
    cl->pid = (long)getpid();
    pthread_mutex_init(&cl->memory_lock, NULL);
    pthread_mutex_init(&cl->program_lock, NULL);
    pthread_mutex_init(&cl->done_lock, NULL);
    pthread_cond_init(&cl->done_more, NULL);
    tp_status status = open_all(cl, &options, error);
    if (status == TP_OK)
        *made = cl;
    else
        tp_opencl_destroy(cl);
    return status;
}

void tp_opencl_destroy(tp_opencl *cl) {
    /* in a forked child neither the thread nor the driver's own are there */
    if (cl == NULL || cl->pid != (long)getpid()) return;
    tp__ocl_complete_end(cl);
    tp__ocl_programs_destroy(cl);
    tp__ocl_memory_destroy(cl);
    if (cl->queue != NULL) cl->cl.clReleaseCommandQueue(cl->queue);
    if (cl->context != NULL) cl->cl.clReleaseContext(cl->context);
    pthread_mutex_destroy(&cl->memory_lock);
    pthread_mutex_destroy(&cl->program_lock);
    pthread_mutex_destroy(&cl->done_lock);
    pthread_cond_destroy(&cl->done_more);
    free(cl->cache);
    free(cl);
}

const tp_backend *tp_opencl_backend(const tp_opencl *cl) {
    return cl != NULL ? &cl->backend : NULL;
}
int tp_opencl_device_count(const tp_opencl *cl) {
    return cl != NULL ? cl->device_count : 0;
}

tp_status tp_opencl_device_of_sized(const tp_opencl *cl, tp_opencl_device *device, size_t size) {
    enum { FIRST = offsetof(tp_opencl_device, units) + sizeof(int64_t) };
    if (cl == NULL || device == NULL || size < FIRST) return TP_INVALID;
    memset(device, 0, size);
    memcpy(device, &cl->info, size < sizeof cl->info ? size : sizeof cl->info);
    device->struct_size = (uint32_t)size;
    return TP_OK;
}
