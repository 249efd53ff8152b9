/* SPDX-License-Identifier: Apache-2.0 */
/* The library around the kernels: what is refused and why, the caller's own objects, the cache folder, bad input. */
#include <dirent.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../opencl/driver.h"
#include "opencl/rig.h"

#define TEXT "h2/1 q20 k40 d32 f32 causal"

/* Reasons of the kernel for a problem; "" where it serves. */
static const char *reasons(const rig *r, const char *text) {
    static char all[1024];
    tp_problem problem;
    tp_decision *decision = NULL;
    tp_choice choice = rig_choice();
    const tp_candidate *c;
    const tp_reason *why;
    all[0] = 0;
    assert_int_equal(tp_problem_parse(text, &problem, NULL, NULL), TP_OK);
    tp_explain(r->context, &problem, &choice, &decision, NULL);
    assert_non_null(decision);
    for (int i = 0; (c = tp_decision_candidate(decision, i)) != NULL; i++)
        for (int k = 0; !strcmp(c->kernel, "opencl") && (why = tp_candidate_reason(c, k)) != NULL; k++)
            snprintf(all + strlen(all), sizeof all - strlen(all), "[%s] %s; ", tp_reason_name((tp_reason_code)why->code),
                     why->text);
    tp_decision_destroy(decision);
    return all;
}

static void expect_reason(const rig *r, const char *text, const char *part) {
    const char *said = reasons(r, text);
    if (strstr(said, part) == NULL) fail_msg("%s: '%s' is not in '%s'", text, part, said);
}

static void says_what_it_does_not_serve(void **state) {
    (void)state;
    rig r = rig_open(NULL);
    assert_string_equal(reasons(&r, TEXT), "");
    expect_reason(&r, "q20 k40 d257 f32", "[head_dim] head_dim 257, need <= 256");
    expect_reason(&r, "q20 k40 d64 f32 bias=f32", "bias");
    expect_reason(&r, "q20 k40 d64 f32 dropout=0.1", "dropout");
    expect_reason(&r, "q20 k40 d64 f32 sparse=8", "sparse");
    expect_reason(&r, "q20 k40 d64 f32 causal positions", "positions");
    expect_reason(&r, "q20 k40 d64 f32 qscale=0.1,8,0", "qscale");
    expect_reason(&r, "q20 k40 d64 f32 causal prefix=4", "OR");
    expect_reason(&r, "q20 k40 d64 f32 documents", "mask beyond");
    expect_reason(&r, "q20 k40 d64 f32 bits", "mask beyond");
    expect_reason(&r, "q20 k40 d64 f32 mask=chunk:4,chunk:8,and", "two chunk");
    rig_close(&r);
}

static void less_local_memory_means_smaller_tiles_or_a_reason(void **state) {
    (void)state;
    static const struct {
        long bytes;
        const char *text;
        int served;
    } rows[] = {{32768, "h2/1 q40 k50 d256 f32", 1}, {32768, "backward h2/1 q40 k50 d256 f32", 1},
                {16384, "h2/1 q40 k50 d128 f32", 1}, {16384, "backward h2/1 q40 k50 d64 f32", 1},
                {8192, "h2/1 q40 k50 d256 f32", 0},  {2048, "backward h2/1 q40 k50 d64 f32", 0}};
    for (int i = 0; i < (int)(sizeof rows / sizeof *rows); i++) {
        rig_shim()->set(SHIM_LOCAL_BYTES, rows[i].bytes);
        rig r = rig_open(NULL);
        if (rows[i].served)
            rig_check_right(&r, rows[i].text, NULL, RIG_ON_HOST);
        else
            expect_reason(&r, rows[i].text, i == 4 ? "[memory] needs 14 KiB of local memory, device gives 8" : "[memory]");
        rig_close(&r);
        rig_shim()->reset();
    }
}

static void what_is_not_there_is_a_reason(void **state) {
    (void)state;
    tp_opencl_options options = rig_options();
    options.library = "libnothing-of-the-kind.so.7";
    rig r = rig_open(&options);
    expect_reason(&r, TEXT, "[absent] libnothing-of-the-kind.so.7 not found");
    tp_error error = TP_ERROR_INIT;
    void *memory;
    assert_int_equal(tp_memory_allocate(r.context, RIG_DEVICE, 64, &memory, &error), TP_DEVICE_FAILED);
    assert_non_null(strstr(error.text, "not found"));
    rig_close(&r);
    options.library = "libc.so.6"; /* is there, and is no OpenCL */
    r = rig_open(&options);
    expect_reason(&r, TEXT, "[absent] libc.so.6 has no clGetPlatformIDs");
    rig_close(&r);
    rig_shim()->set(SHIM_NO_DEVICE, 1);
    r = rig_open(NULL);
    expect_reason(&r, TEXT, "[absent] no OpenCL device: CL_PLATFORM_NOT_FOUND_KHR (-1001)");
    rig_close(&r);
    rig_shim()->reset();
    options = rig_options();
    options.index = 61;
    r = rig_open(&options);
    expect_reason(&r, TEXT, "[absent] device 61 asked for");
    rig_close(&r);
}

