/* config.h: the daemon's configuration: config.def's rows as a struct, and the models. Immutable once loaded.
 *
 * Read from one file (then every conf.d/NAME.conf beside it, by name), then from section.key=value overrides;
 * later wins. Every error names file:line and, for an unknown key, the nearest known one. No logging; any
 * thread. */
#ifndef NCTD_CONFIG_H
#define NCTD_CONFIG_H
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include "model.h"

/* The order of the choices in config.def. */
enum { ENGINE_AUTO, ENGINE_CUDA, ENGINE_CPU };
enum { VARIANT_AUTO, VARIANT_AVX512, VARIANT_AVX2, VARIANT_PORTABLE };
enum { PRECISION_AUTO, PRECISION_F32, PRECISION_TF32, PRECISION_BF16 };
enum { GPU_ERROR_EXIT, GPU_ERROR_CPU };
enum { MODE_FRAME, MODE_STREAM };

typedef struct {
    char *name;              /* [model NAME] */
    char *file;              /* NULL: freshly made layer from the settings and seed */
    int mode;                /* MODE_FRAME; MODE_STREAM is refused until it is there */
    bool publish;            /* results go to PUB */
    uint64_t seed;           /* of a freshly made layer */
    model_setting *settings; /* layer parameters given here, for model_load */
    int32_t n_settings;
    char origin[300];      /* file:line of the section, for messages */
    int file_number, line; /* where it was seen last: config.c's, to find a name twice in one file */
} config_model;

#define C_U32   uint32_t
#define C_BYTES uint64_t
#define C_BOOL  bool
#define C_STR   char *
#define C_ENUM  int
typedef struct config {
#define SECTION(name, help)                                      struct {
#define OPT(section, key, type, def, min, max, unit, when, help) C_##type key;
#define END(name)                                                                                                    \
    }                                                                                                                \
    name;
#include "config.def"
#undef SECTION
#undef OPT
#undef END
    config_model *models; /* none: main serves the default layer */
    int32_t n_models;
    char (*origins)[300]; /* file:line of each option in config.def's order, "" = default */
} config;

typedef struct {
    char text[1024];
} config_why;

/* path NULL: defaults alone. overrides: "section.key=value". 0; -ENOENT, -EACCES, -EIO (named file), -EINVAL,
 * -ENOMEM. */
int config_load(config **ret, const char *path, const char *const *overrides, int n_overrides, config_why *why);
/* As config_load, from text in memory (no conf.d): `name` stands for the file in messages. For tests and the
 * fuzzer. */
int config_parse(config **ret, const char *name, const char *text, size_t len, config_why *why);
void config_free(config *c); /* NULL is fine */
/* 0 if a reload may go from `now` to `next`, else -EPERM and the restart-only key that differs. */
int config_may_reload(const config *now, const config *next, config_why *why);
/* Does a key differ that a reload applies? Models apart: they are compared when they are loaded. */
bool config_differs(const config *now, const config *next);
/* After config_may_reload: the two exchange the keys that a reload applies, origins and models. Text stays where it is,
 * so who borrowed it keeps it. Twice is nothing: a reload that fails after it takes it back. */
void config_swap(config *now, config *next);

void config_dump(const config *c, FILE *to); /* --dump-config: every key, its value, where it was set */
void config_defaults(FILE *to);              /* the shipped nctd.conf: every key, commented out, with its help */
void config_help(FILE *to);                  /* the table of --help */
void config_man(FILE *to);                   /* the table of nctd.conf(5), roff */
const char *config_choice(const char *section_key, int value); /* "engine.engine", 2 -> "cpu"; NULL: no such */
#endif
