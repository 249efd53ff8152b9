/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The runner's side of docs/runner-protocol.md, to copy beside a runner. It needs no library.
 *
 *     if (runner_open(&r, "loops", "cpu", "mode eager\nversion loops=1.0\n")) return 2;
 *     while (runner_next(&r)) ...          the fields of r have the call, runner_tensor(&r, "q") its tensors;
 *                                          each is answered once: runner_served(&r, ...) or runner_refused(&r, ...)
 */
#ifndef TILEPROOF_EXAMPLES_RUNNER_H
#define TILEPROOF_EXAMPLES_RUNNER_H

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

enum { RUNNER_SOCKET = 3, RUNNER_FILE = 4, RUNNER_LINE = 4096, RUNNER_SEQUENCES = RUNNER_LINE / 4, RUNNER_TENSORS = 16 };

struct runner {
    FILE *lines, *answers; /* the socket, both ways */
    char problem[RUNNER_LINE], mask[32];
    char dtype[8];                                  /* of q, k, v and o, or "mixed" */
    long seed, heads, kv_heads, dim, dim_v, window; /* dim of q and k, dim_v of v and o */
    double scale, softcap, time_ns;
    long sequences, rows[RUNNER_SEQUENCES], keys[RUNNER_SEQUENCES];
    struct {
        char name[32];
        long at, bytes;
    } tensor[RUNNER_TENSORS];
    int tensors;
    char *file; /* the tensors of this call, mapped */
    size_t mapped;
};

/* more: lines of the greeting, such as "version name=value\n". 1: no tool is at the other end. */
static inline int runner_open(struct runner *r, const char *engine, const char *device, const char *more) {
    memset(r, 0, sizeof *r);
    r->lines = fdopen(RUNNER_SOCKET, "r");
    r->answers = fdopen(RUNNER_SOCKET, "w");
    if (!r->lines || !r->answers) return fprintf(stderr, "it is started by tileproof qualify --runner\n"), 1;
    fprintf(r->answers, "tileproof-runner 1\nengine %s\ndevice %s\n%send\n", engine, device, more);
    return fflush(r->answers) != 0;
}

static inline void runner_take(struct runner *r, const char *line) {
    char other[3][8];
    long at = 0, used = 0, *n = &r->sequences;
    sscanf(line, "problem %4095[^\n]", r->problem);
    if (sscanf(line, "dtypes %7s %7s %7s %7s", r->dtype, other[0], other[1], other[2]) == 4)
        for (int i = 0; i < 3; i++)
            if (strcmp(r->dtype, other[i])) strcpy(r->dtype, "mixed");
    sscanf(line, "seed %ld", &r->seed);
    sscanf(line, "heads %ld %ld", &r->heads, &r->kv_heads);
    sscanf(line, "head_dims %ld %ld", &r->dim, &r->dim_v);
    sscanf(line, "scale %lf", &r->scale);
    sscanf(line, "softcap %lf", &r->softcap);
    sscanf(line, "mask %31s", r->mask);
    sscanf(line, "window %ld", &r->window);
    sscanf(line, "time_ns %lf", &r->time_ns);
    if (!strncmp(line, "lengths", 7))
        for (at = 7; sscanf(line + at, "%ld/%ld%ln", &r->rows[*n], &r->keys[*n], &used) == 2; at += used) ++*n;
    if (r->tensors < RUNNER_TENSORS && sscanf(line, "tensor %31s %ld %ld", r->tensor[r->tensors].name, &r->tensor[r->tensors].at,
                                              &r->tensor[r->tensors].bytes) == 3)
        r->tensors++;
}

/* The next call; 0: there is none, and the runner ends. */
static inline int runner_next(struct runner *r) {
    char line[RUNNER_LINE];
    if (r->file) munmap(r->file, r->mapped);
    r->file = NULL;
    r->tensors = 0;
    r->mapped = 1;
    r->sequences = 0;
    while (fgets(line, sizeof line, r->lines) && strcmp(line, "end\n")) runner_take(r, line);
    for (int i = 0; i < r->tensors; i++) {
        size_t end = (size_t)(r->tensor[i].at + r->tensor[i].bytes);
        if (end > r->mapped) r->mapped = end;
    }
    if (!r->tensors) return 0;
    r->file = (char *)mmap(NULL, r->mapped, PROT_READ | PROT_WRITE, MAP_SHARED, RUNNER_FILE, 0);
    return (void *)r->file != MAP_FAILED;
}

/* NULL: the call has none of this name. */
static inline void *runner_tensor(const struct runner *r, const char *name) {
    for (int i = 0; i < r->tensors; i++)
        if (!strcmp(r->tensor[i].name, name)) return r->file + r->tensor[i].at;
    return NULL;
}

/* A tensor of the call beside q, k, v, o and visible, or NULL: an engine that does not know it must refuse the call. */
static inline const char *runner_more(const struct runner *r) {
    for (int i = 0; i < r->tensors; i++) {
        const char *name = r->tensor[i].name;
        if (strcmp(name, "visible") && (name[1] || !strchr("qkvo", name[0]))) return name;
    }
    return NULL;
}

/* o is written. observed: lines of the answer, such as "kernel NAME\nobserved log\nfused yes\n", of the kernel that ran. */
static inline void runner_served(struct runner *r, const char *observed) {
    for (int i = 0; i < r->tensors; i++)
        if (!strcmp(r->tensor[i].name, "o")) fprintf(r->answers, "served\n%swritten %ld\nend\n", observed, r->tensor[i].bytes);
    fflush(r->answers);
}

static inline void runner_refused(struct runner *r, const char *why) {
    fprintf(r->answers, "refused %s\nend\n", why);
    fflush(r->answers);
}

#endif
