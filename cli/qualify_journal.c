/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A line for each finished cell, on the disk before the next one begins. The first line names the build: cells of
 * another one are of no use. A last line that was cut off by a kill is not counted.
 */
#include "file_text.h"
#include "qualify.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char header[] = "tileproof journal of build ";

static tp_cell *find(struct qualification *all, const char *problem) {
    for (size_t i = 0; i < all->cell_count; i++)
        if (!strcmp(all->cells[i].problem, problem)) return &all->cells[i];
    return NULL;
}

/* *kept is how many bytes of whole lines there were. */
static int replay(const struct journal *journal, char *text, size_t size, struct qualification *all,
                  size_t *kept) {
    char expected[sizeof header + 65];
    tp_error error = TP_ERROR_INIT;
    int line = 0;
    snprintf(expected, sizeof expected, "%s%s", header, journal->build);
    for (char *at = text, *end; (end = memchr(at, '\n', (size_t)(text + size - at))); at = end + 1) {
        struct place place = {journal->path, ++line};
        tp_cell cell;
        *end = 0;
        if (line == 1) {
            if (strncmp(at, header, sizeof header - 1))
                return complain_at(&place, "no journal: it must begin with '%s'", header);
            if (strcmp(at, expected)) return EXIT_FINE; /* another build's: begin anew */
        } else {
            if (tp_cell_parse(at, (size_t)(end - at), journal->path, line, &cell, &error) != TP_OK)
                return complain_status(&error);
            tp_cell *mine = find(all, cell.problem);
            if (mine && mine->gain == cell.gain && mine->phase == cell.phase &&
                mine->status == TP_CELL_NOT_RUN) {
                *mine = cell;
                all->resumed++;
            }
        }
        *kept = (size_t)(end + 1 - text);
    }
    return EXIT_FINE;
}

int journal_open(struct journal *journal, const struct options *options, const char *build,
                 struct qualification *all) {
    size_t size = 0, kept = 0;
    *journal = (struct journal){.file = NULL};
    snprintf(journal->build, sizeof journal->build, "%s", build);
    if (options->journal)
        snprintf(journal->path, sizeof journal->path, "%s", options->journal);
    else if (options->lock && options->update)
        snprintf(journal->path, sizeof journal->path, "%s.journal", options->lock);
    if (!journal->path[0]) return EXIT_FINE;
    if (options->resume && !access(journal->path, F_OK)) {
        char *text = file_text(journal->path, TP_LOCK_MAX_BYTES, &size);
        int code = text ? replay(journal, text, size, all, &kept) : EXIT_USAGE;
        free(text);
        if (code) return code;
    }
    if (kept && truncate(journal->path, (off_t)kept)) kept = 0;
    journal->file = fopen(journal->path, kept ? "ab" : "wb");
    if (!journal->file) {
        complain("%s: %s", journal->path, strerror(errno));
        return EXIT_USAGE;
    }
    if (!kept) fprintf(journal->file, "%s%s\n", header, build);
    fflush(journal->file);
    return EXIT_FINE;
}

int journal_add(struct journal *journal, const tp_cell *cell) {
    if (!journal->file) return EXIT_FINE;
    if (tp_cell_write(cell, 1, write_to_file, journal->file) == TP_OK &&
        fputc('\n', journal->file) != EOF && !fflush(journal->file))
        return EXIT_FINE;
    complain("%s could not be written: %s", journal->path, strerror(errno));
    return EXIT_FAILED;
}

void journal_close(struct journal *journal, int finished) {
    if (journal->file) fclose(journal->file);
    if (journal->file && finished) unlink(journal->path);
    journal->file = NULL;
}