static void bad_options(void **state) {
    (void)state;
    static const struct {
        tp_opencl_options options;
        const char *text;
    } rows[] = {
        {{sizeof(tp_opencl_options) - 1, 0, 0, 0, NULL, NULL, NULL, NULL}, "struct_size"},
        {{sizeof(tp_opencl_options), 256, 0, 0, NULL, NULL, NULL, NULL}, "number is 256"},
        {{sizeof(tp_opencl_options), 0, -1, 0, NULL, NULL, NULL, NULL}, "index is -1"},
        {{sizeof(tp_opencl_options), 0, 0, 1, NULL, NULL, NULL, NULL}, "reserved is 1"},
        {{sizeof(tp_opencl_options), 0, 0, 0, NULL, (void *)8, NULL, NULL}, "without a context"},
        {{sizeof(tp_opencl_options), 0, 0, 0, NULL, NULL, NULL, "/nowhere/at/all"}, "it must be a folder that exists"},
    };
    for (int i = 0; i < (int)(sizeof rows / sizeof *rows); i++) {
        tp_opencl *cl = NULL;
        tp_error error = TP_ERROR_INIT;
        assert_int_equal(tp_opencl_create(&rows[i].options, &cl, &error), TP_INVALID);
        assert_null(cl);
        if (strstr(error.text, rows[i].text) == NULL) fail_msg("'%s' is not in '%s'", rows[i].text, error.text);
    }
    assert_int_equal(tp_opencl_create(NULL, NULL, NULL), TP_INVALID);
    tp_opencl_destroy(NULL);
}

/* ---- the caller's own objects */

/* From the real loader, which is linked with nothing. */
static tp__ocl_driver loader;

typedef struct own {
    cl_platform_id platform;
    cl_device_id device;
    cl_context context, other;
    cl_command_queue queue, of_other;
    cl_mem buffer, of_other_buffer;
} own;

static own own_open(void) {
    own o = {0};
    cl_int code;
    char why[160] = "";
    if (tp__ocl_driver_open(&loader, NULL, why, sizeof why) != 0) fail_msg("%s", why);
    assert_int_equal(loader.clGetPlatformIDs(1, &o.platform, NULL), CL_SUCCESS);
    assert_int_equal(loader.clGetDeviceIDs(o.platform, CL_DEVICE_TYPE_ALL, 1, &o.device, NULL), CL_SUCCESS);
    o.context = loader.clCreateContext(NULL, 1, &o.device, NULL, NULL, &code);
    o.other = loader.clCreateContext(NULL, 1, &o.device, NULL, NULL, &code);
    o.queue = loader.clCreateCommandQueue(o.context, o.device, CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE, &code);
    if (o.queue == NULL) o.queue = loader.clCreateCommandQueue(o.context, o.device, 0, &code);
    o.of_other = loader.clCreateCommandQueue(o.other, o.device, 0, &code);
    o.buffer = loader.clCreateBuffer(o.context, CL_MEM_READ_WRITE, 1 << 20, NULL, &code);
    o.of_other_buffer = loader.clCreateBuffer(o.other, CL_MEM_READ_WRITE, 4096, NULL, &code);
    assert_true(o.context && o.other && o.queue && o.of_other && o.buffer && o.of_other_buffer);
    return o;
}

static void own_close(own *o) {
    loader.clReleaseMemObject(o->buffer);
    loader.clReleaseMemObject(o->of_other_buffer);
    loader.clReleaseCommandQueue(o->queue);
    loader.clReleaseCommandQueue(o->of_other);
    loader.clReleaseContext(o->context);
    loader.clReleaseContext(o->other);
}

