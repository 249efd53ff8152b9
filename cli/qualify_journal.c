/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The journal as a file. A line is on the disk before the next cell begins. What is at its path is written over only
 * when it begins as a journal does; a link, another kind of file, one of the run's own files and one that another run
 * is writing are refused.
 */
#include "file_text.h"
#include "journal_text.h"
#include "places.h"
#include "qualify.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static void take_cell(void *user, const tp_cell *cell) {
    struct qualification *all = user;
    for (size_t i = 0; i < all->cell_count; i++) {
        tp_cell *mine = &all->cells[i];
        if (strcmp(mine->problem, cell->problem) || mine->gain != cell->gain || mine->phase != cell->phase ||
            mine->status != TP_CELL_NOT_RUN)
            continue;
        *mine = *cell;
        all->resumed++;
    }
}

/* Everything that decides a cell, or what is said of it. */
static json_t *terms_of(const struct options *options, const tp_identity *now, const struct qualification *all) {
    char numbers[3][32];
    snprintf(numbers[0], sizeof numbers[0], "%d", (int)now->parser);
    snprintf(numbers[1], sizeof numbers[1], "%lld", (long long)CELL_SEED);
    snprintf(numbers[2], sizeof numbers[2], "%lld", (long long)options->threads);
    const char *const terms[][2] = {
        {"version", now->version},
        {"build", now->build},
        {"compiler", now->compiler},
        {"parser", numbers[0]},
        {"isa", now->isa},
        {"cpu", now->cpu},
        {"os", now->os},
        {"libc", now->libc},
        {"--declare", now->declared},
        {"--disable", options->disable},
        {"--fallback", options->fallback ? options->fallback : "refuse"},
        {"--phases", options->phases ? options->phases : "all"},
        {"--quick", options->quick ? "yes" : "no"},
        {"--dtype", options->dtypes ? options->dtypes : "bf16"},
        {"--paged", options->pages ? options->pages : "16"},
        {"--threads", options->threads ? numbers[2] : "all"},
        {"seed", numbers[1]},
    };
    json_t *object = json_object();
    int failed = !object;
    for (size_t i = 0; i < sizeof terms / sizeof *terms; i++)
        failed |= json_object_set_new(object, terms[i][0], json_string(terms[i][1]));
    for (int i = 0; i < all->model_count; i++) {
        char key[300];
        snprintf(key, sizeof key, "config of %.255s", base_name(all->models[i]->name));
        failed |= json_object_set_new(object, key, json_string(all->models[i]->config_hash));
    }
    if (!failed) return object;
    complain("the journal cannot say what its cells are made with: an option's text is not UTF-8, or out of memory");
    json_decref(object);
    return NULL;
}

static int refuse(const struct journal *journal, const char *why) {
    complain("%s %s: give --journal another name", journal->path, why);
    return EXIT_USAGE;
}

static int system_failed(const struct journal *journal) {
    complain("%s: %s", journal->path, strerror(errno));
    return EXIT_USAGE;
}

