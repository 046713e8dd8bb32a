/* config_value.h: values and words of the configuration; private to config.c and config_value.c. Each returns
 * 0 (or the value), or -EINVAL with a sentence that says what was expected. */
#ifndef NCTD_CONFIG_VALUE_H
#define NCTD_CONFIG_VALUE_H
#include "config_table.h"
#include "ini.h"

int config_ini_fail(ini_why *why, const char *format, ...) __attribute__((format(printf, 2, 3))); /* -EINVAL */
int config_read_number(const char *value, bool bytes, uint64_t *ret);                             /* bytes: K, M, G */
int config_choice_number(const char *choices, const char *value); /* "a|b|c", "b" -> 1 */
int config_read_bool(const char *value);                          /* 0, 1 */
int config_set_option(config *c, const option *o, const char *value, ini_why *why);
/* Always -EINVAL: the sentence with the nearest known word. */
int config_unknown_section(const char *name, ini_why *why);
int config_unknown_key(const char *section, const char *key, ini_why *why);
int config_unknown_model_key(const char *key, ini_why *why);
#endif
