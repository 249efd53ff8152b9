/* SPDX-License-Identifier: Apache-2.0 */
/* A backend behind the shim, a context with it, and calls on it that are held against the oracle. */
#ifndef TP_TESTS_OPENCL_RIG_H
#define TP_TESTS_OPENCL_RIG_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "harness/attempt.h"
#include "harness/gradients.h"
#include "harness/oracle.h"
#include "harness/placed.h"
#include "opencl/shim.h"
#include "tileproof_opencl.h"

enum { RIG_DEVICE = 3 };

typedef struct rig {
    tp_opencl *cl;
    tp_context *context;
} rig;

const shim *rig_shim(void);
/* Has this host a device at all? Otherwise the reason is printed: "not run here". */
int rig_has_device(void);

/* options NULL: the defaults, behind the shim. */
rig rig_open(const tp_opencl_options *options);
/* Nothing of OpenCL may be left. */
void rig_close(rig *r);
tp_opencl_options rig_options(void);
tp_choice rig_choice(void);

/* Where index arrays lie. */
typedef enum rig_indices { RIG_ON_HOST, RIG_ON_DEVICE } rig_indices;

/* One call, forward or backward by its text, against the double oracle: "" or what is wrong. style NULL: the defaults. */
const char *rig_check(const rig *r, const char *text, const struct tensors_style *style, rig_indices where, tp_receipt *receipt);
/* The same must hold, or the test fails. */
void rig_check_right(const rig *r, const char *text, const struct tensors_style *style, rig_indices where);
/* A call without the oracle. */
tp_status rig_try(const rig *r, const char *text, tp_receipt *receipt, tp_error *error);

#endif
