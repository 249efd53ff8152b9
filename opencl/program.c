/* SPDX-License-Identifier: Apache-2.0 */
/* Compiled kernels: one program for each specialisation, kept until the end. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "opencl.h"

static void options_of(const tp_opencl *cl, const tp_problem *p, int split, char *text, size_t size) {
    tp__ocl_tiles t = tp__ocl_tiles_of(cl, p);
    int used = snprintf(text, size, "-cl-std=CL1.2 -DDQ=%d -DDV=%d -DQ_TYPE=%d -DK_TYPE=%d -DV_TYPE=%d -DO_TYPE=%d", t.dq, t.dv,
                        p->q_dtype, p->k_dtype, p->v_dtype, p->o_dtype);
    if (p->op == TP_BACKWARD)
        snprintf(text + used, size - (size_t)used, " -DB=%d", t.back);
    else
        snprintf(text + used, size - (size_t)used, " -DBR=%d -DSPLIT=%d", split ? TP__SPLIT_TILE : t.rows, split);
}

/* The end of the compiler's log, on one line. */
static tp_status fail_build(tp_opencl *cl, cl_program program, const char *options, cl_int code, tp_error *error) {
    size_t bytes = 0;
    char *log = NULL;
    const char *end = "no log";
    if (cl->cl.clGetProgramBuildInfo(program, cl->device, CL_PROGRAM_BUILD_LOG, 0, NULL, &bytes) == CL_SUCCESS && bytes > 1 &&
        (log = calloc(1, bytes + 1)) != NULL &&
        cl->cl.clGetProgramBuildInfo(program, cl->device, CL_PROGRAM_BUILD_LOG, bytes, log, NULL) == CL_SUCCESS) {
        for (char *at = log; *at != '\0'; at++)
            if ((unsigned char)*at < ' ') *at = ' ';
        size_t length = strlen(log);
        end = length > 300 ? log + length - 300 : log;
    }
    tp_status status = tp__ocl_fail(error, TP_DEVICE_FAILED, "clBuildProgram gave %s (%d) for %s: %s", tp__ocl_name(code), code,
                                    options + strlen("-cl-std=CL1.2 "), end);
    free(log);
    return status;
}

/* A work-group of all work-items must fit what the compiler made of the kernel. */
static tp_status check_kernel(tp_opencl *cl, cl_program program, const char *name, tp_error *error) {
    cl_int code = CL_SUCCESS;
    size_t max = 0;
    cl_kernel kernel = cl->cl.clCreateKernel(program, name, &code);
    TP__CL_TRY(error, "clCreateKernel", code);
    code = cl->cl.clGetKernelWorkGroupInfo(kernel, cl->device, CL_KERNEL_WORK_GROUP_SIZE, sizeof max, &max, NULL);
    cl->cl.clReleaseKernel(kernel);
    TP__CL_TRY(error, "clGetKernelWorkGroupInfo", code);
    if (max >= TP__LANES) return TP_OK;
    return tp__ocl_fail(error, TP_UNSUPPORTED, "%s compiled for work-groups of %zu: it needs %d", name, max, TP__LANES);
}

static tp_status check_program(tp_opencl *cl, cl_program program, const tp_problem *p, int split, tp_error *error) {
    if (p->op != TP_BACKWARD) return check_kernel(cl, program, split ? "attend_split" : "attend", error);
    TP__TRY(check_kernel(cl, program, "back_keys", error));
    return check_kernel(cl, program, "back_rows", error);
}

static tp_status build(tp_opencl *cl, const tp_problem *p, const char *options, cl_program *made, tp_error *error) {
    const char *source = p->op == TP_BACKWARD ? tp__ocl_source_backward : tp__ocl_source_forward;
    cl_int code = CL_SUCCESS;
    *made = cl->cl.clCreateProgramWithSource(cl->context, 1, &source, NULL, &code);
    TP__CL_TRY(error, "clCreateProgramWithSource", code);
    code = cl->cl.clBuildProgram(*made, 1, &cl->device, options, NULL, NULL);
    tp_status status = code == CL_SUCCESS ? TP_OK : fail_build(cl, *made, options, code, error);
    if (status != TP_OK) cl->cl.clReleaseProgram(*made);
    return status;
}

/* Everything that a compiled kernel depends on: its key in the cache folder. */
static char *key_of(const tp_opencl *cl, const tp_problem *p, const char *options) {
    const char *source = p->op == TP_BACKWARD ? tp__ocl_source_backward : tp__ocl_source_forward;
    uint64_t hash = tp__ocl_hash(source, strlen(source), 0);
    size_t size = 1024;
    char *key = malloc(size);
    if (key != NULL)
        snprintf(key, size, "tileproof %d.%d.%d\nplatform %s\ndevice %s\ndriver %s\nsource %zu %016llx\noptions %s\n",
                 TP_VERSION_MAJOR, TP_VERSION_MINOR, TP_VERSION_PATCH, cl->platform, cl->name, cl->version, strlen(source),
                 (unsigned long long)hash, options);
    return key;
}

/* From the folder, or compiled and put there. */
static tp_status obtain(tp_opencl *cl, const tp_problem *p, int split, const char *options, cl_program *made, tp_error *error) {
    char *key = cl->cache != NULL ? key_of(cl, p, options) : NULL;
    *made = key != NULL ? tp__ocl_cache_load(cl, key, options) : NULL;
    tp_status status = TP_OK;
    if (*made == NULL) {
        status = build(cl, p, options, made, error);
        if (status == TP_OK && key != NULL) tp__ocl_cache_store(cl, key, *made);
    }
    free(key);
    if (status != TP_OK) return status;
    status = check_program(cl, *made, p, split, error);
    if (status != TP_OK) cl->cl.clReleaseProgram(*made);
    return status;
}

tp_status tp__ocl_program_of(tp_opencl *cl, const tp_problem *problem, int split, cl_program *program, tp_error *error) {
    char options[sizeof((tp__ocl_program *)0)->options];
    options_of(cl, problem, split, options, sizeof options);
    pthread_mutex_lock(&cl->program_lock);
    tp__ocl_program *found = cl->programs;
    while (found != NULL && strcmp(found->options, options) != 0) found = found->next;
    tp_status status = TP_OK;
    if (found == NULL) {
        found = calloc(1, sizeof *found);
        status = found != NULL ? obtain(cl, problem, split, options, &found->program, error)
                               : tp__ocl_fail(error, TP_NO_MEMORY, "no host memory for a compiled kernel");
        if (status == TP_OK) {
            memcpy(found->options, options, sizeof options);
            found->next = cl->programs;
            cl->programs = found;
        } else {
            free(found);
        }
    }
    pthread_mutex_unlock(&cl->program_lock);
    if (status == TP_OK) *program = found->program;
    return status;
}

/* What most calls of the plan will need; a sequence of few rows among many has split-KV compiled when it comes. */
tp_status tp__ocl_prepare(void *user, int kernel, const tp_problem *problem, void **prepared, tp_error *error) {
    cl_program program = NULL;
    (void)kernel;
    tp_status status = tp__ocl_program_of(user, problem, tp__ocl_tiles_of(user, problem).decode, &program, error);
    *prepared = program;
    return status;
}

void tp__ocl_release_prepared(void *user, void *prepared) {
    (void)user;
    (void)prepared; /* tp_opencl_destroy has them all */
}

void tp__ocl_programs_destroy(tp_opencl *cl) {
    while (cl->programs != NULL) {
        tp__ocl_program *next = cl->programs->next;
        cl->cl.clReleaseProgram(cl->programs->program);
        free(cl->programs);
        cl->programs = next;
    }
}
