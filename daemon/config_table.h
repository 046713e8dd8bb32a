/* config_table.h: config.def's rows as data; shared by config.c (reads) and config_print.c (writes). */
#ifndef NCTD_CONFIG_TABLE_H
#define NCTD_CONFIG_TABLE_H
#include "config.h"

typedef enum { OPTION_U32, OPTION_BYTES, OPTION_BOOL, OPTION_STR, OPTION_ENUM } option_type;
typedef enum { OPTION_RELOAD, OPTION_RESTART } option_when;

typedef struct {
    const char *section, *key, *unit, *help;
    option_type type;
    option_when when;
    size_t offset;             /* in struct config */
    uint64_t number, min, max; /* U32, BYTES, BOOL; STR: min and max length */
    const char *text;          /* STR, ENUM: the default */
    const char *choices;       /* ENUM */
} option;

extern const option config_options[];
extern const int config_options_count;

/* Keys of a [model NAME] section that are the daemon's own; every other key is a layer parameter of model.h.
 */
typedef struct {
    const char *key, *value, *help;
} model_key;
extern const model_key config_model_keys[];
extern const int config_model_keys_count;

const option *config_option(const char *section, const char *key); /* NULL: none */
/* The value of one option as the file would say it. */
void config_value_text(const config *c, const option *o, char *out, size_t size);
/* The setting that takes this option's effect away ("engine.engine = cpu"), NULL: it has one. */
const char *config_inert(const config *c, const option *o);
#endif