static void the_callers_context_queue_and_buffers(void **state) {
    (void)state;
    own o = own_open();
    tp_opencl_options options = rig_options();
    options.context = o.context;
    options.device = o.device;
    rig r = rig_open(&options);
    rig_check_right(&r, TEXT, NULL, RIG_ON_HOST);
    tp_error error = TP_ERROR_INIT;
    void *base = NULL;
    assert_int_equal(tp_opencl_import(r.cl, o.of_other_buffer, &base, &error), TP_INVALID);
    assert_non_null(strstr(error.text, "another context"));
    assert_int_equal(tp_opencl_import(r.cl, o.buffer, &base, &error), TP_OK);
    /* q, k, v, o and workspace are slices of the one buffer; the call goes by the caller's queue */
    tp_problem p;
    tp_tensors t;
    tp_plan *plan;
    tp_choice choice = rig_choice();
    tp_exec exec = TP_EXEC_INIT;
    tp_receipt receipt;
    tp_ticket *ticket = NULL;
    enum { ELEMENTS = 32 * 20 };
    float values[ELEMENTS], out[ELEMENTS];
    for (int i = 0; i < ELEMENTS; i++) values[i] = 1.0f;
    assert_int_equal(tp_problem_parse("q20 k20 d32 f32 causal", &p, NULL, NULL), TP_OK);
    char *at = base;
    for (int i = 0; i < 3; i++)
        assert_int_equal(tp_memory_copy(r.context, RIG_DEVICE, at + i * 4096, TP_CPU, values, sizeof values, &error), TP_OK);
    tp_tensors_init(&t, &p, at, at + 4096, at + 8192, at + 12288);
    t.device = RIG_DEVICE;
    tp_receipt_init(&receipt);
    assert_int_equal(tp_plan_create(r.context, &p, &choice, &plan, &error), TP_OK);
    exec.workspace = at + 16384;
    exec.workspace_size = tp_plan_workspace(plan, 1);
    exec.queue = o.queue;
    if (tp_plan_submit(plan, &t, &exec, &receipt, &ticket, &error) != TP_OK) fail_msg("%s", error.text);
    assert_non_null(tp_ticket_event(ticket));
    assert_int_equal(loader.clWaitForEvents(1, (cl_event[]){tp_ticket_event(ticket)}), CL_SUCCESS);
    assert_int_equal(tp_ticket_wait(ticket, -1, &error), TP_OK);
    tp_ticket_destroy(ticket);
    assert_int_equal(tp_memory_copy(r.context, TP_CPU, out, RIG_DEVICE, at + 12288, sizeof out, &error), TP_OK);
    for (int i = 0; i < ELEMENTS; i++) assert_true(out[i] == 1.0f);
    assert_int_equal(receipt.launches, 1);
    assert_int_equal(receipt.tiles, 1);
    assert_int_equal(receipt.pairs_visible, 20 * 21 / 2);
    /* a queue of another context; a workspace that its buffer does not hold; tensors that lie nowhere */
    exec.queue = o.of_other;
    assert_int_equal(tp_plan_run(plan, &t, &exec, NULL, &error), TP_INVALID);
    assert_non_null(strstr(error.text, "queue is of another context"));
    exec.queue = NULL;
    exec.workspace = at + (1 << 20) - 64;
    assert_int_equal(tp_plan_run(plan, &t, &exec, NULL, &error), TP_WORKSPACE);
    exec.workspace = at + 16384;
    t.q.data = values;
    assert_int_equal(tp_plan_run(plan, &t, &exec, NULL, &error), TP_INVALID);
    assert_non_null(strstr(error.text, "q is "));
    t.q.data = at + (1 << 20) - 512; /* begins in the buffer and goes on behind it */
    assert_int_equal(tp_plan_run(plan, &t, &exec, NULL, &error), TP_INVALID);
    assert_non_null(strstr(error.text, "its buffer has 512 there"));
    t.q.data = at;
    assert_int_equal(tp_plan_run(plan, &t, &exec, NULL, &error), TP_OK);
    assert_int_equal(tp_memory_copy(r.context, RIG_DEVICE, at + (1 << 20) - 4, TP_CPU, values, 8, &error), TP_INVALID);
    tp_plan_destroy(plan);
    assert_int_equal(tp_opencl_forget(r.cl, at + 64, &error), TP_INVALID);
    assert_int_equal(tp_opencl_forget(r.cl, at, &error), TP_OK);
    rig_close(&r);
    own_close(&o);
}

/* ---- index arrays on the device that hold what they must not */

