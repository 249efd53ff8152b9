/* SPDX-License-Identifier: Apache-2.0 */
#include "tool/evidence.h"

#include <string.h>

#include "qualify/qualify.h"

static const char untried[] = "run on PoCL (CPU) and oclgrind; never run on a GPU";
extern const char checked_lock_text[]; /* opencl/checked.lock: cmake/cli.cmake */

/* "checked on NVIDIA H100 (gpu, 2026-11-17, 812 problems)", and so on; a CPU is no news. Nonzero: of a GPU. */
static int add_record(const tp_lock_revision *r, char *text, size_t size) {
    static const char prefix[] = "opencl:";
    size_t used = strlen(text);
    if (strcmp(r->engine, "tileproof") || strcmp(r->mode, CHECKED_MODE) || strncmp(r->device, prefix, sizeof prefix - 1))
        return 0;
    const char *part = strstr(r->config_hash, "-part");
    if (!strncmp(r->config_hash, "cpu", 3) || (part && !part[5])) return 0;
    snprintf(text + used, size - used, "%s%s (%s, %s, %lld problems)", used ? ", " : "checked on ", r->device + sizeof prefix - 1,
             r->config_hash, r->date, (long long)r->cell_count);
    return !strncmp(r->config_hash, "gpu", 3);
}

int evidence_label(const char *path, char *text, size_t size) {
    tp_lock *lock = NULL;
    tp_lock_revision one = TP_LOCK_REVISION_INIT;
    tp_error error = TP_ERROR_INIT;
    int code = EXIT_FINE, gpus = 0;
    text[0] = 0;
    if (path)
        code = lock_read_file(path, &lock);
    else if (tp_lock_parse(checked_lock_text, strlen(checked_lock_text), "opencl/checked.lock", &lock, &error) != TP_OK)
        code = complain_status(&error);
    for (int64_t i = 0; !code && tp_lock_revision_at(lock, i, &one) == TP_OK; i++) gpus += add_record(&one, text, size);
    size_t used = strlen(text);
    if (!gpus) snprintf(text + used, size - used, "%s%s", used ? "; " : "", untried);
    tp_lock_destroy(lock);
    return code;
}