/* The file, locked, be it new or one that is a journal already, whose text comes too. */
static int open_file(struct journal *journal, char **text, size_t *size) {
    struct stat there;
    char mark[sizeof JOURNAL_MARK];
    int fd = -1;
    for (int i = 0; fd < 0 && i < 100; i++) { /* it may come and go between the two */
        fd = open(journal->path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
        if (fd < 0 && errno != EEXIST) return system_failed(journal);
        if (fd < 0) fd = open(journal->path, O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
        if (fd < 0 && errno == ELOOP) return refuse(journal, "is a symbolic link, and a journal is not written through one");
        if (fd < 0 && errno != ENOENT) return system_failed(journal);
    }
    journal->file = fd < 0 ? NULL : fdopen(fd, "r+b");
    if (!journal->file) {
        if (fd >= 0) close(fd);
        return system_failed(journal);
    }
    if (fstat(fd, &there)) return system_failed(journal);
    if (!S_ISREG(there.st_mode)) return refuse(journal, "is no regular file");
    if (flock(fd, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK) return refuse(journal, "is being written by another run");
    ssize_t first = pread(fd, mark, sizeof mark, 0);
    if (first < 0) return system_failed(journal);
    if (!journal_is_one(mark, (size_t)first)) return refuse(journal, "is no journal, and is left as it is");
    *text = file_text(journal->path, TP_LOCK_MAX_BYTES, size);
    return *text ? EXIT_FINE : EXIT_USAGE;
}

/* The lines that count stay; the rest goes. */
static int begin(struct journal *journal, size_t kept, const json_t *terms) {
    char *line = json_dumps(terms, JSON_COMPACT);
    int failed = !line || ftruncate(fileno(journal->file), (off_t)kept) || fseek(journal->file, 0, SEEK_END);
    if (!failed && !kept) failed = fprintf(journal->file, "%s%s\n", JOURNAL_FIRST, line) < 0;
    failed = failed || fflush(journal->file) || fsync(fileno(journal->file)) || place_sync_folder(journal->path);
    free(line);
    return failed ? system_failed(journal) : EXIT_FINE;
}

/* No file that is written may be another of the run's files. */
int journal_places(const struct options *options) {
    struct {
        const char *what, *path;
    } written[] = {{"--journal", options->journal},
                   {"--save", options->save},
                   {"--lock", options->update ? options->lock : NULL},
                   {options->update ? NULL : "--lock", options->lock}};
    enum { COUNT = sizeof written / sizeof *written };
    for (int i = 0; i < COUNT - 1; i++) {
        if (!written[i].path) continue;
        for (int j = i + 1; j < COUNT; j++)
            if (written[j].what && written[j].path && place_same(written[i].path, written[j].path)) {
                complain("%s and %s are one file, %s: give one of them another name", written[i].what, written[j].what,
                         written[i].path);
                return EXIT_USAGE;
            }
        for (int j = 0; j < options->file_count; j++)
            if (strcmp(options->files[j], "-") && place_same(written[i].path, options->files[j])) {
                complain("%s %s is the config %s: it would be written over; give it another name", written[i].what,
                         written[i].path, options->files[j]);
                return EXIT_USAGE;
            }
    }
    return EXIT_FINE;
}

static int open_journal(struct journal *journal, const struct options *options, const json_t *terms,
                        struct qualification *all) {
    char reason[LINES_REASON], *text = NULL;
    size_t size = 0, kept = 0;
    struct options placed = *options;
    placed.journal = journal->path;
    int code = journal_places(&placed);
    if (!code) code = open_file(journal, &text, &size);
    if (!code && options->resume && journal_read(text, size, journal->path, terms, take_cell, all, &kept, reason)) {
        complain("%s", reason);
        code = EXIT_USAGE;
    }
    free(text);
    if (code) return code;
    journal->lines = kept > 0;
    return begin(journal, kept, terms);
}

int journal_open(struct journal *journal, const struct options *options, const tp_identity *now,
                 struct qualification *all) {
    const char *name = options->journal ? options->journal : options->lock && options->update ? options->lock : NULL;
    *journal = (struct journal){.file = NULL};
    if (!name) return EXIT_FINE;
    size_t size = strlen(name) + 16;
    journal->path = malloc(size);
    json_t *terms = journal->path ? terms_of(options, now, all) : NULL;
    if (!terms) return EXIT_FAILED;
    snprintf(journal->path, size, "%s%s", name, options->journal ? "" : ".journal");
    int code = open_journal(journal, options, terms, all);
    json_decref(terms);
    if (!code) return code;
    if (journal->file) fclose(journal->file); /* it is somebody's: it stays */
    journal->file = NULL;
    return code;
}

int journal_add(struct journal *journal, const tp_cell *cell) {
    if (!journal->file) return EXIT_FINE;
    journal->lines = 1;
    if (tp_cell_write(cell, 1, write_to_file, journal->file) == TP_OK && fputc('\n', journal->file) != EOF &&
        !fflush(journal->file) && !fsync(fileno(journal->file)))
        return EXIT_FINE;
    complain("%s could not be written: %s", journal->path, strerror(errno));
    return EXIT_FAILED;
}

void journal_close(struct journal *journal, int finished) {
    struct stat mine, there;
    /* by now the name may be another file's */
    if (journal->file && (finished || !journal->lines) && !fstat(fileno(journal->file), &mine) &&
        !lstat(journal->path, &there) && mine.st_dev == there.st_dev && mine.st_ino == there.st_ino)
        unlink(journal->path);
    if (journal->file) fclose(journal->file);
    free(journal->path);
    *journal = (struct journal){.file = NULL};
}
