/* run_inputs.c: makes the list of inputs. Called by run.c before any work. Opens no sound. */
#include "run_inputs.h"
#include "cli.h"
#include <errno.h>
#include <fnmatch.h>
#include <fts.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

static int no_memory(void) {
    cli_say("no memory for the list of inputs");
    return CLI_FAILED;
}

int inputs_add(inputs *in, const char *path, const char *folder) {
    if (in->n == in->room) {
        int room = in->room ? 2 * in->room : 64;
        run_input *v = realloc(in->v, (size_t)room * sizeof *v);
        if (!v) return no_memory();
        in->v = v;
        in->room = room;
    }
    run_input i = {.path = strdup(path), .folder = strdup(folder)};
    struct stat st;
    if (strcmp(path, "-") != 0 && !stat(path, &st)) {
        i.there = 1;
        i.bytes = S_ISREG(st.st_mode) ? (uint64_t)st.st_size : 0;
        i.dev = st.st_dev;
        i.ino = st.st_ino;
    }
    in->v[in->n++] = i;
    return i.path && i.folder ? 0 : no_memory();
}

/* ---- folders and lists ------------------------------------------------------------------------------------- */
static int taken(const char *name, const char *match) {
    if (name[0] == '.') return 0;
    if (match) return !fnmatch(match, name, 0);
    const char *dot = strrchr(name, '.');
    size_t len = dot ? strlen(dot + 1) : 0;
    for (const char *p = INPUTS_EXTENSIONS; len && *p;) {
        size_t l = strcspn(p, "|");
        if (l == len && !strncasecmp(p, dot + 1, len)) return 1;
        p += l + (p[l] == '|');
    }
    return 0;
}

static int by_name(const FTSENT **a, const FTSENT **b) {
    return strcmp((*a)->fts_name, (*b)->fts_name);
}

static int add_entry(inputs *in, const FTSENT *e, size_t root_len) {
    const char *below = e->fts_path + root_len;
    while (*below == '/') below++;
    const char *slash = strrchr(below, '/');
    char *folder = strndup(below, slash ? (size_t)(slash + 1 - below) : 0);
    int r = folder ? inputs_add(in, e->fts_path, folder) : no_memory();
    free(folder);
    return r;
}

int inputs_add_folder(inputs *in, const char *root, const char *match, const char *out_dir) {
    char *roots[] = {(char *)root, NULL};
    struct stat out, st;
    int has_out = out_dir && !stat(out_dir, &out), r = 0, before = in->n;
    if (stat(root, &st)) return cli_usage("-r %s: %s", cli_quote(root), strerror(errno));
    if (!S_ISDIR(st.st_mode)) return cli_usage("-r %s: is not a folder", cli_quote(root));
    FTS *tree = fts_open(roots, FTS_LOGICAL | FTS_NOCHDIR, by_name);
    if (!tree) return no_memory();
    int same = has_out && out.st_dev == st.st_dev && out.st_ino == st.st_ino;
    for (FTSENT *e; !r && (e = fts_read(tree));) {
        int hidden = e->fts_level > 0 && e->fts_name[0] == '.';
        int is_out = has_out && !same && e->fts_statp->st_dev == out.st_dev && e->fts_statp->st_ino == out.st_ino;
        if (e->fts_info == FTS_D && (hidden || is_out))
            fts_set(tree, e, FTS_SKIP);
        else if (e->fts_info == FTS_DNR || e->fts_info == FTS_ERR)
            cli_say("%s: %s", cli_quote(e->fts_path), strerror(e->fts_errno)), r = CLI_FAILED;
        else if ((e->fts_info == FTS_F || e->fts_info == FTS_SLNONE) && taken(e->fts_name, match))
            r = add_entry(in, e, strlen(root));
    }
    fts_close(tree);
    if (!r && in->n == before)
        cli_say("-r %s: warning: no file in it %s%s", cli_quote(root),
            match ? "matches " : "has the extension of a sound file; --match takes others",
            match ? cli_quote(match) : "");
    return r;
}

static char *read_list(FILE *f, size_t *ret_len) {
    char *text = NULL;
    size_t len = 0, room = 0, n;
    do {
        if (len + 65536 > room) {
            char *bigger = realloc(text, room = 2 * room + 131072);
            if (!bigger) {
                free(text);
                return NULL;
            }
            text = bigger;
        }
        len += n = fread(text + len, 1, 65536, f);
    } while (n);
    text[len] = 0;
    *ret_len = len;
    return text;
}

