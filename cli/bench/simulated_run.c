/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The child's side of simulate.c: one run, of which alone callgrind counts. Instrumentation is off
 * until then, and starting it empties the simulated caches, so the call meets a cold cache however
 * the tensors were filled. What is still dirty in the cache afterwards is written back by reading
 * as many bytes of something else as the cache has. The bytes read are added up and the sum is
 * kept: valgrind drops a load whose value nothing uses, volatile or not, before callgrind sees it.
 */
#include "bench/bench.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#if defined __has_include
#if __has_include(<valgrind/callgrind.h>)
#include <valgrind/callgrind.h>
#endif
#endif

#ifdef CALLGRIND_START_INSTRUMENTATION
static int count_run(const struct timed_case *one, int64_t cache_bytes, tp_receipt *receipt,
                     tp_error *error) {
    tp_exec exec = TP_EXEC_INIT;
    exec.threads = one->threads;
    exec.workspace = one->workspace.memory;
    exec.workspace_size = one->workspace.bytes;
    const volatile char *other = mmap(NULL, (size_t)cache_bytes, PROT_READ,
                                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (other == MAP_FAILED) {
        complain("no memory to sweep the simulated cache with");
        return EXIT_FAILED;
    }
    CALLGRIND_START_INSTRUMENTATION;
    CALLGRIND_ZERO_STATS;
    tp_status status = tp_plan_run(one->plan, &one->workload->tensors.call, &exec, receipt, error);
    CALLGRIND_DUMP_STATS_AT("call");
    unsigned sum = 0;
    for (int64_t at = 0; at < cache_bytes; at += 64) sum += (unsigned char)other[at];
    volatile unsigned kept = sum;
    (void)kept;
    CALLGRIND_DUMP_STATS_AT("sweep");
    CALLGRIND_STOP_INSTRUMENTATION;
    munmap((void *)other, (size_t)cache_bytes);
    return status == TP_OK ? EXIT_FINE : complain_status(error);
}
#else
static int count_run(const struct timed_case *one, int64_t cache_bytes, tp_receipt *receipt,
                     tp_error *error) {
    (void)one, (void)cache_bytes, (void)receipt, (void)error;
    complain("this build was made without valgrind/callgrind.h");
    return EXIT_REFUSED;
}
#endif

static int64_t tensor_bytes(const struct tensors *tensors, enum tensor_id id) {
    int64_t tokens = 0;
    for (int64_t s = 0; s < tensors->sequences; s++) tokens += tensors_len(tensors, id, s);
    return tokens * tensors_heads(tensors, id) * tensors_dim(tensors, id) *
           (int64_t)tp_dtype_bytes(tensors_dtype(tensors, id));
}

/* What the call must write: o, or the gradients, which lie as q, k and v do. */
static int64_t output_bytes(const struct tensors *tensors) {
    if (tensors->problem.op != TP_BACKWARD) return tensor_bytes(tensors, TENSOR_O);
    return tensor_bytes(tensors, TENSOR_Q) + tensor_bytes(tensors, TENSOR_K) +
           tensor_bytes(tensors, TENSOR_V);
}

static int run(const struct options *options, struct timed_case *one, tp_context *context) {
    tp_error error = TP_ERROR_INIT;
    tp_choice choice = TP_CHOICE_INIT;
    tp_receipt receipt;
    int code = bench_kernel(options->kernel, &one->kernel);
    if (code) return code;
    choice.policy = TP_PERMIT;
    choice.kernel = one->kernel;
    if (tp_plan_create(context, &one->workload->tensors.problem, &choice, &one->plan, &error) !=
            TP_OK ||
        workload_prepare(one->workload, context, &error) != TP_OK)
        return complain_status(&error);
    size_t bytes = tp_plan_workspace(one->plan, one->threads);
    if (workspace_grow(&one->workspace, bytes)) {
        complain("no memory for a workspace of %zu bytes", bytes);
        return EXIT_FAILED;
    }
    tp_receipt_init(&receipt);
    code = count_run(one, options->cache_bytes, &receipt, &error);
    if (code) return code;
    printf("{\"output_bytes\": %lld, \"receipt\": ",
           (long long)output_bytes(&one->workload->tensors));
    tp_receipt_write(&receipt, TP_JSON, write_to_file, stdout);
    printf("}\n");
    return EXIT_FINE;
}

int command_simulated_run(const struct options *options) {
    struct workload problem;
    struct timed_case one = {.workload = &problem, .threads = 1, .library = library_linked()};
    tp_context *context;
    tp_error error = TP_ERROR_INIT;
    int code = bench_context(1, &context);
    if (code) return code;
    if (bench_problem_open(&problem, options->problem, (uint64_t)options->seed, &error) == TP_OK) {
        code = run(options, &one, context);
        timed_case_close(&one);
        workload_close(&problem);
    } else {
        code = complain_status(&error);
    }
    tp_context_destroy(context);
    return code;
}
