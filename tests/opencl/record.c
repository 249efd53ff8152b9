/* SPDX-License-Identifier: Apache-2.0 */
/* Writes a lock as `tileproof check --device --record` would on another device: for labels, where no such device is.
       record CONFIG NAME [MODE]      "gpu", "gpu-quick"; "Some GPU"; "check" */
#include <stdio.h>
#include <string.h>

#include "tileproof_proof.h"

static int to_stdout(void *cookie, const char *bytes, size_t size) {
    (void)cookie;
    return fwrite(bytes, 1, size, stdout) != size;
}

int main(int argc, char **argv) {
    static const int32_t layer = 0;
    tp_layer_group group = {.struct_size = sizeof group, .part = TP_PART_TEXT, .layer_count = 1, .layers = &layer};
    tp_cell cell = TP_CELL_INIT;
    tp_identity *here, there;
    tp_error error = TP_ERROR_INIT;
    tp_lock *lock;
    char device[128];
    if (argc < 3 || argc > 4) return 2;
    if (tp_lock_create(&lock, &error) != TP_OK || tp_identity_detect(NULL, &here, &error) != TP_OK) return 2;
    there = *here;
    snprintf(device, sizeof device, "opencl:%s", argv[2]);
    there.struct_size = sizeof there;
    there.device = device;
    there.mode = argc > 3 ? argv[3] : "check";
    cell.status = TP_CELL_QUALIFIED;
    cell.phase = TP_QUALIFY_PREFILL;
    cell.problem = "h2/1 q20 k40 d32 f32 causal";
    cell.kernel = "opencl";
    tp_status status = tp_lock_put_model(lock, "tileproof check", argv[1], &error);
    if (status == TP_OK) status = tp_lock_put_use(lock, "tileproof check", &group, &cell, &error);
    if (status == TP_OK) status = tp_lock_put_cell(lock, there.isa, &cell, &error);
    if (status == TP_OK) status = tp_lock_finish(lock, &there, "2026-11-17", "a test", &error);
    if (status == TP_OK) status = tp_lock_write(lock, to_stdout, NULL);
    if (status != TP_OK) fprintf(stderr, "%s\n", error.text);
    tp_lock_destroy(lock);
    tp_identity_destroy(here);
    return status != TP_OK;
}
