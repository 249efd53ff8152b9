/* SPDX-License-Identifier: Apache-2.0 */
/* What goes wrong around a call, and what is told of one: sources that do not compile, a device that vanishes, buffers that are
   too small, several processes and one cache folder; policy, receipts, counts and trace lines of a device. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "opencl/rig.h"

#define TEXT "h2/1 q20 k40 d32 f32 causal"
static const char *const texts[] = {TEXT, "h2/1 q1 k600 d32 f32"};
enum { TEXTS = sizeof texts / sizeof *texts, PROCESSES = 3 };

/* ---- compiling */

/* A log longer than an error's text, of which the end is shown: six lines for six names. */
static void the_log_of_a_source_that_does_not_compile(void **state) {
    (void)state;
    rig r = rig_open(NULL);
    tp_error error = TP_ERROR_INIT;
    rig_shim()->reset();
    setenv("OPENCL_FIND", "int lane = (int)get_local_id(0)", 1);
    setenv("OPENCL_REPLACE", "int lane = no_such_1 + no_such_2 + no_such_3 + no_such_4 + no_such_5 + no_such_6", 1);
    assert_int_equal(rig_try(&r, TEXT, NULL, &error), TP_DEVICE_FAILED);
    assert_non_null(strstr(error.text, "clBuildProgram gave CL_BUILD_PROGRAM_FAILURE (-11) for -DDQ=32"));
    if (strstr(error.text, "no_such_6") == NULL || strstr(error.text, "no_such_1") != NULL)
        fail_msg("the compiler's words are not in '%s'", error.text);
    assert_int_equal(rig_shim()->calls("clEnqueueNDRangeKernel"), 0);
    unsetenv("OPENCL_FIND");
    unsetenv("OPENCL_REPLACE");
    rig_check_right(&r, TEXT, NULL, RIG_ON_HOST); /* what failed is not kept */
    rig_close(&r);
}

/* In a process of its own: 0, or how often it compiled from source. */
static int compile_into(const char *folder) {
    tp_opencl_options options = rig_options();
    options.cache = folder;
    rig r = rig_open(&options);
    for (int i = 0; i < TEXTS; i++) rig_check_right(&r, texts[i], NULL, RIG_ON_HOST);
    rig_close(&r);
    return rig_shim()->calls("clCreateProgramWithSource");
}

static pid_t start_compiling(const char *folder) {
    pid_t child = fork();
    if (child == 0) {
        execl("/proc/self/exe", "opencl_bad", "compile", folder, (char *)NULL);
        _exit(99);
    }
    return child;
}

static int files_in(const char *folder) {
    DIR *dir = opendir(folder);
    int count = 0;
    for (struct dirent *entry; (entry = readdir(dir)) != NULL;) count += entry->d_name[0] != '.';
    closedir(dir);
    return count;
}

static void processes_that_compile_at_once_into_one_folder(void **state) {
    (void)state;
    char folder[] = "/tmp/tileproof-shared-XXXXXX", command[64];
    pid_t children[PROCESSES];
    assert_non_null(mkdtemp(folder));
    for (int i = 0; i < PROCESSES; i++) children[i] = start_compiling(folder);
    for (int i = 0; i < PROCESSES; i++) {
        int status = 1;
        assert_int_equal(waitpid(children[i], &status, 0), children[i]);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) <= TEXTS); /* right results, however many it compiled */
    }
    assert_int_equal(files_in(folder), TEXTS); /* whole ones, and no part of one */
    int status = 1;
    pid_t last = start_compiling(folder);
    assert_int_equal(waitpid(last, &status, 0), last);
    assert_int_equal(status, 0); /* all from the folder */
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    assert_int_equal(system(command), 0);
}

/* /proc is a folder in which nobody, whatever their rights, makes a file. */
static void a_folder_that_cannot_be_written(void **state) {
    (void)state;
    tp_opencl_options options = rig_options();
    options.cache = "/proc";
    rig_shim()->reset();
    rig r = rig_open(&options);
    rig_check_right(&r, TEXT, NULL, RIG_ON_HOST);
    rig_close(&r);
    assert_int_equal(rig_shim()->calls("clCreateProgramWithSource"), 1);
}

/* ---- memory, and a device that goes */

typedef struct call_there {
    tp_problem problem;
    tp_tensors tensors;
    void *memory[5]; /* q, k, v, o, lse */
    size_t bytes[5];
} call_there;

enum { O = 3, POISON = 0x5a };

