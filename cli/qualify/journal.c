/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The journal as a file. A line is on the disk before the next cell begins. What is at its path is written over only
 * when it begins as a journal does; a link, another kind of file, one of the run's own files and one that another run
 * is writing are refused.
 */
#include "harness/text_file.h"
#include "tool/files.h"
#include "qualify/journal_text.h"
#include "harness/places.h"
#include "qualify/qualify.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_TRIES = 100 };

static void take_cell(void *user, const tp_cell *cell) {
    struct qualification *all = user;
    all->resumed += tp_qualify_restore(all->q, cell, NULL) == TP_OK;
}

/* A journal is JSON, so its texts must be UTF-8. Other bytes are shown as \xNN. */
static void complain_bytes(const char *name, const char *value, int *code) {
    char shown[256] = "";
    for (size_t used = 0; *value && used + 5 < sizeof shown; value++)
        used += (size_t)sprintf(shown + used, *value < 0x20 || *value > 0x7E ? "\\x%02x" : "%c", (unsigned char)*value);
    if (name[0] == '-') *code = EXIT_USAGE; /* an option; the rest is the host's */
    complain("%s is '%s': it must be UTF-8, for the journal says what its cells were made with", name, shown);
}

/* Everything that decides a cell, or what is said of it. NULL: exit code, reason printed. */
static json_t *terms_of(const struct options *options, const tp_identity *now, const struct qualification *all,
                        int *code) {
    char numbers[4][32];
    snprintf(numbers[0], sizeof numbers[0], "%d", (int)now->parser);
    snprintf(numbers[1], sizeof numbers[1], "%lld", (long long)TP_QUALIFY_SEED);
    snprintf(numbers[2], sizeof numbers[2], "%lld", (long long)options->threads);
    snprintf(numbers[3], sizeof numbers[3], "%lld", (long long)options->cells);
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
        {"--engine", all->engine ? all->engine->greeting.name : "tileproof"},
        {"mode", all->engine ? all->engine->greeting.mode : ""},
        {"device", all->engine ? all->engine->greeting.device : now->device},
        {"versions", all->engine ? all->engine->greeting.versions : now->versions},
        {"its host", all->engine ? all->engine->greeting.host : now->host},
        {"--require", options->require ? options->require : ""},
        {"--disable", options->disable},
        {"--fallback", options->fallback ? options->fallback : "refuse"},
        {"--phases", options->phases ? options->phases : "all"},
        {"--quick", options->quick ? "yes" : "no"},
        {"--cells", options->cells ? numbers[3] : "all"},
        {"--dtype", options->dtypes ? options->dtypes : "bf16"},
        {"--paged", options->pages ? options->pages : "16"},
        {"--kv-cache", all->cache},
        {"--threads", options->threads ? numbers[2] : "all"},
        {"seed", numbers[1]},
    };
    *code = EXIT_FAILED;
    for (size_t i = 0; i < sizeof terms / sizeof *terms; i++)
        if (!is_utf8(terms[i][1])) return complain_bytes(terms[i][0], terms[i][1], code), NULL;
    json_t *object = json_object();
    int failed = !object;
    for (size_t i = 0; i < sizeof terms / sizeof *terms; i++)
        failed |= json_object_set_new(object, terms[i][0], json_string(terms[i][1]));
    for (int i = 0; i < all->model_count; i++) {
        char key[300];
        snprintf(key, sizeof key, "config of %.255s", all->models[i]->label);
        failed |= json_object_set_new(object, key, json_string(all->models[i]->config_hash));
    }
    if (!failed) return object;
    complain("out of memory");
    json_decref(object);
    return NULL;
}

static int refuse(const struct journal *journal, const char *why) {
    complain("%s %s: give --journal another name", journal->path, why);
    return EXIT_USAGE;
}

static int system_failed(const struct journal *journal) {
    complain("%s: %s", journal->path, strerror(errno));
    return EXIT_FAILED;
}

