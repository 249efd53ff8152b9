/* SPDX-License-Identifier: Apache-2.0 */
/* Every function of tileproof_opencl.h that takes a struct, by a program of another version than the library's. There is no
   device, so that every host has the same answers. */
#include "growth/growth.h"

#include "tileproof_opencl.h"

static void a_backend(void **state) {
    (void)state;
    tp_error *error = PLACE_INIT(tp_error, TP_ERROR_INIT);
    tp_opencl_options *options = PLACE_INIT(tp_opencl_options, TP_OPENCL_OPTIONS_INIT);
    tp_opencl *cl = NULL;
    options->number = 3, options->library = "libnothing-of-this-name.so";
#define CREATE tp_opencl_create(options, &cl, error)
    REFUSES_SIZE(options, tp_opencl_options, CREATE);
    SET_GROWN(options, 0x700000000);
    if (NEWER) {
        assert_int_equal(CREATE, TP_INVALID);
        assert_null(cl);
        assert_string_equal(error->text, "tp_opencl_options has a field set that is newer than this library");
    }
    SET_GROWN(options, 0);
    GOOD(CREATE);
#undef CREATE
    assert_int_equal(tp_opencl_device_count(cl), 0);
    tp_opencl_device *device = PLACE(tp_opencl_device);
    assert_int_equal(tp_opencl_device_of(cl, device), TP_OK);
    assert_int_equal(device->struct_size, sizeof *device);
    assert_int_equal(GROWN(device), 0);
    assert_int_equal(device->usable, 0);
    assert_non_null(strstr(device->why, options->library));
    assert_string_equal(device->kind, "");
    assert_int_equal(strlen(device->kernels), 16);
    memset(device, 0xa5, sizeof *device);
    assert_int_equal(tp_opencl_device_of_sized(cl, device, 8), TP_INVALID);
    assert_int_equal(device->struct_size, 0xa5a5a5a5);
    /* and as what it is, the backend of a context */
    GIVEN(tp_opencl_backend(cl), tp_backend);
    tp_context_options *choices = PLACE_INIT(tp_context_options, TP_CONTEXT_OPTIONS_INIT);
    choices->threads = 1, choices->backend = tp_opencl_backend(cl);
    tp_context *context = growth_context(choices);
    growth_call c;
    growth_call_new(&c);
    tp_choice *choice = PLACE_INIT(tp_choice, TP_CHOICE_INIT);
    choice->device = tp_opencl_backend(cl)->device;
    assert_int_equal(choice->device, 3);
    tp_plan *plan;
    assert_int_equal(tp_plan_create(context, c.problem, choice, &plan, error), TP_UNSUPPORTED);
    assert_non_null(strstr(error->text, options->library));
    tp_context_destroy(context);
    tp_opencl_destroy(cl);
    growth_free();
}

/* No struct of the header is missing above. */
static void every_struct_is_met(void **state) {
    (void)state;
#ifdef TILEPROOF_OPENCL_GROWN
#define MET(type)                                                                                                                \
    if (!growth_knows(#type)) fail_msg("%s", #type " has a struct_size and is in no test of growth");
    TILEPROOF_OPENCL_GROWN(MET)
#endif
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_backend), cmocka_unit_test(every_struct_is_met)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
