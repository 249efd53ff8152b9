/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Buffers by addresses. OpenCL 1.2 knows memory by handles; the library adds strides to addresses and compares them. So each
 * buffer reserves as many addresses as it has bytes, which nobody can read, and a call finds handle and offset by them.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "opencl.h"

/* Index of the last buffer that begins at or before the address; -1: none does. Under the lock. */
static int before(const tp_opencl *cl, const char *address) {
    int low = 0, high = cl->buffer_count;
    while (low < high) {
        int middle = (low + high) / 2;
        if (cl->buffers[middle].address <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low - 1;
}

size_t tp__ocl_memory_find(tp_opencl *cl, const void *address, tp__ocl_place *place) {
    size_t left = 0;
    pthread_mutex_lock(&cl->memory_lock);
    int i = before(cl, address);
    if (i >= 0 && (size_t)((const char *)address - cl->buffers[i].address) < cl->buffers[i].bytes) {
        place->handle = cl->buffers[i].handle;
        place->offset = (size_t)((const char *)address - cl->buffers[i].address);
        left = cl->buffers[i].bytes - place->offset;
    }
    pthread_mutex_unlock(&cl->memory_lock);
    return left;
}

static tp_status add(tp_opencl *cl, cl_mem handle, size_t bytes, int imported, void **memory, tp_error *error) {
    char *address = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (address == MAP_FAILED)
        return tp__ocl_fail(error, TP_NO_MEMORY, "no %zu addresses for a buffer: raise the limit of address space (ulimit -v)",
                            bytes);
    pthread_mutex_lock(&cl->memory_lock);
    int room = cl->buffer_room;
    if (cl->buffer_count == room) {
        tp__ocl_buffer *grown = realloc(cl->buffers, sizeof *grown * (size_t)(room > 0 ? 2 * room : 32));
        if (grown != NULL) {
            cl->buffers = grown;
            cl->buffer_room = room > 0 ? 2 * room : 32;
        }
    }
    int fits = cl->buffer_count < cl->buffer_room;
    if (fits) {
        int at = before(cl, address) + 1;
        memmove(cl->buffers + at + 1, cl->buffers + at, sizeof *cl->buffers * (size_t)(cl->buffer_count - at));
        cl->buffers[at] = (tp__ocl_buffer){address, bytes, handle, imported};
        cl->buffer_count++;
    }
    pthread_mutex_unlock(&cl->memory_lock);
    if (!fits) {
        munmap(address, bytes);
        return tp__ocl_fail(error, TP_NO_MEMORY, "no host memory for the list of buffers");
    }
    *memory = address;
    return TP_OK;
}

/* Takes the buffer that begins at the address from the list. imported: which kind it must be. */
static int take(tp_opencl *cl, void *address, int imported, tp__ocl_buffer *taken) {
    pthread_mutex_lock(&cl->memory_lock);
    int i = before(cl, address);
    int found = i >= 0 && cl->buffers[i].address == address && cl->buffers[i].imported == imported;
    if (found) {
        *taken = cl->buffers[i];
        cl->buffer_count--;
        memmove(cl->buffers + i, cl->buffers + i + 1, sizeof *cl->buffers * (size_t)(cl->buffer_count - i));
    }
    pthread_mutex_unlock(&cl->memory_lock);
    return found;
}

static tp_status absent(const tp_opencl *cl, tp_error *error) {
    return tp__ocl_fail(error, TP_DEVICE_FAILED, "there is no device: %s", cl->why);
}

tp_status tp__ocl_memory_allocate(void *user, size_t bytes, void **memory, tp_error *error) {
    tp_opencl *cl = user;
    cl_int code = CL_SUCCESS;
    if (cl->queue == NULL) return absent(cl, error);
    if (cl->info.allocation_bytes > 0 && bytes > (size_t)cl->info.allocation_bytes)
        return tp__ocl_fail(error, TP_NO_MEMORY, "%zu bytes in one buffer: the device gives at most %lld", bytes,
                            (long long)cl->info.allocation_bytes);
    cl_mem handle = cl->cl.clCreateBuffer(cl->context, CL_MEM_READ_WRITE, bytes, NULL, &code);
    TP__CL_TRY(error, "clCreateBuffer", code);
    tp_status status = add(cl, handle, bytes, 0, memory, error);
    if (status != TP_OK) cl->cl.clReleaseMemObject(handle);
    return status;
}

static void drop(tp_opencl *cl, const tp__ocl_buffer *buffer) {
    cl->cl.clReleaseMemObject(buffer->handle);
    munmap(buffer->address, buffer->bytes);
}

void tp__ocl_memory_release(void *user, void *memory) {
    tp__ocl_buffer taken;
    if (take(user, memory, 0, &taken)) drop(user, &taken);
}

void tp__ocl_memory_destroy(tp_opencl *cl) {
    for (int i = 0; i < cl->buffer_count; i++) drop(cl, &cl->buffers[i]);
    free(cl->buffers);
}

static tp_status within(tp_opencl *cl, const char *what, const void *address, size_t bytes, tp__ocl_place *place,
                        tp_error *error) {
    size_t left = tp__ocl_memory_find(cl, address, place);
    if (left >= bytes) return TP_OK;
    return tp__ocl_fail(error, TP_INVALID, "%s is %p, %zu bytes: its buffer has %zu there", what, address, bytes, left);
}

tp_status tp__ocl_memory_copy(void *user, tp_copy kind, void *to, const void *from, size_t bytes, tp_error *error) {
    tp_opencl *cl = user;
    tp__ocl_place to_place = {0}, from_place = {0};
    if (cl->queue == NULL) return absent(cl, error);
    if (kind != TP_COPY_TO_HOST) TP__TRY(within(cl, "to", to, bytes, &to_place, error));
    if (kind != TP_COPY_TO_DEVICE) TP__TRY(within(cl, "from", from, bytes, &from_place, error));
    if (kind == TP_COPY_TO_DEVICE)
        return tp__ocl_status(
            error, "clEnqueueWriteBuffer",
            cl->cl.clEnqueueWriteBuffer(cl->queue, to_place.handle, CL_TRUE, to_place.offset, bytes, from, 0, NULL, NULL));
    if (kind == TP_COPY_TO_HOST)
        return tp__ocl_status(
            error, "clEnqueueReadBuffer",
            cl->cl.clEnqueueReadBuffer(cl->queue, from_place.handle, CL_TRUE, from_place.offset, bytes, to, 0, NULL, NULL));
    cl_event event = NULL;
    TP__CL_TRY(error, "clEnqueueCopyBuffer",
               cl->cl.clEnqueueCopyBuffer(cl->queue, from_place.handle, to_place.handle, from_place.offset, to_place.offset,
                                          bytes, 0, NULL, &event));
    cl_int code = cl->cl.clWaitForEvents(1, &event);
    cl->cl.clReleaseEvent(event);
    return tp__ocl_status(error, "clWaitForEvents", code);
}

tp_status tp_opencl_import(tp_opencl *cl, void *buffer, void **address, tp_error *error) {
    cl_context context = NULL;
    size_t bytes = 0;
    if (cl == NULL || buffer == NULL || address == NULL)
        return tp__ocl_fail(error, TP_INVALID, "cl, buffer and address must be given");
    if (cl->queue == NULL) return absent(cl, error);
    TP__CL_TRY(error, "clGetMemObjectInfo", cl->cl.clGetMemObjectInfo(buffer, CL_MEM_CONTEXT, sizeof context, &context, NULL));
    TP__CL_TRY(error, "clGetMemObjectInfo", cl->cl.clGetMemObjectInfo(buffer, CL_MEM_SIZE, sizeof bytes, &bytes, NULL));
    if (context != cl->context)
        return tp__ocl_fail(error, TP_INVALID, "the buffer is of another context: give that one to tp_opencl_create");
    TP__CL_TRY(error, "clRetainMemObject", cl->cl.clRetainMemObject(buffer));
    tp_status status = add(cl, buffer, bytes, 1, address, error);
    if (status != TP_OK) cl->cl.clReleaseMemObject(buffer);
    return status;
}

tp_status tp_opencl_forget(tp_opencl *cl, void *address, tp_error *error) {
    tp__ocl_buffer taken;
    if (cl == NULL || !take(cl, address, 1, &taken))
        return tp__ocl_fail(error, TP_INVALID, "address is %p: tp_opencl_import has given no such one", address);
    drop(cl, &taken);
    return TP_OK;
}
