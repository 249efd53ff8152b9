/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compiled kernels in a folder that the caller names. A file is
 *
 *     key, as text; a line with the binary's size and checksum; the binary
 *
 * under a name that is the key's hash. It is written whole under another name first and then renamed: processes that compile at
 * once each write the same, and a reader never sees half of one. A file that does not say just what is asked for, or that
 * others may write, is passed over and compiled anew.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "opencl.h"

enum { BINARY_MAX = 1 << 28 };

static int path_of(const tp_opencl *cl, const char *key, const char *suffix, char *path, size_t size) {
    unsigned long long hash = tp__ocl_hash(key, strlen(key), 0);
    return (size_t)snprintf(path, size, "%s/tileproof-%016llx%s", cl->cache, hash, suffix) < size;
}

/* The whole file, if it is a plain one of this user's that nobody else may write. */
static char *read_own(const char *path, size_t *size) {
    struct stat is;
    char *text = NULL;
    int file = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (file < 0) return NULL;
    if (fstat(file, &is) == 0 && S_ISREG(is.st_mode) && is.st_uid == geteuid() && (is.st_mode & 022) == 0 && is.st_size > 0 &&
        is.st_size <= BINARY_MAX && (text = malloc((size_t)is.st_size + 1)) != NULL) {
        size_t used = 0;
        for (ssize_t got = 1; got > 0 && used<(size_t)is.st_size; used += got> 0 ? (size_t)got : 0)
            got = read(file, text + used, (size_t)is.st_size - used);
        text[used] = '\0';
        *size = used;
    }
    close(file);
    return text;
}

/* The binary inside, if key, size and checksum are right. */
static const unsigned char *binary_in(const char *text, size_t size, const char *key, size_t *bytes) {
    size_t length = strlen(key);
    unsigned long long count, sum;
    if (size < length || memcmp(text, key, length) != 0) return NULL;
    const char *newline = memchr(text + length, '\n', size - length);
    if (newline == NULL || sscanf(text + length, "binary %llu %llx", &count, &sum) != 2) return NULL;
    const char *start = newline + 1;
    if (count != (unsigned long long)(text + size - start) || tp__ocl_hash(start, count, 0) != sum) return NULL;
    *bytes = count;
    return (const unsigned char *)start;
}

cl_program tp__ocl_cache_load(tp_opencl *cl, const char *key, const char *options) {
    char path[1024];
    size_t size = 0, bytes = 0;
    cl_int code = CL_SUCCESS, of_binary = CL_SUCCESS;
    cl_program program = NULL;
    char *text = path_of(cl, key, "", path, sizeof path) ? read_own(path, &size) : NULL;
    const unsigned char *binary = text != NULL ? binary_in(text, size, key, &bytes) : NULL;
    if (binary != NULL) {
        program = cl->cl.clCreateProgramWithBinary(cl->context, 1, &cl->device, &bytes, &binary, &of_binary, &code);
        if (code != CL_SUCCESS) program = NULL;
    }
    if (program != NULL &&
        (of_binary != CL_SUCCESS || cl->cl.clBuildProgram(program, 1, &cl->device, options, NULL, NULL) != CL_SUCCESS)) {
        cl->cl.clReleaseProgram(program);
        program = NULL;
    }
    free(text);
    return program;
}

static int write_all(int file, const void *bytes, size_t size) {
    for (const char *at = bytes; size > 0;) {
        ssize_t wrote = write(file, at, size);
        if (wrote <= 0) return 0;
        at += wrote;
        size -= (size_t)wrote;
    }
    return 1;
}

static void write_file(const tp_opencl *cl, const char *key, const unsigned char *binary, size_t bytes) {
    char path[1024], part[1024], line[64];
    if (!path_of(cl, key, "", path, sizeof path) || !path_of(cl, key, ".XXXXXX", part, sizeof part)) return;
    int file = mkostemp(part, O_CLOEXEC); /* readable by this user alone */
    if (file < 0) return;
    int n = snprintf(line, sizeof line, "binary %zu %016llx\n", bytes, (unsigned long long)tp__ocl_hash(binary, bytes, 0));
    int whole = write_all(file, key, strlen(key)) && write_all(file, line, (size_t)n) && write_all(file, binary, bytes);
    whole &= close(file) == 0;
    if (!whole || rename(part, path) != 0) unlink(part);
}

/* One that cannot be written is compiled again next time: no error. */
void tp__ocl_cache_store(tp_opencl *cl, const char *key, cl_program program) {
    size_t bytes = 0;
    cl_uint devices = 0;
    const tp__ocl_driver *d = &cl->cl;
    if (d->clGetProgramInfo(program, CL_PROGRAM_NUM_DEVICES, sizeof devices, &devices, NULL) != CL_SUCCESS || devices != 1 ||
        d->clGetProgramInfo(program, CL_PROGRAM_BINARY_SIZES, sizeof bytes, &bytes, NULL) != CL_SUCCESS || bytes == 0)
        return;
    unsigned char *binary = malloc(bytes);
    if (binary != NULL && d->clGetProgramInfo(program, CL_PROGRAM_BINARIES, sizeof binary, &binary, NULL) == CL_SUCCESS)
        write_file(cl, key, binary, bytes);
    free(binary);
}
