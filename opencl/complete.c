/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The thread that tells who waits. The driver's callback, in which OpenCL allows little, only puts the job into a list; the
 * thread takes it from there, so that the caller's tp_done function may do what it likes.
 */
#include <stdio.h>

#include "opencl.h"

void CL_CALLBACK tp__ocl_complete_event(cl_event event, cl_int status, void *user) {
    tp__ocl_job *job = user;
    tp_opencl *cl = job->cl;
    (void)event;
    job->status = status;
    job->next = NULL;
    pthread_mutex_lock(&cl->done_lock);
    if (cl->done_last != NULL)
        cl->done_last->next = job;
    else
        cl->done_first = job;
    cl->done_last = job;
    pthread_cond_signal(&cl->done_more);
    pthread_mutex_unlock(&cl->done_lock);
}

static int64_t wide(const int32_t *words) {
    return (int64_t)((uint64_t)(uint32_t)words[0] | (uint64_t)(uint32_t)words[1] << 32);
}

/* From the start of the first launch to the end of the last, by the device's clock; 0: it does not say. */
static int64_t time_of(const tp__ocl_job *job) {
    cl_ulong start = 0, end = 0;
    if (!job->timed || job->launches == 0) return 0;
    const tp__ocl_driver *d = &job->cl->cl;
    if (d->clGetEventProfilingInfo(job->events[0], CL_PROFILING_COMMAND_START, sizeof start, &start, NULL) != CL_SUCCESS ||
        d->clGetEventProfilingInfo(job->events[job->launches - 1], CL_PROFILING_COMMAND_END, sizeof end, &end, NULL) !=
            CL_SUCCESS)
        return 0;
    return end > start ? (int64_t)(end - start) : 1;
}

static void complete(tp__ocl_job *job) {
    const int32_t *counters = job->counters;
    char text[128];
    tp_outcome out = TP_OUTCOME_INIT;
    if (job->status != CL_COMPLETE) {
        snprintf(text, sizeof text, "the device ended the call with %s (%d)", tp__ocl_name(job->status), job->status);
        out.status = TP_DEVICE_FAILED;
        out.text = text;
    } else if (counters[WRONG] != 0) {
        out.status = TP_INVALID;
        out.text = counters[WRONG] & 1 ? "a length or start on the device is out of range"
                                       : "a page table on the device names a page that the pool has not";
    } else {
        out.kernel = counters[MARK] - 1;
        out.launch_count = job->launches;
        out.launches = job->launch;
        out.tiles_planned = job->planned;
        out.tiles_counted = (uint32_t)counters[TILES];
        out.pairs_visible = wide(counters + VISIBLE);
        out.pairs_computed = wide(counters + COMPUTED);
        out.panels_full = (uint32_t)counters[FULL];
        out.panels_partial = (uint32_t)counters[PARTIAL];
        out.device_ns = time_of(job);
    }
    const tp_submission s = job->submission;
    tp_launch launches[TP__LAUNCHES];
    for (int i = 0; i < job->launches; i++) launches[i] = job->launch[i];
    out.launches = launches;
    tp__ocl_job_free(job);
    s.done(s.completion, &out); /* the last thing: nothing of the call is touched any more */
}

static void *work(void *user) {
    tp_opencl *cl = user;
    pthread_mutex_lock(&cl->done_lock);
    for (;;) {
        while (cl->done_first == NULL && !cl->ends) pthread_cond_wait(&cl->done_more, &cl->done_lock);
        tp__ocl_job *job = cl->done_first;
        if (job == NULL) break;
        cl->done_first = job->next;
        if (cl->done_first == NULL) cl->done_last = NULL;
        pthread_mutex_unlock(&cl->done_lock);
        complete(job);
        pthread_mutex_lock(&cl->done_lock);
    }
    pthread_mutex_unlock(&cl->done_lock);
    return NULL;
}

tp_status tp__ocl_complete_begin(tp_opencl *cl, tp_error *error) {
    int code = pthread_create(&cl->thread, NULL, work, cl);
    if (code != 0) return tp__ocl_fail(error, TP_NO_MEMORY, "the thread that completes calls could not be started (%d)", code);
    cl->done_thread = 1;
    return TP_OK;
}

void tp__ocl_complete_end(tp_opencl *cl) {
    if (!cl->done_thread) return;
    pthread_mutex_lock(&cl->done_lock);
    cl->ends = 1;
    pthread_cond_signal(&cl->done_more);
    pthread_mutex_unlock(&cl->done_lock);
    pthread_join(cl->thread, NULL);
}