/* A call whose tensors lie in buffers of their own; of one of them the last `less` bytes are missing. */
static call_there make_call(const rig *r, int which, size_t less) {
    call_there c;
    char poison[4096];
    assert_int_equal(tp_problem_parse("q20 k20 d32 f32 causal", &c.problem, NULL, NULL), TP_OK);
    memset(poison, POISON, sizeof poison);
    for (int i = 0; i < 5; i++) {
        c.bytes[i] = (i < 4 ? 20 * 32 : 20) * sizeof(float) - (i == which ? less : 0);
        assert_int_equal(tp_memory_allocate(r->context, RIG_DEVICE, c.bytes[i], &c.memory[i], NULL), TP_OK);
        assert_int_equal(tp_memory_copy(r->context, RIG_DEVICE, c.memory[i], TP_CPU, poison, c.bytes[i], NULL), TP_OK);
    }
    tp_tensors_init(&c.tensors, &c.problem, c.memory[0], c.memory[1], c.memory[2], c.memory[O]);
    c.tensors.lse.data = c.memory[4];
    c.tensors.lse.stride[0] = 20;
    c.tensors.lse.stride[1] = 1;
    c.tensors.lse.stride[2] = 20;
    c.tensors.device = RIG_DEVICE;
    return c;
}

static void free_call(const rig *r, call_there *c) {
    for (int i = 0; i < 5; i++) tp_memory_free(r->context, RIG_DEVICE, c->memory[i], c->bytes[i], NULL);
}

static int is_untouched(const rig *r, const call_there *c) {
    char there[4096];
    assert_int_equal(tp_memory_copy(r->context, TP_CPU, there, RIG_DEVICE, c->memory[O], c->bytes[O], NULL), TP_OK);
    for (size_t i = 0; i < c->bytes[O]; i++)
        if (there[i] != POISON) return 0;
    return 1;
}

static void buffers_that_are_too_small(void **state) {
    (void)state;
    static const char *const names[] = {"q is ", "k is ", "v is ", "o is ", "lse is "};
    rig r = rig_open(NULL);
    tp_choice choice = rig_choice();
    for (int which = 0; which < 5; which++) {
        tp_error error = TP_ERROR_INIT;
        call_there c = make_call(&r, which, 64);
        assert_int_equal(tp_attention(r.context, &c.problem, &choice, &c.tensors, NULL, &error), TP_INVALID);
        if (strstr(error.text, names[which]) == NULL) fail_msg("'%s' is not in '%s'", names[which], error.text);
        assert_true(is_untouched(&r, &c));
        free_call(&r, &c);
    }
    call_there whole = make_call(&r, -1, 0);
    assert_int_equal(tp_attention(r.context, &whole.problem, &choice, &whole.tensors, NULL, NULL), TP_OK);
    assert_false(is_untouched(&r, &whole));
    free_call(&r, &whole);
    rig_close(&r);
}

static void a_device_that_vanishes(void **state) {
    (void)state;
    rig r = rig_open(NULL);
    tp_choice choice = rig_choice();
    tp_error error = TP_ERROR_INIT;
    call_there c = make_call(&r, -1, 0);
    rig_shim()->set(SHIM_GONE, 1);
    for (int i = 0; i < 3; i++) {
        tp_status status = tp_attention(r.context, &c.problem, &choice, &c.tensors, NULL, &error);
        assert_int_equal(status, TP_DEVICE_FAILED);
        if (strstr(error.text, "CL_OUT_OF_RESOURCES (-5)") == NULL) fail_msg("the text is '%s'", error.text);
    }
    rig_shim()->reset();
    assert_true(is_untouched(&r, &c));
    assert_int_equal(tp_attention(r.context, &c.problem, &choice, &c.tensors, NULL, &error), TP_OK);
    rig_shim()->set(SHIM_GONE, 1); /* now with kernels that are compiled */
    assert_int_equal(tp_attention(r.context, &c.problem, &choice, &c.tensors, NULL, &error), TP_DEVICE_FAILED);
    rig_shim()->reset();
    free_call(&r, &c);
    rig_close(&r);
}

/* ---- what is told */

static int keep_text(void *cookie, const char *bytes, size_t size) {
    char *all = cookie;
    size_t used = strlen(all);
    if (used + size < 65536) memcpy(all + used, bytes, size), all[used + size] = '\0';
    return 0;
}

