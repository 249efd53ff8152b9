/* SPDX-License-Identifier: Apache-2.0 */
/* PyTorch's scaled_dot_product_attention for plain calls: tensors of PyTorch's own type on the CPU, of four dimensions, without a
 * mask, dropout or gradient, and nobody who has a say in them. Each of these questions costs tens of nanoseconds here and a
 * multiple in Python. The answer to any other call is None: Python then does what is right, or says what is wrong. */
#include "core.h"

/* What is asked of torch._C by functions without arguments, and must answer 0. */
enum { DISPATCH_MODES, GRADIENTS, FUNCTION_MODES, AUTOCAST, FLASH, MATH, EFFICIENT, QUESTIONS };
static const struct {
    const char *name;
    int of_patch, answer; /* of_patch: only where the call came by PyTorch's own name; the answer that lets it pass */
} questions[QUESTIONS] = {
    [DISPATCH_MODES] = {"_len_torch_dispatch_stack", 0, 0},
    [GRADIENTS] = {"is_grad_enabled", 0, 0}, /* 1: the tensors are asked */
    [FUNCTION_MODES] = {"_len_torch_function_stack", 1, 0},
    [AUTOCAST] = {"_is_any_autocast_enabled", 1, 0}, /* of any device: asking for one costs five times as much */
    [FLASH] = {"_get_flash_sdp_enabled", 1, 1},
    [MATH] = {"_get_math_sdp_enabled", 1, 1},
    [EFFICIENT] = {"_get_mem_efficient_sdp_enabled", 1, 1},
};

static struct {
    int known; /* 1: all of it was found; -1: this PyTorch has not all of it */
    PyObject *tensor, *question[QUESTIONS], *threads, *forward_ad, *level, *requires_grad, *is_neg;
} torch;

static PyObject *attribute_of(const char *module, const char *name) {
    PyObject *found = PyImport_ImportModule(module), *value = found != NULL ? PyObject_GetAttrString(found, name) : NULL;
    Py_XDECREF(found);
    return value;
}

/* PyTorch is in the process, as the caller knows. */
static int find_torch(void) {
    if (torch.known != 0) return torch.known > 0;
    int fine = (torch.tensor = attribute_of("torch", "Tensor")) != NULL;
    for (int i = 0; i < QUESTIONS; i++) fine &= (torch.question[i] = attribute_of("torch._C", questions[i].name)) != NULL;
    fine &= (torch.threads = attribute_of("torch._C", "get_num_threads")) != NULL;
    fine &= (torch.forward_ad = PyImport_ImportModule("torch.autograd.forward_ad")) != NULL;
    fine &= (torch.level = PyUnicode_InternFromString("_current_level")) != NULL;
    fine &= (torch.requires_grad = PyUnicode_InternFromString("requires_grad")) != NULL;
    fine &= (torch.is_neg = PyUnicode_InternFromString("is_neg")) != NULL;
    PyErr_Clear();
    torch.known = fine ? 1 : -1;
    return fine;
}

/* A small whole number or a bool, which goes; -1: something else. */
static long taken(PyObject *answer) {
    long value = answer != NULL ? PyLong_AsLong(answer) : -1;
    Py_XDECREF(answer);
    if (PyErr_Occurred()) PyErr_Clear();
    return value;
}

/* Modes, transforms, switches of PyTorch's, autocast: nobody but this call has a say. */
static int alone(int of_patch, PyObject *const *tensors) {
    PyObject *level = PyObject_GetAttr(torch.forward_ad, torch.level);
    int forward = level == NULL || PyLong_AsLong(level) != -1;
    Py_XDECREF(level);
    if (forward) return 0;
    for (int i = 0; i < QUESTIONS; i++) {
        if (questions[i].of_patch && !of_patch) continue;
        long answer = taken(PyObject_CallNoArgs(torch.question[i]));
        for (int k = 0; i == GRADIENTS && answer == 1 && k < 3; k++)
            if (taken(PyObject_GetAttr(tensors[k], torch.requires_grad)) != 0) return 0;
        if (answer != questions[i].answer && !(i == GRADIENTS && answer == 1)) return 0;
    }
    return 1;
}

