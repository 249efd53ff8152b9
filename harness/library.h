/* SPDX-License-Identifier: Apache-2.0 */
/* The functions of tileproof by pointer: those of the linked library, or those of another shared one. */
#ifndef TILEPROOF_HARNESS_LIBRARY_H
#define TILEPROOF_HARNESS_LIBRARY_H

#include "tileproof.h"

struct library {
    const char *(*version)(void);
    const char *(*build_hash)(void); /* NULL: the library is older than it */
    tp_status (*context_create)(const tp_context_options *, tp_context **, tp_error *);
    void (*context_destroy)(tp_context *);
    tp_status (*plan_create)(tp_context *, const tp_problem *, const tp_choice *, tp_plan **, tp_error *);
    void (*plan_destroy)(tp_plan *);
    size_t (*plan_workspace)(const tp_plan *, int);
    tp_status (*plan_run)(const tp_plan *, const tp_tensors *, const tp_exec *, tp_receipt *, tp_error *);
    void *handle; /* NULL: linked */
};

const struct library *library_linked(void);
/* Its names stay its own: it never calls into the linked one. The text of an error begins with the path. */
tp_status library_open(struct library *library, const char *path, tp_error *error);
void library_close(struct library *library);

#endif
