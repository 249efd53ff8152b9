/* SPDX-License-Identifier: Apache-2.0 */
/* Explain, and plans for loops. A plan is a capsule; it is made anew in a forked child. */
#include "core.h"

#include <stdlib.h>
#include <string.h>

#define CAPSULE "tileproof.plan"

typedef struct plan {
    tp_problem problem;
    tp_choice choice; /* its texts are copies of this struct's own */
    char *texts;
    crew crew;
    shared_context *shared;
    tp_plan *plan;
    void *workspace;
    size_t workspace_size;
    int busy; /* its workspace is in use, in another thread: guarded by the GIL */
} plan;

/* Allowed in a forked child as well, whose memory is a copy. */
static void unmake(plan *p) {
    tp_plan_destroy(p->plan);
    context_give(p->shared);
    p->plan = NULL;
    p->shared = NULL;
    free(p->workspace); /* another number of threads may need more */
    p->workspace = NULL;
    p->busy = 0;
}

static int make(plan *p) {
    tp_error error = TP_ERROR_INIT;
    p->shared = context_take(p->crew);
    if (p->shared == NULL) return -1;
    tp_status status =
        tp_plan_create(context_of(p->shared), &p->problem, &p->choice, &p->plan, &error);
    if (status != TP_OK) {
        unmake(p);
        return raise_status(status, &error);
    }
    p->workspace_size = tp_plan_workspace(p->plan, tp_context_threads(context_of(p->shared)));
    return 0;
}

static void destroy(plan *p) {
    unmake(p);
    free(p->texts);
    free(p);
}

static void capsule_gone(PyObject *capsule) {
    destroy(PyCapsule_GetPointer(capsule, CAPSULE));
}

/* "bf16", or "f32:bf16:bf16->f32": of q, k, v and o, which is q's where it is not said. */
static int dtypes_argument(PyObject *name, const dtype_row *dtypes[4]) {
    const char *text = PyUnicode_Check(name) ? PyUnicode_AsUTF8AndSize(name, NULL) : NULL;
    char copy[80] = "", *parts[4], *next = copy;
    int count = 0, fits = text != NULL && strlen(text) < sizeof copy;
    if (fits) strcpy(copy, text);
    char *of_o = strstr(copy, "->");
    if (of_o != NULL) *of_o = '\0', of_o += 2;
    for (parts[count++] = next; count < 4 && (next = strchr(next, ':')) != NULL; parts[count++] = next) *next++ = '\0';
    fits &= count == 1 || count == 3;
    for (int i = 0; fits && i < 3; i++) dtypes[i] = dtype_of_name(parts[count == 1 ? 0 : i]);
    dtypes[3] = fits && of_o != NULL ? dtype_of_name(of_o) : dtypes[0];
    for (int i = 0; fits && i < 4; i++) fits = dtypes[i]->code <= TP_BF16;
    if (fits) return 0;
    PyErr_Clear();
    PyErr_Format(PyExc_TypeError,
                 "dtype is %R: it must be \"float32\", \"float16\" or \"bfloat16\", or these of q, k, v and o, as in "
                 "\"f32:bf16:bf16->f32\"", name);
    return -1;
}

/* Arguments of a call, with shapes for tensors; then the dtype. */
static int open_shapes(call *c, PyObject *const *args, Py_ssize_t count, const char *function) {
    if (wrong_count(function, count, ARG_COUNT + 1)) return -1;
    const dtype_row *dtypes[4] = {NULL};
    return dtypes_argument(args[ARG_COUNT], dtypes) != 0 ? -1 : call_open(c, args, dtypes);
}

PyObject *core_explain(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    call c = {0};
    tp_error error = TP_ERROR_INIT;
    tp_decision *decision = NULL;
    PyObject *result = NULL;
    int failed = open_shapes(&c, args, count, "explain");
    shared_context *shared = failed ? NULL : context_take(crew_of_any_size(c.threads, c.max_threads));
    if (shared != NULL) {
        tp_status status = tp_explain(context_of(shared), &c.problem, &c.choice, &decision, &error);
        if (decision == NULL) raise_status(status, &error);
        context_give(shared);
    }
    if (decision != NULL) result = decision_texts(decision);
    tp_decision_destroy(decision);
    call_close(&c);
    return result;
}

/* Those of the choice, which are the arguments' own until here. */
static int keep_texts(plan *p) {
    const char **const texts[] = {&p->choice.kernel, &p->choice.strategy, &p->choice.disable};
    size_t size = 1;
    for (int i = 0; i < 3; i++) size += *texts[i] != NULL ? strlen(*texts[i]) + 1 : 0;
    char *to = p->texts = malloc(size);
    for (int i = 0; i < 3 && to != NULL; i++) {
        if (*texts[i] == NULL) continue;
        size = strlen(*texts[i]) + 1;
        *texts[i] = memcpy(to, *texts[i], size);
        to += size;
    }
    return to != NULL ? 0 : (PyErr_NoMemory(), -1);
}

