/* SPDX-License-Identifier: Apache-2.0 */
#include "whole.h"

#include "cli.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int whole_open(struct whole *whole, const char *path) {
    *whole = (struct whole){.path = path};
    if (!strcmp(path, "-")) {
        whole->file = stdout;
        return EXIT_FINE;
    }
    size_t size = strlen(path) + 32;
    whole->temporary = malloc(size);
    if (whole->temporary) {
        snprintf(whole->temporary, size, "%s.%ld.part", path, (long)getpid());
        whole->file = fopen(whole->temporary, "wbx");
    }
    if (whole->file) return EXIT_FINE;
    complain("%s: %s", path, whole->temporary ? strerror(errno) : "out of memory");
    free(whole->temporary);
    *whole = (struct whole){0};
    return EXIT_FAILED;
}

int whole_close(struct whole *whole, int keep) {
    int failed = 0;
    if (!whole->file) return EXIT_FINE;
    errno = 0;
    if (whole->temporary) {
        failed = ferror(whole->file);
        failed |= fclose(whole->file) != 0;
        if (keep && !failed) failed = rename(whole->temporary, whole->path) != 0;
        int reason = errno;
        if (!keep || failed) unlink(whole->temporary);
        errno = reason;
    }
    if (failed) complain("%s: %s", whole->path, errno ? strerror(errno) : "it could not be written");
    free(whole->temporary);
    *whole = (struct whole){0};
    return failed ? EXIT_FAILED : EXIT_FINE;
}