static void wrong_indices_on_the_device(void **state) {
    (void)state;
    static const struct {
        const char *text;
        int index;
        int32_t at, value;
        const char *says;
    } rows[] = {
        {"b2 h2/1 seqs=2x5/40 d32 f32 packed", INDEX_CU_Q, 1, 999, "length or start"},
        {"b2 h2/1 seqs=2x5/40 d32 f32 packed", INDEX_CU_KV, 1, -7, "length or start"},
        {"b2 h2/1 seqs=2x5/40 d32 f32 padded", INDEX_KV_LENS, 0, 41, "length or start"},
        {"b2 h2/1 seqs=2x5/40 d32 f32 padded", INDEX_Q_LENS, 1, -1, "length or start"},
        {"b2 h2/1 q20 k40 d32 f32 paged=16", INDEX_K_PAGES, 1, 1000000000, "page table"},
        {"b2 h2/1 q1 k600 d32 f32 paged=16", INDEX_K_PAGES, 37, -1, "page table"},
    };
    for (int i = 0; i < (int)(sizeof rows / sizeof *rows); i++) {
        static const struct tensors_style style = {.lse = 1};
        rig r = rig_open(NULL);
        struct tensors tensors;
        tp_problem problem;
        tp_lengths lengths = {.struct_size = sizeof lengths};
        tp_choice choice = rig_choice();
        tp_error error = TP_ERROR_INIT;
        tp_receipt receipt;
        struct workspace none = {0};
        struct attempt attempt = {r.context, &choice, &none, ENTRY_CALLER, 1, 0xFF};
        assert_int_equal(tp_problem_parse(rows[i].text, &problem, &lengths, NULL), TP_OK);
        assert_int_equal(tensors_create(&tensors, &problem, &lengths, &style) || tensors_fill(&tensors, 5), 0);
        ((int32_t *)tensors.indices[rows[i].index])[rows[i].at] = rows[i].value;
        assert_int_equal(attempt_run(&attempt, &tensors, &receipt, &error), TP_INVALID);
        if (strstr(error.text, rows[i].says) == NULL) fail_msg("%s: %s", rows[i].text, error.text);
        tensors_destroy(&tensors);
        rig_close(&r);
    }
}

/* ---- the cache folder */

static int files_in(const char *folder, char *last, size_t size) {
    DIR *dir = opendir(folder);
    int count = 0;
    for (struct dirent *entry; (entry = readdir(dir)) != NULL;)
        if (entry->d_name[0] != '.') {
            count++;
            snprintf(last, size, "%s/%s", folder, entry->d_name);
        }
    closedir(dir);
    return count;
}

/* Opens, runs TEXT, closes; how often the compiler ran from source. */
static int compiled(const tp_opencl_options *options) {
    rig_shim()->reset();
    rig r = rig_open(options);
    rig_check_right(&r, TEXT, NULL, RIG_ON_HOST);
    rig_check_right(&r, TEXT, NULL, RIG_ON_HOST);
    rig_close(&r);
    return rig_shim()->calls("clCreateProgramWithSource");
}

static void change(const char *path, long at, int byte) {
    FILE *file = fopen(path, "r+b");
    assert_non_null(file);
    fseek(file, at, at < 0 ? SEEK_END : SEEK_SET);
    fputc(byte, file);
    fclose(file);
}

static void the_cache_folder(void **state) {
    (void)state;
    char folder[] = "/tmp/tileproof-cache-XXXXXX", path[512], command[600];
    assert_non_null(mkdtemp(folder));
    tp_opencl_options options = rig_options();
    assert_int_equal(compiled(&options), 1); /* once for two calls, and nothing is written */
    assert_int_equal(files_in(folder, path, sizeof path), 0);
    options.cache = folder;
    assert_int_equal(compiled(&options), 1);
    assert_int_equal(files_in(folder, path, sizeof path), 1);
    struct stat is;
    assert_int_equal(stat(path, &is), 0);
    assert_int_equal(is.st_mode & 077, 0);
    assert_int_equal(compiled(&options), 0);
    change(path, -1, 0x5a ^ 0x11); /* of the binary */
    assert_int_equal(compiled(&options), 1);
    assert_int_equal(compiled(&options), 0);
    change(path, 3, '#'); /* of the key */
    assert_int_equal(compiled(&options), 1);
    chmod(path, 0622); /* others may write it */
    assert_int_equal(compiled(&options), 1);
    assert_int_equal(stat(path, &is), 0);
    assert_int_equal(is.st_mode & 077, 0);
    assert_int_equal(truncate(path, 40), 0);
    assert_int_equal(compiled(&options), 1);
    assert_int_equal(files_in(folder, path, sizeof path), 1); /* no part is left */
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    assert_int_equal(system(command), 0);
}