static void receipts_counts_and_trace_of_a_device(void **state) {
    (void)state;
    static char trace[65536], metrics[65536];
    static const struct {
        const char *text;
        int64_t launches, tiles;
    } rows[] = {{"h2/1 q20 k40 d32 f32 causal", 1, 2},        /* 40 rows of the KV head, in tiles of 32 */
                {"b2 h2/1 q1 k600 d32 f32", 2, 2 * (2 + 1)}}; /* two splits of each sequence, and what merges them */
    tp_opencl_options options = rig_options();
    tp_context_options wanted = TP_CONTEXT_OPTIONS_INIT;
    tp_receipt receipt;
    rig r = {NULL, NULL};
    trace[0] = metrics[0] = '\0';
    assert_int_equal(tp_opencl_create(&options, &r.cl, NULL), TP_OK);
    wanted.threads = 1;
    wanted.backend = tp_opencl_backend(r.cl);
    wanted.trace = keep_text;
    wanted.trace_cookie = trace;
    assert_int_equal(tp_context_create(&wanted, &r.context, NULL), TP_OK);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(rig_try(&r, rows[i].text, &receipt, NULL), TP_OK);
        assert_string_equal(receipt.kernel, "opencl");
        assert_string_equal(receipt.device, "opencl");
        assert_int_equal(receipt.launches, rows[i].launches);
        assert_int_equal(receipt.tiles, rows[i].tiles);
    }
    rig_shim()->set(SHIM_DROP, 1); /* a call that fails is none that was completed */
    assert_int_equal(rig_try(&r, TEXT, &receipt, NULL), TP_DEVICE_FAILED);
    rig_shim()->reset();
    assert_int_equal(tp_metrics_write(r.context, keep_text, metrics), TP_OK);
    const char *prefill = strstr(metrics, "tileproof_calls_total{kernel=\"opencl\",device=\"opencl\",phase=\"prefill\"");
    const char *decode = strstr(metrics, "tileproof_calls_total{kernel=\"opencl\",device=\"opencl\",phase=\"decode\"");
    if (prefill == NULL || decode == NULL) fail_msg("%s", metrics);
    assert_non_null(strstr(prefill, "} 1\n"));
    assert_true(strstr(prefill, "} 1\n") < strchr(prefill, '\n'));
    assert_null(strstr(metrics, "tileproof_calls_total{kernel=\"generic\""));
    int lines = 0;
    for (const char *at = trace; (at = strstr(at, "\"kernel\":\"opencl\",\"device\":\"opencl\"")) != NULL; at++) lines++;
    if (lines != 2) fail_msg("%d lines of %s", lines, trace);
    assert_non_null(strstr(trace, "\"status\":\"TP_DEVICE_FAILED\""));
    rig_close(&r);
}

/* What the device does not serve is refused under every policy: the CPU's kernels are not asked. */
static void no_policy_leads_back_to_the_cpu(void **state) {
    (void)state;
    static const int policies[] = {TP_REFUSE, TP_PERMIT, TP_SERVE};
    rig r = rig_open(NULL);
    for (int i = 0; i < 3; i++) {
        tp_choice choice = rig_choice();
        tp_error error = TP_ERROR_INIT;
        tp_problem problem;
        tp_plan *plan = NULL;
        choice.policy = policies[i];
        assert_int_equal(tp_problem_parse("q20 k20 d32 f32 bias=f32", &problem, NULL, NULL), TP_OK);
        assert_int_equal(tp_plan_create(r.context, &problem, &choice, &plan, &error), TP_UNSUPPORTED);
        assert_null(plan);
        if (strstr(error.text, "opencl") == NULL || strstr(error.text, "bias") == NULL) fail_msg("'%s'", error.text);
        assert_int_equal(tp_problem_parse("q20 k20 d32 f32", &problem, NULL, NULL), TP_OK);
        assert_int_equal(tp_plan_create(r.context, &problem, &choice, &plan, &error), TP_OK); /* the first tier: no fallback */
        tp_plan_destroy(plan);
    }
    rig_close(&r);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_log_of_a_source_that_does_not_compile),
        cmocka_unit_test(processes_that_compile_at_once_into_one_folder),
        cmocka_unit_test(a_folder_that_cannot_be_written),
        cmocka_unit_test(buffers_that_are_too_small),
        cmocka_unit_test(a_device_that_vanishes),
        cmocka_unit_test(receipts_counts_and_trace_of_a_device),
        cmocka_unit_test(no_policy_leads_back_to_the_cpu),
    };
    if (argc > 2) return compile_into(argv[2]);
    if (!rig_has_device()) return 77;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
