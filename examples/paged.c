/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A server's cache: two sequences share one pool of pages, grow token by token, and are decoded together.
 *
 *     pool[page][token][head][dim]     pages of 16 tokens, handed out as sequences need them
 *     table[sequence][slot]            which page holds the tokens slot*16..slot*16+15 of a sequence
 *     lens[sequence]                   how many tokens it has
 *
 * Each step appends a key and a value to every sequence and attends with one row each, straight from the pages. At
 * the end the same rows are computed by the definition (tp_reference): prints the largest difference and the bound
 * that it must be under.     paged [STEPS]
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tileproof.h"

enum { SEQUENCES = 2, Q_HEADS = 4, KV_HEADS = 2, DIM = 32, PAGE = 16, SLOTS = 64, PAGES = 100, KEYS = SLOTS * PAGE };

static float pool_k[PAGES][PAGE][KV_HEADS][DIM], pool_v[PAGES][PAGE][KV_HEADS][DIM];
static float q[SEQUENCES][1][Q_HEADS][DIM], o[SEQUENCES][1][Q_HEADS][DIM];
static int32_t table[SEQUENCES][SLOTS], lens[SEQUENCES];
static int free_pages[PAGES], free_count;

static uint64_t state = 1;
static void draw(float *to, int count) { /* -1..1 */
    for (int i = 0; i < count; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        to[i] = (float)(int32_t)(state >> 33 ^ state >> 48) * 0x1p-30f - 1.0f;
    }
}

/* Is there room for one more token of each sequence? Asked before any of them gets one: a step is for all or none. */
static int capacity(void) {
    int pages = 0;
    for (int s = 0; s < SEQUENCES; s++) {
        if (lens[s] == KEYS) return 0;
        pages += lens[s] % PAGE == 0;
    }
    return pages <= free_count;
}

/* One more token: a new page where the last one is full. */
static void append(int sequence) {
    int at = lens[sequence], slot = at / PAGE;
    if (at % PAGE == 0) table[sequence][slot] = free_pages[--free_count];
    draw(pool_k[table[sequence][slot]][at % PAGE][0], KV_HEADS * DIM);
    draw(pool_v[table[sequence][slot]][at % PAGE][0], KV_HEADS * DIM);
    lens[sequence]++;
}

/* By the definition, for every row of the last step. */
static tp_status compare(const tp_problem *problem, const tp_tensors *tensors, tp_error *error) {
    double worst = 0, allowed = 0;
    for (int s = 0; s < SEQUENCES; s++)
        for (int h = 0; h < Q_HEADS; h++) {
            tp_row row = {s, h, 0};
            double exact[DIM], bound;
            tp_status status =
                tp_reference(problem, tensors, TP_DOUBLE, TP_ARITHMETIC_F32, 1, &row, exact, NULL, &bound, NULL, error);
            if (status != TP_OK) return status;
            allowed = fmax(allowed, bound);
            for (int x = 0; x < DIM; x++) worst = fmax(worst, fabs((double)o[s][0][h][x] - exact[x]));
        }
    printf("largest difference %.3g, bound %.3g: %s\n", worst, allowed, worst <= allowed ? "right" : "WRONG");
    return worst <= allowed ? TP_OK : TP_INVALID;
}

int main(int count, char **words) {
    tp_error error = TP_ERROR_INIT;
    tp_context *context;
    tp_problem problem;
    tp_tensors tensors;
    tp_receipt receipt;
    int steps = count > 1 ? atoi(words[1]) : 300;
    if (steps < 1) return fprintf(stderr, "STEPS is '%s': it must be a number from 1 on\n", words[1]), 2;
    if (tp_context_create(NULL, &context, &error)) return fprintf(stderr, "%s\n", error.text), 1;

    /* What is asked: bounds, so that one problem serves every step. */
    tp_problem_init(&problem);
    problem.batch = SEQUENCES;
    problem.q_heads = Q_HEADS;
    problem.kv_heads = KV_HEADS;
    problem.q_len = 1;
    problem.kv_len = KEYS;
    problem.head_dim_qk = problem.head_dim_v = DIM;
    problem.kv_layout = TP_PAGED;
    problem.page_size = PAGE;
    tp_problem_causal(&problem);

    /* Where it lies: strides of the pages come from init, the tables and lengths from us. */
    tp_tensors_init(&tensors, &problem, q, pool_k, pool_v, o);
    tensors.k_pages = table; /* of v, too: v_pages stays NULL */
    tensors.page_slots = SLOTS;
    tensors.pages = PAGES;
    tensors.kv_lens = lens;

    memset(table, 0xff, sizeof table); /* -1: no row sees such a page */
    for (int i = 0; i < PAGES; i++) free_pages[free_count++] = i * 37 % PAGES;
    for (int i = 0; i < 20; i++) append(1); /* sequences need not be as long as one another */
    tp_receipt_init(&receipt);
    tp_status status = TP_OK;
    for (int step = 0; step < steps && capacity() && status == TP_OK; step++) {
        for (int s = 0; s < SEQUENCES; s++) append(s);
        draw(q[0][0][0], SEQUENCES * Q_HEADS * DIM);
        status = tp_attention(context, &problem, NULL, &tensors, &receipt, &error);
    }
    if (status == TP_OK) printf("%s\nby %s, with %d pages left\n", receipt.problem, receipt.kernel, free_count);
    if (status == TP_OK) status = compare(&problem, &tensors, &error);
    if (status != TP_OK) fprintf(stderr, "%s\n", error.text);
    tp_context_destroy(context);
    return status != TP_OK;
}