PyObject *core_plan(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    call c = {0};
    PyObject *capsule = NULL;
    plan *p = NULL;
    if (open_shapes(&c, args, count, "plan") == 0) p = calloc(1, sizeof *p);
    if (p == NULL && !PyErr_Occurred()) PyErr_NoMemory();
    if (p != NULL) {
        p->problem = c.problem;
        p->choice = c.choice;
        p->crew = crew_of_any_size(c.threads, c.max_threads);
        if (keep_texts(p) == 0 && make(p) == 0) capsule = PyCapsule_New(p, CAPSULE, capsule_gone);
        if (capsule == NULL) destroy(p);
    }
    call_close(&c);
    return capsule;
}

/* The plan of a capsule, usable in this process. */
static plan *plan_of(PyObject *capsule) {
    plan *p = PyCapsule_GetPointer(capsule, CAPSULE);
    if (p == NULL || (p->plan != NULL && context_is_here(p->shared))) return p;
    unmake(p);
    return make(p) == 0 ? p : NULL;
}

/* The run's own lengths may differ; everything else is fixed, and the core trusts the plan in it.
 */
static int check_same(const call *c, const plan *p) {
    tp_problem asked = c->problem;
    asked.batch = p->problem.batch;
    asked.q_len = p->problem.q_len;
    asked.kv_len = p->problem.kv_len;
    if (asked.cascade > 0 && asked.cascade <= p->problem.cascade) asked.cascade = p->problem.cascade;
    if (memcmp(&asked, &p->problem, sizeof asked) == 0) return 0;
    char have[512] = "", need[512] = "";
    tp_problem_print(&c->problem, NULL, have, sizeof have);
    tp_problem_print(&p->problem, NULL, need, sizeof need);
    PyErr_Format(PyExc_ValueError,
                 "this call is \"%s\": the plan is for \"%s\", and only lengths may differ", have,
                 need);
    return -1;
}

static void *take_workspace(plan *p, void **own) {
    *own = NULL;
    if (p->busy) return posix_memalign(own, 64, p->workspace_size + 64) == 0 ? *own : NULL;
    if (p->workspace == NULL && posix_memalign(&p->workspace, 64, p->workspace_size + 64) != 0)
        return NULL;
    p->busy = 1;
    return p->workspace;
}

static PyObject *run(plan *p, call *c, PyObject *const *args) {
    tp_error error = TP_ERROR_INIT;
    tp_receipt receipt;
    tp_exec exec = TP_EXEC_INIT;
    void *own;
    if (call_open(c, args, NULL) != 0) return NULL;
    c->problem.o_dtype = p->problem.o_dtype; /* a new tensor is of this dtype, one that is given has its own */
    if (call_outputs(c, args[ARG_out]) != 0 || check_same(c, p) != 0) return NULL;
    exec.workspace = take_workspace(p, &own);
    exec.workspace_size = p->workspace_size;
    if (exec.workspace == NULL) return PyErr_NoMemory();
    if (c->return_receipt) tp_receipt_init(&receipt);
    tp_status status;
    Py_BEGIN_ALLOW_THREADS status = call_materialise(c, &error);
    if (status == TP_OK)
        status =
            tp_plan_run(p->plan, &c->tensors, &exec, c->return_receipt ? &receipt : NULL, &error);
    Py_END_ALLOW_THREADS if (own == NULL) p->busy = 0;
    free(own);
    if (status != TP_OK) {
        raise_status(status, &error);
        return NULL;
    }
    return call_result(c, &receipt);
}

PyObject *core_plan_run(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    call c = {0};
    if (wrong_count("plan_run", count, ARG_COUNT + 1)) return NULL;
    plan *p = plan_of(args[ARG_COUNT]);
    if (p == NULL) return NULL;
    PyObject *result = run(p, &c, args);
    call_close(&c);
    return result;
}

/* (text, json) of its decision, and bytes of workspace */
PyObject *core_plan_about(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    if (wrong_count("plan_about", count, 1)) return NULL;
    plan *p = plan_of(args[0]);
    if (p == NULL) return NULL;
    PyObject *texts = decision_texts(tp_plan_decision(p->plan));
    return texts != NULL ? Py_BuildValue("Nn", texts, (Py_ssize_t)p->workspace_size) : NULL;
}