/* ---- what goes wrong on the way */

static void a_launch_that_did_nothing_is_no_success(void **state) {
    (void)state;
    static const char *const texts[] = {TEXT, "h2/1 q1 k600 d32 f32"};
    for (int i = 0; i < 2; i++) {
        rig r = rig_open(NULL);
        tp_error error = TP_ERROR_INIT;
        rig_shim()->set(SHIM_DROP, 1);
        assert_int_equal(rig_try(&r, texts[i], NULL, &error), TP_DEVICE_FAILED);
        assert_non_null(strstr(error.text, "the device counted 0 tiles"));
        rig_shim()->reset();
        assert_int_equal(rig_try(&r, texts[i], NULL, &error), TP_OK);
        rig_close(&r);
    }
}

static void a_device_that_fails_on_its_way(void **state) {
    (void)state;
    rig r = rig_open(NULL);
    tp_error error = TP_ERROR_INIT;
    rig_shim()->set(SHIM_LATE, 1);
    assert_int_equal(rig_try(&r, TEXT, NULL, &error), TP_DEVICE_FAILED);
    assert_non_null(strstr(error.text, "CL_OUT_OF_RESOURCES (-5)"));
    assert_int_equal(rig_try(&r, TEXT, NULL, &error), TP_OK);
    rig_close(&r);
}

/* Many threads at once: each has its own workspace, the programs and buffers are shared. */
static void *run_some(void *user) {
    tp_error error = TP_ERROR_INIT;
    for (int i = 0; i < 8; i++)
        if (rig_try(user, i % 2 ? TEXT : "h2/1 q1 k600 d32 f32", NULL, &error) != TP_OK) return "failed";
    return NULL;
}

static void several_threads(void **state) {
    (void)state;
    rig r = rig_open(NULL);
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) assert_int_equal(pthread_create(&threads[i], NULL, run_some, &r), 0);
    for (int i = 0; i < 4; i++) {
        void *said = NULL;
        pthread_join(threads[i], &said);
        assert_null(said);
    }
    rig_close(&r);
}

static void a_forked_child_destroys_nothing(void **state) {
    (void)state;
    rig r = rig_open(NULL);
    rig_check_right(&r, TEXT, NULL, RIG_ON_HOST);
    pid_t child = fork();
    if (child == 0) {
        alarm(20);
        tp_context_destroy(r.context);
        tp_opencl_destroy(r.cl);
        _exit(0);
    }
    int status = 1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    rig_check_right(&r, TEXT, NULL, RIG_ON_HOST);
    rig_close(&r);
}

static void the_device_is_described(void **state) {
    (void)state;
    rig r = rig_open(NULL);
    tp_opencl_device d = {.struct_size = sizeof d};
    assert_int_equal(tp_opencl_device_of(r.cl, &d), TP_OK);
    assert_true(d.usable && d.name[0] && d.platform[0] && d.driver[0] && d.why[0] == '\0');
    assert_true(d.memory_bytes > 0 && d.local_bytes > 0 && d.work_group >= 64 && d.units > 0 && d.allocation_bytes > 0);
    own o = own_open();
    cl_device_type type = 0;
    assert_int_equal(loader.clGetDeviceInfo(o.device, CL_DEVICE_TYPE, sizeof type, &type, NULL), CL_SUCCESS);
    own_close(&o);
    if (type & CL_DEVICE_TYPE_CPU) assert_string_equal(d.kind, "cpu"); /* a simulator says that it is all kinds at once */
    assert_int_equal(strlen(d.kernels), 16);
    assert_true(tp_opencl_device_count(r.cl) >= 1);
    assert_int_equal(tp_opencl_device_of_sized(r.cl, &d, 8), TP_INVALID);
    rig_close(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(says_what_it_does_not_serve),
        cmocka_unit_test(less_local_memory_means_smaller_tiles_or_a_reason),
        cmocka_unit_test(what_is_not_there_is_a_reason),
        cmocka_unit_test(bad_options),
        cmocka_unit_test(the_callers_context_queue_and_buffers),
        cmocka_unit_test(wrong_indices_on_the_device),
        cmocka_unit_test(the_cache_folder),
        cmocka_unit_test(a_launch_that_did_nothing_is_no_success),
        cmocka_unit_test(a_device_that_fails_on_its_way),
        cmocka_unit_test(several_threads),
        cmocka_unit_test(a_forked_child_destroys_nothing),
        cmocka_unit_test(the_device_is_described),
    };
    if (!rig_has_device()) return 77;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