/* A name that is new, or that of a file; -1 with errno. It may come and go between the two. */
static int open_either(const char *path) {
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (fd < 0 && errno == EEXIST) fd = open(path, O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    return fd;
}

static int is_still_there(int fd, const char *path) {
    struct stat mine, there;
    return !fstat(fd, &mine) && !lstat(path, &there) && mine.st_dev == there.st_dev && mine.st_ino == there.st_ino;
}

/* The file, locked, be it new or one that is a journal already. */
static int open_file(struct journal *journal, int *opened) {
    struct stat there;
    char mark[sizeof JOURNAL_MARK];
    int fd = -1;
    for (int i = 0; fd < 0 && i < MAX_TRIES; i++) {
        *opened = fd = open_either(journal->path);
        if (fd < 0 && errno == ELOOP) return refuse(journal, "is a symbolic link, and a journal is not written through one");
        if (fd < 0 && errno == EISDIR) return refuse(journal, "is no regular file");
        if (fd < 0 && errno == ENOENT && i + 1 < MAX_TRIES) continue;
        if (fd < 0 || fstat(fd, &there)) return system_failed(journal);
        if (!S_ISREG(there.st_mode)) return refuse(journal, "is no regular file");
        if (flock(fd, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK) return refuse(journal, "is being written by another run");
        if (is_still_there(fd, journal->path)) break;
        close(fd); /* a run that ended removed it between open and lock: nobody will find this one */
        *opened = fd = -1;
    }
    if (fd < 0) return refuse(journal, "is removed again and again");
    ssize_t first = pread(fd, mark, sizeof mark, 0);
    if (first < 0) return system_failed(journal);
    if (!journal_is_one(mark, (size_t)first)) return refuse(journal, "is no journal, and is left as it is");
    journal->lines = first > 0; /* they may be an earlier run's cells */
    return EXIT_FINE;
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

/* No file that is written may be another of the run's files. Models are where they were found. */
static int check_places(const char *journal, const struct options *options, const struct qualification *all) {
    const struct named_file places[] = {{"--journal", journal}, {"--save", options->save}, {"--lock", options->lock}};
    enum { COUNT = sizeof places / sizeof *places };
    int code = EXIT_FINE;
    for (int i = 0; i < COUNT && !code; i++) {
        for (int j = i + 1; j < COUNT && !code; j++) code = file_clash(&places[i], &places[j]);
        int read_only = !strcmp(places[i].what, "--lock") && !options->update;
        for (int j = 0; j < all->model_count && !code && !read_only; j++) {
            const struct named_file config = {"the config", all->models[j]->name};
            code = file_clash(&places[i], &config);
        }
    }
    return code;
}

int journal_open(struct journal *journal, const struct options *options, const struct qualification *all) {
    const char *name = options->journal ? options->journal : options->lock && options->update ? options->lock : NULL;
    int fd = -1;
    *journal = (struct journal){.file = NULL};
    if (!name) return check_places(NULL, options, all);
    if (options->journal && !strcmp(name, "-")) {
        complain("--journal is '-': a journal is read again, so it must be a file: give it a name");
        return EXIT_USAGE;
    }
    size_t size = strlen(name) + 16;
    journal->path = malloc(size);
    if (!journal->path) {
        complain("out of memory");
        return EXIT_FAILED;
    }
    snprintf(journal->path, size, "%s%s", name, options->journal ? "" : ".journal");
    int code = check_places(journal->path, options, all);
    if (!code) code = open_file(journal, &fd);
    if (!code && !(journal->file = fdopen(fd, "r+b"))) code = system_failed(journal);
    if (code && fd >= 0) close(fd); /* it is somebody's: it stays */
    return code;
}

static int resume(struct journal *journal, const json_t *terms, struct qualification *all, size_t *kept) {
    char reason[LINES_REASON];
    tp_error error = TP_ERROR_INIT;
    size_t size;
    char *text = text_rest(journal->file, journal->path, TP_LOCK_MAX_BYTES, &size, &error);
    if (!text) {
        complain("%s", error.text);
        return EXIT_USAGE;
    }
    int bad = journal_read(text, size, journal->path, terms, take_cell, all, kept, reason);
    if (bad) complain("%s", reason);
    free(text);
    return bad ? EXIT_USAGE : EXIT_FINE;
}

int journal_begin(struct journal *journal, const struct options *options, const tp_identity *now,
                  struct qualification *all) {
    size_t kept = 0;
    int code = EXIT_FINE;
    if (!journal->file) return code;
    json_t *terms = terms_of(options, now, all, &code);
    if (!terms) return code;
    code = options->resume ? resume(journal, terms, all, &kept) : EXIT_FINE;
    if (!code) code = begin(journal, kept, terms);
    if (!code) journal->lines = kept > 0;
    json_decref(terms);
    return code;
}

int journal_add(struct journal *journal, const tp_cell *cell) {
    if (!journal->file) return EXIT_FINE;
    journal->lines = 1;
    tp_status status = tp_cell_write(cell, 1, write_to_file, journal->file);
    if (status == TP_OK && fputc('\n', journal->file) != EOF &&
        !fflush(journal->file) && !fsync(fileno(journal->file)))
        return EXIT_FINE;
    const char *why = status == TP_OK || ferror(journal->file) ? strerror(errno)
                      : status == TP_NO_MEMORY               ? "out of memory"
                                                             : "a number is not finite, or a text is not UTF-8";
    complain("%s could not be written: %s (cell %s)", journal->path, why, cell->problem);
    return EXIT_FAILED;
}

void journal_close(struct journal *journal, int finished) {
    /* by now the name may be another file's */
    if (journal->file && (finished || !journal->lines) && is_still_there(fileno(journal->file), journal->path))
        unlink(journal->path);
    if (journal->file) fclose(journal->file);
    free(journal->path);
    *journal = (struct journal){.file = NULL};
}
