/* SPDX-License-Identifier: Apache-2.0 */
/* Models by file and by name: llama-3.2-1b is models/llama-3.2-1b.json, of this directory or of the installation. */
#include "cli.h"
#include "file_text.h"
#include "nearest.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PATH_ROOM = 1024, NAMES_ROOM = 4096 };

const char *base_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static int ends_with(const char *text, const char *end) {
    size_t a = strlen(text), b = strlen(end);
    return a >= b && !strcmp(text + a - b, end);
}

static int read_file(const char *path, tp_model **model) {
    tp_error error = TP_ERROR_INIT;
    size_t size;
    char *text = file_text(path, TP_MODEL_MAX_BYTES, &size);
    if (!text) return EXIT_USAGE;
    tp_status status =
        tp_model_parse(text, size, strcmp(path, "-") ? path : "standard input", model, &error);
    free(text);
    return status == TP_OK ? 0 : complain_status(&error);
}

/* --models; otherwise models where there is such a directory, or what was installed with this tool. */
static void find_directory(const struct options *options, char directory[PATH_ROOM]) {
    char tool[PATH_ROOM / 2];
    snprintf(directory, PATH_ROOM, "%s", options->models ? options->models : "models");
    if (options->models || !access(directory, X_OK)) return;
    ssize_t length = readlink("/proc/self/exe", tool, sizeof tool - 1);
    if (length <= 0) return;
    tool[length] = 0;
    *strrchr(tool, '/') = 0;
    char installed[PATH_ROOM];
    snprintf(installed, sizeof installed, "%s/../share/tileproof/models", tool);
    if (!access(installed, X_OK)) strcpy(directory, installed);
}

/* Those of the directory, and which of them may have been meant. */
static int complain_name(const char *name, const char *directory) {
    struct dirent **entries = NULL;
    struct nearest nearest = nearest_to(name);
    char names[NAMES_ROOM] = "";
    int count = scandir(directory, &entries, NULL, alphasort), found = 0;
    for (int i = 0; i < count; i++) {
        if (ends_with(entries[i]->d_name, ".json")) {
            size_t used = strlen(names);
            entries[i]->d_name[strlen(entries[i]->d_name) - 5] = 0;
            nearest_try(&nearest, entries[i]->d_name);
            snprintf(names + used, sizeof names - used, "%s%s", found++ ? ", " : "", entries[i]->d_name);
        }
        free(entries[i]);
    }
    free(entries);
    if (!found)
        complain("model '%s' is neither a file nor a name: %s has no *.json (--models DIR says where names are looked up)",
                 name, directory);
    else
        complain("model '%s' is neither a file nor one of %s%s It has %s", name, directory,
                 nearest.name[0] ? nearest_question(&nearest) : ".", names);
    return EXIT_USAGE;
}

int model_read(const struct options *options, const char *name, tp_model **model) {
    char directory[PATH_ROOM], path[2 * PATH_ROOM];
    if (strchr(name, '/') || ends_with(name, ".json") || !strcmp(name, "-")) return read_file(name, model);
    if (options->models && strlen(options->models) >= sizeof directory) {
        complain("--models is too long: at most %zu characters", sizeof directory - 1);
        return EXIT_USAGE;
    }
    find_directory(options, directory);
    if (snprintf(path, sizeof path, "%s/%s.json", directory, name) < (int)sizeof path && !access(path, F_OK))
        return read_file(path, model);
    return access(name, F_OK) ? complain_name(name, directory) : read_file(name, model);
}
