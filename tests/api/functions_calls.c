/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The calls that functions.sh looks at, in one process: callgrind takes longer to begin than all of them take to run.
 * Prints "function NAME" for every kernel function, then "case KERNEL PROBLEM" and what the receipts say: "NAME CALLS". Every
 * case ends in case_ends, after which
 * callgrind writes its counts.
 */
#include <stdio.h>

#include "harness/tensors.h"
#include "support/back.h"

void case_ends(void);
__attribute__((noinline)) void case_ends(void) { fflush(stdout); }

static void print(const tp_receipt *receipt) {
    const char *name;
    int64_t calls;
    for (int i = 0; tp_receipt_function(receipt, i, &name, &calls); i++) printf("%s %lld\n", name, (long long)calls);
}

/* Of a quantised cache and of shared prefixes, whose tensors the harness makes. */
static int run_cached(const char *kernel, const char *text, tp_receipt *receipt) {
    const struct tensors_style style = {0};
    tp_error error = TP_ERROR_INIT;
    tp_choice choice = TP_CHOICE_INIT;
    tp_problem problem;
    struct tensors tensors;
    choice.policy = TP_PERMIT;
    choice.kernel = kernel;
    if (tp_problem_parse(text, &problem, NULL, &error) || tensors_create(&tensors, &problem, NULL, &style)) return 1;
    tp_status status = TP_NO_MEMORY;
    if (!tensors_fill(&tensors, 1)) status = tp_attention(call_context(), &problem, &choice, &tensors.call, receipt, &error);
    tensors_destroy(&tensors);
    return status != TP_OK ? printf("%s\n", error.text), 1 : 0;
}

int main(void) {
    static const char *const texts[] = {
        "h4/2 q70 k90 d40 bf16 causal",
        "h2/1 q3 k4200 d16 f32 window=300,0",
        "seqs=1x9/30,2x1/5 h2 d8 f16->f32 packed",
        "h8/2 q1 k1100 d24 bf16 paged=16",
        "seqs=1x40/90,2x1/1030 h2/1 d16 f32 packed-q paged=3 causal",
        "h8/1 q3 k90 d40/32 f16 latent sparse=20",
        "h4/2 q70 k90 d40 bf16 causal sinks",
        "h8/2 q1 k1100 d24 f16 sinks",
        "h2 q40 k4200 d16 f32 sinks alibi",
    };
    static const char *const cached[] = {
        "h4/2 q70 k90 d64 bf16:i8:e4m3 causal",
        "h4/2 q1 k90 d64 bf16:i8:e4m3",
        "h2 q40 k90 d32 f32:e4m3:i8 causal scales=token",
        "h2 q1 k90 d32 f32:e4m3:i8 scales=token",
        "h4/2 q70 k90 d64 bf16:i4:i8 scales=group:q8_0",
        "h4/2 q1 k90 d64 bf16:i4:i8 scales=group:q8_0",
        "h4/2 q70 k90 d64 bf16:i8:i4 scales=q8_0:group paged=16",
        "h4/2 q1 k90 d64 bf16:i8:i4 scales=q8_0:group paged=16",
        "b3 h4/2 q1 k600 d64 bf16 paged=16 causal cascade=512",
    };
    static const char *const gradients[] = {"h4/2 q70 k90 d40 bf16 causal", "q40 d16 f32 sinks", "q40 d16 f16"};
    tp_receipt receipt;
    for (int i = 0; tp_kernel_function(i) != NULL; i++) printf("function %s\n", tp_kernel_function(i));
    for (int i = 0; tp_kernel_at(i) != NULL; i++) {
        int known = 0;
        for (int k = 0; call_kernel(k) != NULL; k++) known |= call_kernel_info(k) == tp_kernel_at(i);
        if (!known) printf("not run here: %s under callgrind\n", tp_kernel_at(i)->name);
    }
    for (int k = 0; call_kernel(k) != NULL; k++)
        for (int t = 0; t < COUNT(texts); t++) {
            call *c = call_new(texts[t], NULL);
            tp_receipt_init(&receipt);
            call_run(c, &(call_how){.kernel = call_kernel(k)}, &receipt);
            printf("case %s %s\n", call_kernel(k), texts[t]);
            print(&receipt);
            call_free(c);
            case_ends();
        }
    for (int k = 0; call_kernel(k) != NULL; k++)
        for (int t = 0; t < COUNT(cached); t++) {
            printf("case %s %s\n", call_kernel(k), cached[t]);
            tp_receipt_init(&receipt);
            if (run_cached(call_kernel(k), cached[t], &receipt)) return 1;
            print(&receipt);
            case_ends();
        }
    for (int k = 0; back_kernel(k) != NULL; k++)
        for (int t = 0; t < COUNT(gradients); t++) {
            const call_how how = {.kernel = back_kernel(k)};
            back *b = back_new(gradients[t], 0);
            tp_error error = TP_ERROR_INIT;
            printf("case %s backward %s\n", how.kernel, gradients[t]);
            tp_receipt_init(&receipt);
            call_run(b->c, &how, &receipt);
            print(&receipt);
            if (back_try(b, &how, &receipt, &error)) return printf("%s\n", error.text), 1;
            print(&receipt);
            back_free(b);
            case_ends();
        }
    return 0;
}
