/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every function of OpenCL that is called fails once, at each of its calls: creation, compiling, the cache folder, a forward, a
 * split-KV and a backward call, copies. Whatever fails: a status and a text that names the function, or a device that is refused
 * with that reason; no hang, no crash, nothing of OpenCL left; and the next call is right again.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../opencl/driver.h"
#include "opencl/rig.h"

static const char *const texts[] = {"h2/1 q20 k40 d32 f32 causal", "b2 h2/1 q1 k600 d32 f32 paged=16",
                                    "backward h2/1 q20 k40 d32 f32 causal sinks"};
enum { TEXTS = sizeof texts / sizeof *texts, MAX_CALLS = 400 };

/* Failures that change nothing for the caller: what is released is gone, what is only told is left out, what can be done in
   another way is. */
static int is_harmless(const char *name) {
    static const char *const names[] = {"clGetEventProfilingInfo", "clGetPlatformInfo", "clGetProgramInfo",
                                        "clCreateProgramWithBinary"};
    if (!strncmp(name, "clRelease", 9)) return 1;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(names[i], name)) return 1;
    return 0;
}

/* All of it once. Returns the first status that is not TP_OK, with its text. */
static tp_status everything(const char *cache, tp_error *error) {
    tp_opencl_options options = rig_options();
    tp_context_options wanted = TP_CONTEXT_OPTIONS_INIT;
    tp_opencl_device device = {.struct_size = sizeof device};
    options.cache = cache;
    rig r = {NULL, NULL};
    tp_status status = tp_opencl_create(&options, &r.cl, error);
    if (status != TP_OK) return status;
    tp_opencl_device_of(r.cl, &device);
    if (!device.usable) { /* refused, with the reason */
        snprintf(error->text, sizeof error->text, "%s", device.why);
        tp_opencl_destroy(r.cl);
        return TP_DEVICE_FAILED;
    }
    wanted.threads = 1;
    wanted.backend = tp_opencl_backend(r.cl);
    assert_int_equal(tp_context_create(&wanted, &r.context, NULL), TP_OK);
    for (int i = 0; i < TEXTS && status == TP_OK; i++) {
        const char *text = texts[i];
        if (i < 2)
            status = rig_try(&r, text, NULL, error);
        else {
            const char *wrong = rig_check(&r, text, NULL, RIG_ON_DEVICE, NULL);
            if (wrong[0]) {
                status = TP_DEVICE_FAILED;
                snprintf(error->text, sizeof error->text, "%.500s", wrong);
            }
        }
    }
    tp_context_destroy(r.context);
    tp_opencl_destroy(r.cl);
    return status;
}

static void every_call_fails_once(void **state) {
    (void)state;
    static const char *const names[] = {
#define CALL(name) #name,
        TP__CL_CALLS(CALL)
#undef CALL
    };
    char folder[] = "/tmp/tileproof-faults-XXXXXX", command[128];
    tp_error error = TP_ERROR_INIT;
    const shim *s = rig_shim();
    assert_non_null(mkdtemp(folder));
    s->reset();
    assert_int_equal(everything(folder, &error), TP_OK);
    int tried = 0, calls[sizeof names / sizeof *names];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) calls[i] = s->calls(names[i]);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        int step = calls[i] > 12 ? calls[i] / 12 : 1; /* of many alike, a dozen */
        for (int n = 1; n <= calls[i] && n < MAX_CALLS; n += step) {
            s->reset();
            s->spoil(names[i], n);
            error = (tp_error)TP_ERROR_INIT;
            tp_status status = everything(folder, &error);
            if (!s->failed()) continue; /* fewer calls this time: kernels came from the folder */
            tried++;
            if (s->live() != 0) fail_msg("%s, call %d: %d objects of OpenCL are left", names[i], n, s->live());
            if (status == TP_OK && !is_harmless(names[i]) && strcmp(names[i], "clGetDeviceInfo") != 0 &&
                strcmp(names[i], "clBuildProgram") != 0)
                fail_msg("%s, call %d: nobody noticed", names[i], n);
            if (status != TP_OK && error.text[0] == '\0') fail_msg("%s, call %d: no text", names[i], n);
            if (status != TP_OK && strncmp(names[i], "clGetDeviceInfo", 15) && strstr(error.text, names[i]) == NULL &&
                strstr(error.text, "CL_OUT_OF_RESOURCES") == NULL)
                fail_msg("%s, call %d: the text is '%s'", names[i], n, error.text);
        }
    }
    s->reset();
    if (everything(folder, &error) != TP_OK) fail_msg("%s", error.text);
    assert_true(tried > 60);
    print_message("%d failures of %d functions\n", tried, (int)(sizeof names / sizeof *names));
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    assert_int_equal(system(command), 0);
}

/* Without a folder the compiler runs, and its log is the error's text. */
static void a_kernel_that_does_not_build(void **state) {
    (void)state;
    rig r = rig_open(NULL);
    tp_error error = TP_ERROR_INIT;
    rig_shim()->reset();
    rig_shim()->spoil("clBuildProgram", 1);
    assert_int_equal(rig_try(&r, texts[0], NULL, &error), TP_DEVICE_FAILED);
    assert_non_null(strstr(error.text, "clBuildProgram gave CL_OUT_OF_RESOURCES (-5) for -DDQ=32"));
    rig_shim()->reset();
    assert_int_equal(rig_try(&r, texts[0], NULL, &error), TP_OK);
    rig_close(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_call_fails_once), cmocka_unit_test(a_kernel_that_does_not_build)};
    if (!rig_has_device()) return 77;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
