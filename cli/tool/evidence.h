/* SPDX-License-Identifier: Apache-2.0 */
/* Where the kernels of a device have been checked: by a lock that `check --device --record` wrote, by nothing else. */
#ifndef TILEPROOF_CLI_TOOL_EVIDENCE_H
#define TILEPROOF_CLI_TOOL_EVIDENCE_H

#include "cli.h"

/* How such a record is told from the revisions of models. Its config is a kind of device; behind it "-quick", or
   "-part" where cases were chosen, which is not enough for a label. */
#define CHECKED_MODEL "tileproof check"
#define CHECKED_MODE  "check"

/* The label of kernel opencl, by a lock; NULL: by opencl/checked.lock, as it was when the tool was built. Exit code, reason
   printed: the file cannot be read. */
int evidence_label(const char *path, char *text, size_t size);

#endif