typedef struct plain {
    dl_tensor in[3], out;
    const dtype_row *dtype;
    PyObject *made;
} plain;

/* Four dimensions, the last one contiguous, not empty. */
static int is_plain(const dl_tensor *t, const dtype_row *dtype) {
    if (t->ndim != 4 || t->device.type != DL_CPU || t->data == NULL || dtype->code > TP_BF16) return 0;
    for (int i = 0; i < 4; i++)
        if (t->shape[i] < 1 || t->strides[i] < 0) return 0;
    return (t->strides[3] == 1 || t->shape[3] == 1) && ((uintptr_t)t->data + t->byte_offset) % (uintptr_t)dtype->size == 0;
}

/* The tensors as they are, while the caller holds them. A view that is negated when it is read looks like any other. */
static int read_tensors(plain *p, const dl_exchange *exchange, PyObject *const *tensors) {
    for (int i = 0; i < 3; i++) {
        dl_tensor *t = &p->in[i];
        if (exchange->tensor_of(tensors[i], t) != 0) {
            PyErr_Clear();
            return 0;
        }
        const dtype_row *dtype = dtype_of_dlpack(t->dtype.code, t->dtype.bits, t->dtype.lanes);
        if (i == 0) p->dtype = dtype;
        if (dtype != p->dtype || !is_plain(t, dtype)) return 0;
        if (taken(PyObject_CallMethodObjArgs(tensors[i], torch.is_neg, NULL)) != 0) return 0;
    }
    return 1;
}

static int fits(const plain *p, int gqa) {
    const int64_t *q = p->in[0].shape, *k = p->in[1].shape, *v = p->in[2].shape;
    if (q[3] > TP_MAX_HEAD_DIM || v[3] > TP_MAX_HEAD_DIM) return 0; /* the fallback is Python's to choose */
    return q[0] == k[0] && k[0] == v[0] && k[1] == v[1] && (q[1] == k[1] || gqa) && k[2] == v[2] && q[3] == k[3];
}

static void place(const dl_tensor *t, tp_tensor *to) {
    static const int dims[] = {0, 2, 1};
    to->data = (char *)t->data + t->byte_offset;
    for (int i = 0; i < 3; i++) to->stride[i] = t->shape[dims[i]] > 1 ? t->strides[dims[i]] : 0;
}

static void describe(const plain *p, PyObject *const *args, tp_problem *problem, tp_tensors *tensors) {
    const int64_t *q = p->in[0].shape, *k = p->in[1].shape;
    tp_problem_init(problem);
    problem->align = args[SDPA_top_left] == Py_True ? TP_TOP_LEFT : TP_BOTTOM_RIGHT;
    if (args[SDPA_is_causal] == Py_True) tp_problem_causal(problem);
    problem->scale_set = !Py_IsNone(args[SDPA_scale]);
    problem->scale = problem->scale_set ? (float)PyFloat_AsDouble(args[SDPA_scale]) : 0;
    problem->q_dtype = problem->k_dtype = problem->v_dtype = problem->o_dtype = p->dtype->code;
    problem->p_dtype = p->dtype->code == TP_BF16 ? TP_BF16 : 0; /* as PyTorch's own function rounds them */
    problem->q_heads = q[1];
    problem->kv_heads = k[1];
    problem->head_dim_qk = q[3];
    problem->head_dim_v = p->in[2].shape[3];
    *tensors = (tp_tensors){.struct_size = sizeof *tensors, .index_type = TP_I64};
    problem->batch = tensors->batch = q[0];
    problem->q_len = tensors->q_len = tensors->q_tokens = q[2];
    problem->kv_len = tensors->kv_len = tensors->kv_tokens = k[2];
    place(&p->in[0], &tensors->q);
    place(&p->in[1], &tensors->k);
    place(&p->in[2], &tensors->v);
}

