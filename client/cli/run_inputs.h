/* run_inputs.h: the list of inputs of one run, and the names of their results. Single-threaded. */
#ifndef NCT_CLI_RUN_INPUTS_H
#define NCT_CLI_RUN_INPUTS_H
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* What -r takes from a folder unless --match says otherwise. */
#define INPUTS_EXTENSIONS "wav|wave|flac|aif|aiff|aifc|au|snd|ogg|oga|opus|mp3|w64|rf64|caf|sph|voc|avr|mat"

typedef struct {
    char *path;   /* "-": stdin */
    char *folder; /* of {dir}: "sub/dir/" below the folder of -r, else "" */
    char *out;    /* result's path; NULL until inputs_name() */
    uint64_t bytes;
    dev_t dev;
    ino_t ino;
    int there; /* stat() worked: bytes, dev and ino are filled */
} run_input;

typedef struct {
    run_input *v;
    int n, room;
} inputs;

/* Each returns 0, or an exit code after a sentence. */
int inputs_add(inputs *in, const char *path, const char *folder);
/* All files below `root`, sorted by name, but those below out_dir (NULL: none) and hidden ones. match: a glob on the base
 * name, NULL: INPUTS_EXTENSIONS. */
int inputs_add_folder(inputs *in, const char *root, const char *match, const char *out_dir);
/* One path a line (or NUL-terminated, if the list holds a NUL) from a file or "-". */
int inputs_add_list(inputs *in, const char *list);
/* Keep every n-th from the i-th on, i from 1. */
void inputs_shard(inputs *in, uint64_t i, uint64_t n);
/* Fill .out from the template ({dir} {stem} {name} {ext}) below out_dir. CLI_USAGE: an unknown word in it, or two inputs that
 * would get one name. */
int inputs_name(inputs *in, const char *out_dir, const char *template);
/* An input with this device and inode, or NULL. */
const run_input *inputs_same_file(const inputs *in, dev_t dev, ino_t ino);
void inputs_done(inputs *in);
#endif
