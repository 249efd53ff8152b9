/* SPDX-License-Identifier: Apache-2.0 */
#include "harness/placed.h"

#include <string.h>

#include "harness/fail.h"
#include "harness/gradients.h"

static tp_status add(struct placed *p, const void *here, size_t bytes, int written, tp_error *error) {
    if (!here || !bytes) return TP_OK;
    if (p->count == PLACED_PIECES) return harness_fail(error, TP_UNSUPPORTED, "a call of more than %d pieces", PLACED_PIECES);
    struct placed_piece *piece = &p->pieces[p->count];
    *piece = (struct placed_piece){.here = (char *)(uintptr_t)here, .bytes = bytes, .written = written};
    void *there = NULL;
    tp_status status = tp_memory_allocate(p->context, p->device, bytes, &there, error);
    if (status != TP_OK) return status;
    piece->there = there;
    p->count++;
    return tp_memory_copy(p->context, p->device, there, TP_CPU, here, bytes, error);
}

static tp_status add_tensors(struct placed *p, const struct tensors *t, int first_written, int last_written, tp_error *error) {
    tp_status status = TP_OK;
    for (int id = TENSOR_Q; id < TENSOR_COUNT && status == TP_OK; id++)
        status = add(p, t->buffer[id].memory, t->buffer[id].bytes, id >= first_written && id <= last_written, error);
    return status;
}

/* Index arrays, with the extents of the harness's own. */
static tp_status add_indices(struct placed *p, const struct tensors *t, tp_error *error) {
    size_t unit = t->style.index64 ? 8 : 4, batch = (size_t)t->call.batch, slots = batch * (size_t)t->call.page_slots;
    const size_t counts[INDEX_COUNT] = {[INDEX_CU_Q] = batch + 1, [INDEX_CU_KV] = batch + 1, [INDEX_Q_LENS] = batch,
                                        [INDEX_KV_LENS] = batch,  [INDEX_K_PAGES] = slots,   [INDEX_V_PAGES] = slots,
                                        [INDEX_SHARED_WITH] = batch, [INDEX_SHARED_LENS] = batch};
    tp_status status = TP_OK;
    for (int i = 0; i < INDEX_COUNT && status == TP_OK; i++) status = add(p, t->indices[i], counts[i] * unit, 0, error);
    return status;
}

/* The address there of what lies here; an address that no piece holds, that of an empty tensor, stays. */
static void move(const struct placed *p, void *field) {
    char *here;
    memcpy(&here, field, sizeof here);
    for (int i = 0; here && i < p->count; i++)
        if (here >= p->pieces[i].here && here < p->pieces[i].here + p->pieces[i].bytes) {
            char *there = p->pieces[i].there + (here - p->pieces[i].here);
            memcpy(field, &there, sizeof there);
            return;
        }
}

static void move_all(struct placed *p, int indices_too) {
    tp_tensors *c = &p->call;
    void *const data[] = {&c->q.data, &c->k.data, &c->v.data, &c->o.data, &c->lse.data, &c->alibi_slopes, &c->sinks};
    void *const indices[] = {&c->cu_seqlens_q, &c->cu_seqlens_kv, &c->q_lens,      &c->kv_lens,
                             &c->k_pages,      &c->v_pages,       &c->shared_with, &c->shared_lens};
    for (size_t i = 0; i < sizeof data / sizeof *data; i++) move(p, data[i]);
    for (size_t i = 0; indices_too && i < sizeof indices / sizeof *indices; i++) move(p, indices[i]);
    c->device = p->device;
    c->index_device = indices_too ? p->device : TP_CPU;
    if (!c->gradients) return;
    p->gradients = *c->gradients;
    tp_gradients *g = &p->gradients;
    void *const of_back[] = {&g->d_o.data, &g->d_lse.data,     &g->d_q.data, &g->d_k.data,
                             &g->d_v.data, &g->d_alibi_slopes, &g->d_sinks};
    for (size_t i = 0; i < sizeof of_back / sizeof *of_back; i++) move(p, of_back[i]);
    c->gradients = g;
}

tp_status placed_create(struct placed *p, tp_context *context, int device, const struct tensors *tensors, int indices_too,
                        tp_error *error) {
    const tp_problem *problem = &tensors->problem;
    const struct gradients *gradients = problem->op == TP_BACKWARD ? tensors->gradients : NULL;
    *p = (struct placed){.context = context, .device = device, .call = tensors->call};
    size_t heads = (size_t)problem->q_heads * sizeof(float);
    size_t slopes = heads * (size_t)(tensors->call.alibi_stride ? tensors->call.batch : 1);
    tp_status status = add_tensors(p, tensors, gradients ? TENSOR_COUNT : TENSOR_O, TENSOR_LSE, error);
    if (status == TP_OK && problem->alibi) status = add(p, tensors->call.alibi_slopes, slopes, 0, error);
    if (status == TP_OK && problem->sinks) status = add(p, tensors->call.sinks, heads, 0, error);
    if (status == TP_OK && indices_too) status = add_indices(p, tensors, error);
    if (status == TP_OK && gradients) status = add_tensors(p, &gradients->held, TENSOR_Q, TENSOR_V, error);
    if (status == TP_OK && gradients && problem->alibi) status = add(p, gradients->d_slopes, slopes, 1, error);
    if (status == TP_OK && gradients && problem->sinks) status = add(p, gradients->d_sinks, heads, 1, error);
    if (status != TP_OK) {
        placed_destroy(p);
        return status;
    }
    if (!gradients) p->call.gradients = NULL;
    move_all(p, indices_too);
    return TP_OK;
}

tp_status placed_fetch(const struct placed *p, tp_error *error) {
    tp_status status = TP_OK;
    for (int i = 0; i < p->count && status == TP_OK; i++)
        if (p->pieces[i].written)
            status =
                tp_memory_copy(p->context, TP_CPU, p->pieces[i].here, p->device, p->pieces[i].there, p->pieces[i].bytes, error);
    return status;
}

void placed_destroy(struct placed *p) {
    for (int i = 0; i < p->count; i++) tp_memory_free(p->context, p->device, p->pieces[i].there, p->pieces[i].bytes, NULL);
    p->count = 0;
}