/* A new tensor of q's shape with v's head dim, and where it lies. */
static int make_output(plain *p, const dl_exchange *exchange, tp_tensor *o) {
    const int64_t *q = p->in[0].shape;
    int64_t shape[] = {q[0], q[1], q[2], p->in[2].shape[3]};
    if (allocate_by(exchange, p->dtype, 4, shape, &p->made, &o->data) != 0) return -1;
    o->stride[2] = shape[2] * shape[3];
    o->stride[1] = shape[3];
    o->stride[0] = shape[1] * o->stride[2];
    return 0;
}

static crew crew_of_call(const tp_problem *problem, long exactly) {
    long max = exactly != 0 || is_small(problem) ? 1 : taken(PyObject_CallNoArgs(torch.threads));
    return crew_of(problem, (int)exactly, max < 1 ? 1 : (int)max);
}

static PyObject *run(plain *p, PyObject *const *args) {
    const dl_exchange *exchange = exchange_of(args[0]);
    tp_error error = TP_ERROR_INIT;
    tp_problem problem;
    tp_tensors tensors;
    tp_choice choice = TP_CHOICE_INIT;
    tp_receipt receipt;
    int wanted = args[SDPA_receipt] == Py_True;
    long exactly = Py_IsNone(args[SDPA_threads]) ? 0 : PyLong_AsLong(args[SDPA_threads]);
    if (PyErr_Occurred() || exactly < 0 || exactly > 1024) {
        PyErr_Clear();
        Py_RETURN_NONE;
    }
    if (!read_tensors(p, exchange, args) || !fits(p, args[SDPA_enable_gqa] == Py_True)) Py_RETURN_NONE;
    describe(p, args, &problem, &tensors);
    if (make_output(p, exchange, &tensors.o) != 0) return NULL;
    shared_context *shared = context_take(crew_of_call(&problem, exactly));
    if (shared == NULL) return NULL;
    if (wanted) tp_receipt_init(&receipt);
    tp_context *context = context_of(shared);
    tp_status status;
    Py_BEGIN_ALLOW_THREADS status = tp_attention(context, &problem, &choice, &tensors, wanted ? &receipt : NULL, &error);
    Py_END_ALLOW_THREADS context_give(shared);
    if (status != TP_OK) {
        raise_status(status, &error);
        return NULL;
    }
    if (!wanted) return Py_NewRef(p->made);
    PyObject *raw = receipt_raw(&receipt), *pair = raw != NULL ? PyTuple_Pack(2, p->made, raw) : NULL;
    Py_XDECREF(raw);
    return pair;
}

/* None, or the output; with a receipt (output, receipt). */
PyObject *core_sdpa(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self;
    if (wrong_count("sdpa", count, SDPA_COUNT) || !find_torch()) return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
    for (int i = 0; i < 3; i++)
        if ((PyObject *)Py_TYPE(args[i]) != torch.tensor) Py_RETURN_NONE;
    int flags = PyBool_Check(args[SDPA_is_causal]) && PyBool_Check(args[SDPA_enable_gqa]);
    int number = Py_IsNone(args[SDPA_scale]) || PyFloat_CheckExact(args[SDPA_scale]);
    int drops = !PyFloat_CheckExact(args[SDPA_dropout_p]) || PyFloat_AsDouble(args[SDPA_dropout_p]) != 0;
    if (!Py_IsNone(args[SDPA_threads]) && !PyLong_Check(args[SDPA_threads])) Py_RETURN_NONE;
    if (!Py_IsNone(args[SDPA_attn_mask]) || drops || !flags || !number) Py_RETURN_NONE;
    const dl_exchange *exchange = exchange_of(args[0]);
    if (exchange == NULL || exchange->tensor_of == NULL || !alone(args[SDPA_of_patch] == Py_True, args)) Py_RETURN_NONE;
    plain p = {0};
    PyObject *result = run(&p, args);
    Py_XDECREF(p.made);
    return result;
}