int inputs_add_list(inputs *in, const char *list) {
    FILE *f = strcmp(list, "-") ? fopen(list, "re") : stdin;
    if (!f) return cli_usage("--files-from %s: %s", cli_quote(list), strerror(errno));
    size_t len = 0;
    char *text = read_list(f, &len);
    int r = text ? 0 : no_memory();
    if (ferror(f)) r = cli_usage("--files-from %s: %s", cli_quote(list), strerror(errno));
    /* With a NUL in it, it came from `find -print0`: names may hold newlines. */
    int separator = text && memchr(text, 0, len) ? 0 : '\n';
    for (char *p = text, *end; !r && p < text + len; p = end + 1) {
        end = memchr(p, separator, (size_t)(text + len - p));
        if (!end) end = text + len;
        *end = 0;
        if (*p) r = inputs_add(in, p, "");
    }
    free(text);
    if (f != stdin) fclose(f);
    return r;
}

static void drop(run_input *i) {
    free(i->path);
    free(i->folder);
    free(i->out);
}

void inputs_shard(inputs *in, uint64_t i, uint64_t n) {
    int kept = 0;
    for (int k = 0; k < in->n; k++) {
        if ((uint64_t)k % n == i - 1)
            in->v[kept++] = in->v[k];
        else
            drop(&in->v[k]);
    }
    in->n = kept;
}

/* ---- names ------------------------------------------------------------------------------------------------- */
static int put_word(FILE *to, const run_input *i, const char *word, size_t len) {
    const char *slash = strrchr(i->path, '/'), *base = slash ? slash + 1 : i->path;
    if (!strcmp(base, "-")) base = "stdin";
    const char *dot = strrchr(base, '.');
    if (dot == base) dot = NULL;
    size_t stem = dot ? (size_t)(dot - base) : strlen(base);
    if (len == 3 && !memcmp(word, "dir", 3))
        fputs(i->folder, to);
    else if (len == 4 && !memcmp(word, "stem", 4))
        fwrite(base, 1, stem, to);
    else if (len == 4 && !memcmp(word, "name", 4))
        fputs(base, to);
    else if (len == 3 && !memcmp(word, "ext", 3))
        fputs(dot ? dot + 1 : "", to);
    else
        return -EINVAL;
    return 0;
}

static int make_name(run_input *i, const char *out_dir, const char *template) {
    size_t size = 0;
    FILE *to = open_memstream(&i->out, &size);
    if (!to) return no_memory();
    int r = 0;
    fprintf(to, "%s/", out_dir);
    for (const char *p = template; *p && !r; p++) {
        size_t len = *p == '{' ? strcspn(p + 1, "}") : 0;
        if (*p != '{') {
            fputc(*p, to);
        } else if (p[1 + len] != '}' || put_word(to, i, p + 1, len)) {
            r = cli_usage("--template %s: '%.*s' is not one of {dir} {stem} {name} {ext}", cli_quote(template),
                (int)(len + 2 < 40 ? len + 2 : 40), p);
        } else {
            p += len + 1;
        }
    }
    fclose(to);
    return r;
}

static int by_out(const void *a, const void *b) {
    return strcmp((*(const run_input *const *)a)->out, (*(const run_input *const *)b)->out);
}

static int refuse_same_out(const run_input *a, const run_input *b) {
    if (!strcmp(a->path, b->path))
        return cli_usage("the input '%s' is named twice; name it once", cli_quote(a->path));
    /* With -r, {dir} still tells two names of one file apart. */
    if (!strcmp(a->folder, b->folder) && a->there && b->there && a->dev == b->dev && a->ino == b->ino)
        return cli_usage(
            "'%s' and '%s' are the same file, named twice; name it once", cli_quote(a->path), cli_quote(b->path));
    return cli_usage("'%s' and '%s' would both become '%s'; a --template with {name} or {dir} keeps them apart",
        cli_quote(a->path), cli_quote(b->path), cli_quote(a->out));
}

int inputs_name(inputs *in, const char *out_dir, const char *template) {
    int r = 0;
    for (int i = 0; i < in->n && !r; i++) r = make_name(&in->v[i], out_dir, template);
    const run_input **sorted = calloc((size_t)in->n + 1, sizeof(const void *));
    if (!r && !sorted) r = no_memory();
    for (int i = 0; i < in->n && !r; i++) sorted[i] = &in->v[i];
    if (!r) qsort(sorted, (size_t)in->n, sizeof(const void *), by_out);
    for (int i = 1; i < in->n && !r; i++)
        if (!strcmp(sorted[i - 1]->out, sorted[i]->out)) r = refuse_same_out(sorted[i - 1], sorted[i]);
    free(sorted);
    return r;
}

const run_input *inputs_same_file(const inputs *in, dev_t dev, ino_t ino) {
    for (int i = 0; i < in->n; i++)
        if (in->v[i].there && in->v[i].dev == dev && in->v[i].ino == ino) return &in->v[i];
    return NULL;
}

void inputs_done(inputs *in) {
    for (int i = 0; i < in->n; i++) drop(&in->v[i]);
    free(in->v);
    *in = (inputs){0};
}
