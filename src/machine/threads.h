/* SPDX-License-Identifier: Apache-2.0 */
/* How many threads may run at once: the affinity mask and the cgroup's CPU quota. */
#ifndef TP_MACHINE_THREADS_H
#define TP_MACHINE_THREADS_H

#include <stddef.h>

/* min(affinity, quota rounded up), at least 1; 0 when the host does not say. */
int tp__usable_threads(void);

/* Reads what fits of a file as a text; 0 when it cannot be read. */
int tp__read_text(const char *path, char *text, size_t size);

/* The rest works on texts alone. A count of CPUs is rounded up, and 0 means unlimited. */

/* The path of this process in /proc/self/cgroup: version 2's, or of version 1's cpu controller.
   0 when it is not there or too long. */
int tp__cgroup_path(const char *proc_self_cgroup, int version, char *path, size_t size);
/* "/a/b" -> "/a" -> "" ; 0 when it was "" or "/" already. */
int tp__cgroup_parent(char *path);
int tp__cgroup_cpus_v2(const char *cpu_max);
int tp__cgroup_cpus_v1(const char *quota_us, const char *period_us);

#endif
