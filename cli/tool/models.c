/* SPDX-License-Identifier: Apache-2.0 */
/* Models by file and by name: llama-3.2-1b is a file of that name, models/llama-3.2-1b.json here, or the installed one. */
#include "cli.h"
#include "harness/places.h"
#include "tool/files.h"
#include "tool/nearest.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PATH_CAPACITY = 1024, NAMES_CAPACITY = 4096 };

static int ends_with(const char *text, const char *end) {
    size_t a = strlen(text), b = strlen(end);
    return a >= b && !strcmp(text + a - b, end);
}

/* Every config.json is called so, but its folder is not. NULL: it is another file, or its folder has no name for a label. */
static const char *folder_of(const char *path, char *name, size_t size) {
    if (strcmp(base_name(path), "config.json")) return NULL;
    char *place = place_folder(path), *whole = place ? realpath(place, NULL) : NULL; /* the file itself may be a link */
    const char *folder = whole ? base_name(whole) : "";
    size_t length = strlen(folder);
    int fits = length >= 1 && length <= 200 && length < size && !strchr(folder, '@') && is_utf8(folder) && folder[0] != ' ' &&
               folder[length - 1] != ' ';
    if (fits) memcpy(name, folder, length + 1);
    free(place);
    free(whole);
    return fits ? name : NULL;
}

static int read_file(const struct options *options, const char *path, tp_model **model) {
    tp_model_options how = TP_MODEL_OPTIONS_INIT;
    tp_error error = TP_ERROR_INIT;
    size_t size;
    char folder[256], *text = file_text(path, TP_MODEL_MAX_BYTES, &size);
    if (!text) return EXIT_USAGE;
    how.assume = options->assume;
    how.label = options->name ? options->name : folder_of(path, folder, sizeof folder);
    tp_status status = tp_model_parse_with(text, size, strcmp(path, "-") ? path : "standard input", &how, model, &error);
    free(text);
    return status == TP_OK ? 0 : complain_status(&error);
}

struct folders {
    char path[2][PATH_CAPACITY];
    int count;
};

/* Where names are looked up: --models; otherwise models of this directory, then what was installed with this tool. */
static void find_folders(const struct options *options, struct folders *folders) {
    char tool[PATH_CAPACITY / 2];
    snprintf(folders->path[0], PATH_CAPACITY, "%s", options->models ? options->models : "models");
    folders->count = 1;
    ssize_t length = options->models ? 0 : readlink("/proc/self/exe", tool, sizeof tool - 1);
    if (length <= 0) return;
    tool[length] = 0;
    *strrchr(tool, '/') = 0;
    snprintf(folders->path[1], PATH_CAPACITY, "%s/../share/tileproof/models", tool);
    folders->count += !access(folders->path[1], X_OK);
}

struct names {
    struct nearest nearest;
    char list[NAMES_CAPACITY];
    int count;
};

static void each_name(const char *folder, void (*one)(void *user, const char *name), void *user) {
    struct dirent **entries = NULL;
    int count = scandir(folder, &entries, NULL, alphasort);
    for (int i = 0; i < count; i++) {
        if (ends_with(entries[i]->d_name, ".json")) {
            entries[i]->d_name[strlen(entries[i]->d_name) - 5] = 0;
            one(user, entries[i]->d_name);
        }
        free(entries[i]);
    }
    free(entries);
}

static void add_model(void *user, const char *name) {
    struct names *names = user;
    size_t used = strlen(names->list);
    nearest_try(&names->nearest, name);
    snprintf(names->list + used, sizeof names->list - used, "%s%s", names->count++ ? ", " : "", name);
}

/* Those that there are, and which of them may have been meant. */
static int complain_name(const char *name, const struct folders *folders) {
    struct names names = {.nearest = nearest_to(name)};
    const char *two = folders->count > 1 ? folders->path[1] : "", *and = folders->count > 1 ? " or " : "";
    for (int i = 0; i < folders->count; i++) each_name(folders->path[i], add_model, &names);
    if (!names.count)
        complain("model '%s' is neither a file nor a name: %s has no *.json (--models DIR says where names are looked up)",
                 name, folders->path[0]);
    else
        complain("model '%s' is neither a file nor one of %s%s%s%s It has %s", name, folders->path[0], and, two,
                 names.nearest.name[0] ? nearest_question(&names.nearest) : ".", names.list);
    return EXIT_USAGE;
}

/* Is it a path, and no name to look up? */
static int is_path(const char *name) {
    struct stat there;
    return strchr(name, '/') || ends_with(name, ".json") || !strcmp(name, "-") || (!stat(name, &there) && S_ISREG(there.st_mode));
}

/* The file of a name in one of the folders; 0: there is none. */
static int find_file(const struct folders *folders, const char *name, char path[2 * PATH_CAPACITY]) {
    for (int i = 0; i < folders->count; i++)
        if (snprintf(path, 2 * PATH_CAPACITY, "%s/%s.json", folders->path[i], name) < 2 * PATH_CAPACITY && !access(path, F_OK))
            return 1;
    return 0;
}

/* The config of a folder; 0: it is none, or has none. */
static int find_config(const char *name, char path[2 * PATH_CAPACITY]) {
    struct stat there;
    return !stat(name, &there) && S_ISDIR(there.st_mode) &&
           snprintf(path, 2 * PATH_CAPACITY, "%s/config.json", name) < 2 * PATH_CAPACITY && !stat(path, &there);
}

static void print_name(void *user, const char *name) { fprintf(user, "%s\n", name); }

void models_print(const struct options *options, FILE *out) {
    struct folders folders;
    find_folders(options, &folders);
    for (int i = 0; i < folders.count; i++) each_name(folders.path[i], print_name, out);
}

int model_known(const struct options *options, const char *name) {
    struct folders folders;
    char path[2 * PATH_CAPACITY];
    if (find_config(name, path)) return 1;
    if (is_path(name)) return !access(name, F_OK);
    find_folders(options, &folders);
    return find_file(&folders, name, path);
}

int model_read(const struct options *options, const char *name, tp_model **model) {
    struct folders folders;
    char path[2 * PATH_CAPACITY];
    if (find_config(name, path)) return read_file(options, path, model);
    if (is_path(name)) return read_file(options, name, model);
    if (options->models && strlen(options->models) >= PATH_CAPACITY) {
        complain("--models is too long: at most %d characters", PATH_CAPACITY - 1);
        return EXIT_USAGE;
    }
    find_folders(options, &folders);
    if (find_file(&folders, name, path)) return read_file(options, path, model);
    return access(name, F_OK) ? complain_name(name, &folders) : read_file(options, name, model);
}
